"""Reflexion: plans after failures."""
