"""Who is in the shop: visits by secret name, bounded in number, gone when nobody has moved for a while."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    seen: float  # seconds of the clock, when it was last asked for


class SessionStore(Generic[T]):
    """Values by random names of 256 bits, in the order in which they were last asked for.

    A name that was not given out here, whether forged, expired or of another process, names nothing.

    Args:
        limit: how many are held; one more, and the one that has rested longest goes.
        idle_s: seconds without a look after which one is gone.
        clock: seconds, never running backwards.
    """

    def __init__(self, limit: int, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        if limit < 1 or idle_s <= 0:
            raise ValueError(f"sessions need limit >= 1 and idle_s > 0, got {limit} and {idle_s}")
        self.limit, self.idle_s = limit, idle_s
        self._clock = clock
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()

    def __len__(self) -> int:
        self._expire()
        return len(self._entries)

    def add(self, value: T) -> str:
        """Hold `value`; returns the name that finds it."""
        self._expire()
        while len(self._entries) >= self.limit:
            self._entries.popitem(last=False)
        name = secrets.token_urlsafe(32)
        self._entries[name] = _Entry(value, self._clock())
        return name

    def find(self, name: str | None) -> T | None:
        """The value of a name, which thereby stays; None where there is none."""
        self._expire()
        entry = self._entries.get(name) if name else None
        if entry is None or name is None:
            return None
        entry.seen = self._clock()
        self._entries.move_to_end(name)
        return entry.value

    def remove(self, name: str | None) -> None:
        """Forget a name; one that is not known is fine."""
        if name:
            self._entries.pop(name, None)

    def _expire(self) -> None:
        oldest = self._clock() - self.idle_s
        while self._entries and next(iter(self._entries.values())).seen <= oldest:
            self._entries.popitem(last=False)
