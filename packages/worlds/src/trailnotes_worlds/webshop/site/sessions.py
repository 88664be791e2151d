"""Sessions of the shop's visitors by secret name: bounded in number, and expired after a while without a request."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SessionStore(Generic[T]):
    """Values by random names of 256 bits, in the order of their last use.

    A name that this store did not give out, whether forged, expired or of another process, finds nothing.

    Args:
        limit: number of values; one more evicts the least recently used.
        idle_s: seconds without use after which a value expires.
        clock: seconds, never running backwards.
    """

    def __init__(self, limit: int, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        if limit < 1 or idle_s <= 0:
            raise ValueError(f"sessions need limit >= 1 and idle_s > 0, got {limit} and {idle_s}")
        self.limit, self.idle_s = limit, idle_s
        self._clock = clock
        self._entries: OrderedDict[str, tuple[T, float]] = OrderedDict()  # name -> value and time of its last use

    def __len__(self) -> int:
        self._expire()
        return len(self._entries)

    def add(self, value: T) -> str:
        """Store a value and return the name that finds it."""
        self._expire()
        while len(self._entries) >= self.limit:
            self._entries.popitem(last=False)
        name = secrets.token_urlsafe(32)
        self._entries[name] = value, self._clock()
        return name

    def find(self, name: str | None) -> T | None:
        """Find the value of a name and keep it from expiring; None if there is none."""
        self._expire()
        if not name or name not in self._entries:
            return None
        value, _ = self._entries.pop(name)
        self._entries[name] = value, self._clock()
        return value

    def remove(self, name: str | None) -> None:
        """Forget a name, whether known or not."""
        if name:
            self._entries.pop(name, None)

    def _expire(self) -> None:
        oldest = self._clock() - self.idle_s
        while self._entries and next(iter(self._entries.values()))[1] <= oldest:
            self._entries.popitem(last=False)
