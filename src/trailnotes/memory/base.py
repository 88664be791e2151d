"""The interface of a memory: five methods, shared by all episodes; a memory is part of every checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from trailnotes.types import Tip, Trajectory


class Memory(Protocol):
    """Tips by namespace. No tip of one namespace ever shows in another."""

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """Return at most `top_k` enabled tips for `query`, the best first by the implementation's own rule."""

    def add(self, tips: Sequence[Tip]) -> int:
        """Store `tips` in the given order, in one transaction; return the number of rows that are new or changed.

        The texts arrive as their author wrote them: clean what you keep (`clean_tip`).
        """

    def snapshot(self, path: Path) -> None:
        """Write a consistent copy to `path`, atomically, while others may read and write."""

    def restore(self, path: Path) -> None:
        """Replace the content by that of a snapshot."""

    def stats(self) -> dict[str, float]:
        """Return counts for logs and people: tips, namespaces, bytes."""


@runtime_checkable
class AsyncMemory(Memory, Protocol):
    """A memory whose search may take long, for example with a neural embedder; episodes await `search_async`."""

    async def search_async(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """Return what `search` returns, without blocking the event loop."""


@runtime_checkable
class FeedbackMemory(Memory, Protocol):
    """A memory that learns how the readers of its tips fared. `GroupRunner` calls `report` after its episodes."""

    def report(self, episodes: Sequence[Trajectory], *, once: str = "") -> None:
        """Record how `episodes` ended; `Step.tips` lists the tips that they read, and none of them failed.

        Members of a group without tips are among them, for comparison.

        `once` names the batch: a batch of that name that was reported before, perhaps before a restart, is skipped.
        """
