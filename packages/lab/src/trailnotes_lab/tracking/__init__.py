"""Trackers report a run to a service, called in the process of the run.

`reporter.py` reads the run directory and calls the trackers, `base.py` has their interface, and the other files have
one service each.
"""
