"""A rollback journal as a stranger may lay it beside a database."""

from __future__ import annotations

import struct
from pathlib import Path


def hot_journal(path: Path, named: Path) -> None:
    """A rollback journal that SQLite would play back, with `named` as its super-journal."""
    magic = bytes.fromhex("d9d505f920a163d7")
    header = magic + struct.pack(">5I", 0, 1, path.stat().st_size // 4096, 512, 4096)
    name = str(named).encode()
    end = struct.pack(">I", 2**30 // 4096 + 1) + name + struct.pack(">2I", len(name), sum(name)) + magic
    journal = path.with_name(f"{path.name}-journal")
    journal.write_bytes(header.ljust(512, b"\0") + end)
