"""The pages under docs/ say what the code does, as far as a program can tell."""

import dataclasses
import re
import runpy
from pathlib import Path

import pytest

from swarm_diloco.diloco.ledger import Commit, Evaluation, Kind, Member, PartRecord
from swarm_diloco.network.wire import KINDS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
SOURCE = re.compile(r"`((?:swarm_diloco|client|bootstrap|tests|diloco|network|rounds|training)/[\w/]*(?:\.py)?)`")
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_or_names_is_there(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target
    for source in SOURCE.findall(page.read_text()):
        assert (ROOT / source).exists() or (ROOT / "swarm_diloco" / source).exists(), source


def test_the_settings_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "formats.md").read_text()
    made = runpy.run_path(str(ROOT / "docs" / "settings.py"))["with_settings"](page)
    assert page == made, "run: python docs/settings.py"


def test_the_protocol_page_has_every_message_and_no_other() -> None:
    rows = re.findall(r"^\| `([a-z ]+)` \| (?:[a-z]+ → [a-z]+|both ways) \|", PROTOCOL, re.MULTILINE)
    assert set(rows) == set(KINDS)


def test_the_protocol_page_has_every_field_of_a_commit() -> None:
    section = PROTOCOL.partition("## A commit's fields")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert rows == [field.name for field in dataclasses.fields(Commit)]
    for record in (Member, PartRecord, Evaluation):
        for field in dataclasses.fields(record):
            assert f"`{field.name}`" in section, (record, field.name)
    for kind in Kind:
        assert f"{kind.value} {kind.name.lower()}" in section
