"""Trackers show a run to a service, each in a process of its own, so that none can stop or slow a training.

The run only writes its directory. `process.py` starts one child for each tracker and tells it when there is more,
`main.py` is that child, `showing.py` reads the directory and shows it, and `base.py` has the interface of trackers.
"""
