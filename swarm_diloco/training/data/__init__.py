"""Text to packed sequences, and who trains which."""
