"""Trackers: other people's windows on a run, each in a process of its own, so that none can stop or slow a training.

A run says what happened in its directory, and only there. `process.py` starts one child for each tracker and
tells it when there is more; `main.py` is that child; `showing.py` reads the directory and shows it to
the tracker, which speaks to its service; `base.py` is what all trackers keep to.
"""
