"""Several machines, by Ray: actors that do what worker processes, files and engines of this machine do otherwise.

Nothing here starts a cluster, and nothing below knows of one: what a run needs is handed to it as the same seams
(`Host`, a memory) that it has without.
"""
