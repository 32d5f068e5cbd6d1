"""Streams between peers: over hivemind, and in virtual time."""
