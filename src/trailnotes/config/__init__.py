"""Settings: the tree, how it is read and printed, and published values for it."""
