"""The round protocol: one log without a server."""
