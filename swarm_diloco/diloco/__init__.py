"""The algorithm: pure torch, no clock, no input or output."""
