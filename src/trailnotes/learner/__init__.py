"""Rows in, a better model out. It knows no method."""
