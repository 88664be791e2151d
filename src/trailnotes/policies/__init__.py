"""Policies: what acts."""
