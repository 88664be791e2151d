"""Commands that compare and show runs."""
