"""Waymarks: games where tips matter, played as compiled TextWorld games or simulated byte for byte."""
