"""Estimates for a dry run: the memory, time and disk of a training, and changes that make it fit."""
