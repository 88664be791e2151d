"""Where environments live: in this process, or (`worker.Worker`) in another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trailnotes.envs.workers.slots import Operation, Slots
from trailnotes.errors import TrailnotesError
from trailnotes.types import Observation, Task


class Host(ABC):
    """A place with numbered environment instances, each lent to one lease at a time and used again later."""

    def __init__(self) -> None:
        self.load = 0  # live leases
        self.failure = ""  # why this host is lost; '' while it lives
        self._free: list[int] = []
        self._num_slots = 0

    @abstractmethod
    async def call(self, operation: Operation, slot: int, argument: Task | str | None = None) -> Observation | None:
        """Run one operation of `Slots` on an instance. Raises what `boundary` lets through."""

    @abstractmethod
    def drop(self, slot: int) -> None:
        """Close an instance as soon as it is idle, without waiting for it."""

    @abstractmethod
    def close(self) -> None:
        """Close all instances. Twice is fine."""

    async def borrow(self) -> int:
        """An idle instance, made now if there is none."""
        if self._free:
            return self._free.pop()
        slot = self._num_slots
        self._num_slots += 1
        try:
            await self.call("open", slot)
        except BaseException:
            self.drop(slot)
            raise
        return slot

    def give_back(self, slot: int, *, healthy: bool) -> None:
        """End a loan. An instance that failed, or was interrupted in a call, is not lent again."""
        if healthy:
            self._free.append(slot)
        else:
            self.drop(slot)


class LocalHost(Host):
    """Instances in this process: calls run inline, so nothing guards against one that hangs."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._slots = Slots(name, options)

    async def call(self, operation: Operation, slot: int, argument: Task | str | None = None) -> Observation | None:
        """Run the operation at once."""
        return self._slots.run(operation, slot, argument)

    def drop(self, slot: int) -> None:
        """Close an instance; what it raises is of no interest any more."""
        with suppress(TrailnotesError):
            self._slots.run("drop", slot)

    def close(self) -> None:
        """Close all instances."""
        self._slots.close()
