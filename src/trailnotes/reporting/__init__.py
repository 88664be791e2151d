"""Figures for people: intervals, pictures, episodes to read."""
