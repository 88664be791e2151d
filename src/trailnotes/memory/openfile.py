"""A memory file that is open: one connection behind one lock, with whole transactions and whole copies."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trailnotes.errors import MemoryStoreError
from trailnotes.memory import schema
from trailnotes.memory.schema import EmbedderIdentity, translate_errors
from trailnotes.types import StrPath


class Closeable:
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


class MemoryFile(Closeable):
    """What all tables of a memory file have in common.

    Args:
        path: the file; None keeps everything in memory. A missing file is created if `identity` is given.
        identity: the embedder of a new file; ignored if the file exists.

    Raises:
        MemoryStoreError: the file is missing, damaged, not ours, or of a newer version.
    """

    def __init__(self, path: StrPath | None, identity: EmbedderIdentity | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._lock = threading.RLock()
        self._in_session = False  # whether this has written to the file
        self._touched: set[str] = set()  # namespaces whose rows the transaction under way has changed
        self._connection = schema.open_database(self.path, identity, schema.BUSY_TIMEOUT)

    def close(self) -> None:
        """Close the file. Twice is fine."""
        self._connection.close()

    @property
    def identity(self) -> EmbedderIdentity:
        """The embedder whose vectors the file holds."""
        with self._lock, translate_errors(self.path):
            return schema.read_identity(self._connection)

    @property
    def sequence(self) -> int:
        """Number of writes so far: the age of the tip that was written last."""
        with self._lock, translate_errors(self.path):
            return schema.read_sequence(self._connection)

    @property
    def lineage(self) -> str:
        """What this file and all copies of it have in common."""
        with self._lock, translate_errors(self.path):
            return schema.read_lineage(self._connection)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes within are one, or none. Other processes wait; readers see the state before."""
        with self._lock, translate_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                if not self._in_session:
                    schema.begin_session(self._connection)
                yield
                self._connection.execute("COMMIT")
                self._in_session = True
            except BaseException:
                schema.roll_back(self._connection)
                self._on_rollback()
                raise
            finally:
                self._on_transaction_end()

    def snapshot(self, path: StrPath) -> None:
        """Write a consistent copy to `path`, atomically, while others may read and write."""
        path = Path(path)
        if self.path is not None and path.resolve() == self.path.resolve():
            raise MemoryStoreError(f"a snapshot of {path} cannot be written over the file itself: name another path")
        with self._lock, translate_errors(path):
            schema.write_copy(self._connection, path)

    def _query(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, translate_errors(self.path):
            return schema.read_rows(self._connection, sql, values)

    def _peek_sequence(self) -> int:
        """The number that the next write will have."""
        return schema.read_sequence(self._connection) + 1

    def _advance_sequence(self) -> int:
        """Number the write that is under way."""
        assert self._connection.in_transaction, "writes belong into `with store.transaction()`"
        sql = "UPDATE meta SET value = value + 1 WHERE name = 'sequence' RETURNING value"
        return int(self._query(sql)[0][0])

    def _on_rollback(self) -> None:
        """A transaction was rolled back."""

    def _on_transaction_end(self) -> None:
        """A transaction is over, either way."""
