"""The engine's side: a program that needs vLLM and the standard library, and nothing else of Trailnotes.

It runs by its file (`main.py`) in the environment of vLLM; so its files import each other without the package.
"""
