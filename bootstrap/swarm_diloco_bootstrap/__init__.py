"""The operator's app."""
