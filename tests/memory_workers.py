"""What other processes do in these tests; imports little, so that they start fast."""

from __future__ import annotations

from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

from trailnotes.config.schema import MemoryConfig
from trailnotes.memory import open_memory
from trailnotes.types import Tip

BATCH = 3
CAPACITY = 20


def write_forever(path: Path, round_number: int, confirm: Connection) -> None:
    """Add batches of three within a capacity until killed; a message for each batch that `add` has returned from."""
    memory = open_memory(path, MemoryConfig(capacity=CAPACITY, retire="least_used", threshold=-1))
    for number in range(10**6):
        memory.add([Tip("task", f"round {round_number} batch {number} tip {k}", "key", 0.0) for k in range(BATCH)])
        confirm.send_bytes(b".")


def write_some(path: Path, writer: int, num_tips: int, start: Barrier) -> None:
    """Open at the same time as others, then add one tip at a time; every one is counted under one shared text too."""
    start.wait()
    with open_memory(path, MemoryConfig(threshold=-1)) as memory:
        for number in range(num_tips):
            memory.add([Tip(f"task {number % 2}", f"writer {writer} tip {number}", "key", 0.0)])
            memory.add([Tip("shared", "everybody says this", "key", float(writer))])
            memory.search("shared", "key", 1)
