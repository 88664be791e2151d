"""The engine's side: a program of its own, which needs vLLM and the standard library, and nothing else of Trailnotes.

It runs by its file (`main.py`) in whatever environment vLLM is installed in; so its files name each other without the
package, and speak to the other side in frames alone.
"""
