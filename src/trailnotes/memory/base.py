"""What a memory is: five methods, shared by all episodes, part of every checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from trailnotes.memory.tip_stats import TipEffect
from trailnotes.types import Task, Tip, Trajectory


class Memory(Protocol):
    """Tips by namespace. Nothing of one namespace ever shows in another."""

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """At most `top_k` enabled tips for `query`, the best first; the order rule is the implementation's."""
        ...

    def add(self, tips: Sequence[Tip]) -> int:
        """Store `tips` in the order given, in one transaction; returns how many rows are new or changed.

        Their texts are as somebody wrote them: clean what is kept (`clean_tip`).
        """
        ...

    def snapshot(self, path: Path) -> None:
        """Write a consistent copy to `path`, atomically, while others may read and write."""
        ...

    def restore(self, path: Path) -> None:
        """Replace the content by that of a snapshot."""
        ...

    def stats(self) -> dict[str, float]:
        """Counts for logs and people: tips, namespaces, bytes."""
        ...


@runtime_checkable
class AsyncMemory(Memory, Protocol):
    """A memory whose search may take long, for example with a neural embedder. Episodes call `find` where it is."""

    async def search_async(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """What `search` returns, without holding up the event loop."""
        ...


@runtime_checkable
class VersionedMemory(Memory, Protocol):
    """A memory that others may write to while an iteration plays, whose prompts are to show one version of it."""

    def pin_version(self) -> Memory:
        """A reader of the memory as it is now, whatever is written meanwhile, but for what it reports itself."""
        ...


@runtime_checkable
class ScopedMemory(Memory, Protocol):
    """A memory that may find tips of other tasks than the one that asks. `run_groups` calls `meet` before it plays."""

    def register_tasks(self, tasks: Sequence[Task]) -> bool:
        """Hear where `tasks` belong, which are about to be played; returns whether anything of it was new.

        Raises:
            ConfigError: a task does not say what the memory is set to go by.
        """
        ...


@runtime_checkable
class FeedbackMemory(Memory, Protocol):
    """A memory that hears how those fared who read its tips. `run_groups` calls `report` once its episodes ended."""

    def report(self, episodes: Sequence[Trajectory], *, once: str = "") -> None:
        """Take in how `episodes` ended; `Step.tips` says what they were shown, and none of them failed.

        Those of a group that were shown no tips are among them, so that the others can be compared.

        `once` names the batch: one of that name that was reported before, perhaps before a restart, is not again.
        """
        ...


@runtime_checkable
class TipEffectMemory(Memory, Protocol):
    """A memory that hears what its tips still change, from a training that scores actions without tips, too."""

    def record_effects(self, readings: Sequence[TipEffect], *, once: str = "") -> None:
        """Take in what tips changed in episodes that did well, in the order of these; `once` as for `report`."""
        ...
