"""Simulators in Java processes of our own: found, started, called, watched and ended."""
