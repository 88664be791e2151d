"""Merging several memories into one.

Merging is the join of a semilattice: commutative, associative and idempotent.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory.retrieval import load_file_embedder, make_embedder
from trailnotes.memory.schema import EmbedderIdentity, open_snapshot, read_identity
from trailnotes.memory.scope import TaskRow, read_tasks
from trailnotes.memory.tipfile import is_memory_file, read_tips, resolve_memory_file
from trailnotes.memory.tips import normalize_tip, open_memory
from trailnotes.types import StrPath, Tip

DEFAULT_EMBEDDER = "hashing"  # of a memory that is made of files without vectors


class MergeResult(NamedTuple):
    """The counts of a merge."""

    tips: int  # in the new memory
    read: int  # in its sources, those that several have counted for each


def merge(out: StrPath, sources: Sequence[StrPath], *, embedder: str = "") -> MergeResult:
    """Write a new memory file with the tips of all `sources`, atomically; the sources stay unchanged.

    The task table (`TaskTable`) comes along; reader statistics do not. Capacity does not apply: the next run that
    writes evicts the excess.

    Args:
        out: the file to make.
        sources: as for `read_tips`.
        embedder: of the new memory; by default that of the memory files among `sources`, if `load_file_embedder` may
            load it.

    Raises:
        ConfigError: as `load_file_embedder`.
        MemoryStoreError: `out` exists, a source cannot be read, or the sources have several embedders and you name
            none. Nothing is written then.
    """
    if Path(out).exists():
        raise MemoryStoreError(f"{out} exists: name a new file, or add to it by `trailnotes memory import`")
    paths = [resolve_memory_file(source) for source in sources]
    tasks, identities = _read_tasks_and_identities(paths)
    if not embedder and len(identities) > 1:
        names = ", ".join(f"{name} ({dim} dimensions)" for name, dim in sorted(identities))
        raise MemoryStoreError(f"the memories have vectors of {names}: say by --embedder which the new one is to have")
    collections = [read_tips(path) for path in paths]
    tips = merge_tips(*collections)
    held = next((each.name for each in identities), DEFAULT_EMBEDDER)
    vectors = make_embedder(embedder) if embedder else load_file_embedder(held)
    config = MemoryConfig(duplicates="reject", entries="step", capacity=sys.maxsize)
    with open_memory(None, config, clock=lambda: "", embedder=vectors) as memory:
        memory.add(tips)
        memory.store.import_tasks(tasks)
        memory.snapshot(Path(out))
    return MergeResult(len(tips), sum(map(len, collections)))


def merge_tips(*memories: Iterable[Tip]) -> list[Tip]:
    """Return the tips of all memories, each once, cleaned as a memory stores them, the oldest first.

    The same text under the same key of a task is one tip; own and imported tips stay apart, as in a store. A merged tip
    has its first author and action, the best score, the most support, and is enabled if all its copies are.
    """
    groups: dict[Hashable, list[Tip]] = defaultdict(list)
    for tip in (clean for tips in memories for tip in tips if (clean := normalize_tip(tip, lambda: ""))):
        groups[_identity_key(tip)].append(tip)
    merged = []
    for same in groups.values():
        best = max(same, key=lambda tip: (tip.score, tip.max_score))
        # A copy without a time is older than any that has one.
        first = min(same, key=lambda tip: (tip.created, tip.step, tip.run, tip.model, tip.version, tip.action))
        merged.append(replace(
            first, id=None, score=best.score, max_score=best.max_score,
            support=max(tip.support for tip in same), enabled=all(tip.enabled for tip in same),
        ))  # fmt: skip
    return sorted(merged, key=lambda tip: (tip.created, tip.step, *_identity_key(tip)))


def _identity_key(tip: Tip) -> tuple[str, str, str, bool]:
    return tip.namespace, tip.text, tip.key, tip.imported


def _read_tasks_and_identities(paths: Sequence[Path]) -> tuple[list[TaskRow], set[EmbedderIdentity]]:
    tasks: list[TaskRow] = []
    identities = set()
    for path in filter(is_memory_file, paths):
        with open_snapshot(path) as source:
            tasks += read_tasks(source)
            identities.add(read_identity(source))
    return tasks, identities
