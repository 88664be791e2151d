"""Estimates for a dry run: the memory, time and disk of a training, or its tokens at a server."""
