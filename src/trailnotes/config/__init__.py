"""Settings: the tree, how it is read and shown, and published values for it."""
