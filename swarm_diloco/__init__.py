"""Train one language model together with strangers: DiLoCo as a replicated log. See README.md for the map."""

__version__ = "0.1.0"
