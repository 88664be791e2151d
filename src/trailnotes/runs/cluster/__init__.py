"""Several machines, by Ray: actors in the place of worker processes, ranks and engines of this machine.

Nothing here starts a cluster, and nothing below knows of one: a run gets the same interfaces (such as `Host`) that it
has without.
"""
