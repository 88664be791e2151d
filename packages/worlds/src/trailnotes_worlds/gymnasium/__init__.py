"""Gymnasium environments that can be played in words: discrete actions by name, text or a drawing in letters."""
