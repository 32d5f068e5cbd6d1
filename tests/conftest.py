"""Settings of all tests."""

from hypothesis import settings

# The same examples at each run, and no example fails for being slow.
settings.register_profile("repository", deadline=None, derandomize=True, database=None)
settings.load_profile("repository")
