"""Several machines, by Ray: actors in the place of worker processes, files and engines of this machine.

Nothing here starts a cluster, and nothing below knows of one: a run gets the same interfaces (`Host`, a memory) that it
has without.
"""
