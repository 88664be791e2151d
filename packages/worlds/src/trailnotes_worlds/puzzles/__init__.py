"""Sokoban as text, with seeded, graded levels that can all be solved."""
