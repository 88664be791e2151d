"""Training: the iteration that a method asks, the run around it, checkpoints, rehearsal, periodic evaluation."""
