"""Policies, which act in episodes and write tips."""
