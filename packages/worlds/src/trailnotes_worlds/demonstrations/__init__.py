"""Scripted episodes, one script for each world, from which initial models are trained."""
