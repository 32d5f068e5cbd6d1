"""Order of all tests."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real swarms last, one at a time: what fails quickly is seen first."""
    items.sort(key=lambda item: item.get_closest_marker("swarm") is not None)
