"""Gymnasium environments in words: discrete actions by name, observations as text or drawn in letters."""
