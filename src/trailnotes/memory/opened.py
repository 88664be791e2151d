"""An open memory file: one connection behind one lock, whole transactions, whole copies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from trailnotes.errors import MemoryStoreError
from trailnotes.memory import schema
from trailnotes.memory.schema import Identity, named_errors

BUSY_TIMEOUT = 60.0  # seconds


class Closes:
    """``with`` closes it at the end."""

    def close(self) -> None:
        """Close it. Twice is fine."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OpenFile(Closes):
    """What all tables of a memory file have in common.

    Args:
        path: the file; None keeps everything in memory. A missing file is created if `identity` is given.
        identity: the embedder of a new file; ignored if the file exists.

    Raises:
        MemoryStoreError: the file is missing, damaged, not ours, or of a newer version.
    """

    def __init__(self, path: Path | None, identity: Identity | None = None) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._connection = schema.open_database(path, identity, BUSY_TIMEOUT)

    def close(self) -> None:
        """Close the file. Twice is fine."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes within are one, or none. Other processes wait; readers see the state before."""
        with self._lock, named_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                self._undone()
                raise
            finally:
                self._ended()

    def snapshot(self, path: Path) -> None:
        """Write a consistent copy to `path`, atomically, while others may read and write."""
        if self.path is not None and path.resolve() == self.path.resolve():
            raise MemoryStoreError(f"a snapshot of {path} cannot be written over the file itself: name another path")
        with self._lock, named_errors(path):
            schema.write_copy(self._connection, path)

    def _undone(self) -> None:
        """A transaction was rolled back."""

    def _ended(self) -> None:
        """A transaction is over, either way."""
