"""Services of methods in a run directory: policies, panels, evaluation, adaptation, progress."""
