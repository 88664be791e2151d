"""Trailnotes trains LLM agents that explore, take notes, and learn to do without them."""

__version__ = "0.1.0"
