"""Commands of single worlds."""
