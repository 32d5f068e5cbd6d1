"""The volunteer's app."""
