"""Settings of all tests."""

from hypothesis import settings

# The same examples at each run, and no example fails for being slow.
settings.register_profile("repository", deadline=None, derandomize=True, database=None)
# What is looked for once in a while, about an hour: pytest --hypothesis-profile=thorough
settings.register_profile("thorough", deadline=None, max_examples=3000, database=None)
settings.load_profile("repository")
