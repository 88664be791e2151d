"""Trials: everything that a method without weight updates asks for, living in one run directory."""

from __future__ import annotations


class Trials:
    """State and services of a method that changes no weights. A method (algorithms/) reads and drives it."""
