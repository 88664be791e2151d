"""Sokoban and Minesweeper as text: seeded, graded, and each level can be solved."""
