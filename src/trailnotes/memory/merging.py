"""Memories beside each other: several made one, and what is in one and not in the other.

Merging is the join of a semilattice: in any order, grouped in any way, and done again, it gives the same tips.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory.retrieval import load_file_embedder, make_embedder
from trailnotes.memory.schema import EmbedderIdentity, open_snapshot, read_identity
from trailnotes.memory.scope import TaskRow, read_tasks
from trailnotes.memory.tipfile import is_memory_file, read_tips, resolve_memory_file
from trailnotes.memory.tips import normalize_tip, open_memory
from trailnotes.storage.files import open_regular
from trailnotes.types import StrPath, Tip

TipPair = tuple[Tip, Tip]
IGNORED_FIELDS = {"id", "imported"}  # of the memory, not of the tip
DEFAULT_EMBEDDER = "hashing"  # of a memory that is made of files without vectors


class MergeResult(NamedTuple):
    """What a merge did."""

    tips: int  # in the new memory
    read: int  # in its sources, those that several have counted for each


class MemoryDiff(NamedTuple):
    """What two memories do not have in common."""

    only_here: list[Tip]
    only_there: list[Tip]
    changed: list[TipPair]  # here, there
    same: int


def merge(out: StrPath, sources: Sequence[StrPath], *, embedder: str = "") -> MergeResult:
    """Write a new memory file with the tips of all `sources`, atomically; these stay as they are.

    What was learnt about tasks (`TaskTable`) comes along; what came of readers does not, and neither does capacity
    count: the next run that writes drops what is too much.

    Args:
        out: the file to make.
        sources: as for `read_tips`.
        embedder: of the new memory; by default that of the memory files among `sources`, as far as `load_file_embedder` loads
            it for them.

    Raises:
        ConfigError: as `load_file_embedder`.
        MemoryStoreError: `out` is there already, a source cannot be read, or they have several embedders and none is
            named. Nothing is written then.
    """
    if Path(out).exists():
        raise MemoryStoreError(f"{out} is there already: name a new file, or add to it by `trailnotes memory import`")
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
    """The tips of all, each once, cleaned, as they are to be stored: the oldest first.

    The same text under the same key of a task is one tip; own ones and imported ones stay apart, as in a store. It
    keeps its first author and action, the best score, the most support, and is enabled if nobody switched it off.
    """
    groups: dict[Hashable, list[Tip]] = defaultdict(list)
    for tip in (clean for tips in memories for tip in tips if (clean := normalize_tip(tip, lambda: ""))):
        groups[_identity_key(tip)].append(tip)
    return sorted(map(_merge_duplicates, groups.values()), key=lambda tip: (tip.created, tip.step, *_identity_key(tip)))


def diff_tips(here: Sequence[Tip], there: Sequence[Tip]) -> MemoryDiff:
    """What two collections of tips do not have in common.

    A tip and its counterpart have the same text and key, own or imported; or else the same text; or else the same
    author and key, as one that was edited. Each has one counterpart at most, and ids say nothing.
    """
    pairs: list[TipPair] = []
    for sign in (_identity_key, _content_key, _text_key, _author_key):
        found, here, there = _pair_tips(here, there, sign)
        pairs += found
    changed = [(ours, theirs) for ours, theirs in pairs if diff_fields(ours, theirs)]
    return MemoryDiff(list(here), list(there), changed, len(pairs) - len(changed))


def diff_fields(here: Tip, there: Tip) -> dict[str, tuple[Any, Any]]:
    """Field -> its value here and there, of those that differ."""
    names = [field.name for field in fields(Tip) if field.name not in IGNORED_FIELDS]
    values = {name: (getattr(here, name), getattr(there, name)) for name in names}
    return {name: both for name, both in values.items() if both[0] != both[1]}


def _pair_tips(
    here: Sequence[Tip], there: Sequence[Tip], sign: Callable[[Tip], Hashable]
) -> tuple[list[TipPair], list[Tip], list[Tip]]:
    """Pairs of the same sign, in the order of each side, and what is left of both."""
    waiting: dict[Hashable, list[Tip]] = defaultdict(list)
    for tip in reversed(there):
        waiting[sign(tip)].append(tip)
    pairs, alone = [], []
    for tip in here:
        if found := waiting[sign(tip)]:
            pairs.append((tip, found.pop()))
        else:
            alone.append(tip)
    taken = {id(theirs) for _, theirs in pairs}
    return pairs, alone, [tip for tip in there if id(tip) not in taken]


def _identity_key(tip: Tip) -> tuple[str, str, str, bool]:
    return tip.namespace, tip.text, tip.key, tip.imported


def _content_key(tip: Tip) -> Hashable:
    return tip.namespace, tip.text, tip.key


def _text_key(tip: Tip) -> Hashable:
    return tip.namespace, tip.text


def _author_key(tip: Tip) -> Hashable:
    return tip.namespace, tip.key, *_provenance_key(tip)


def _provenance_key(tip: Tip) -> tuple[Any, ...]:
    return tip.created, tip.step, tip.run, tip.model, tip.version, tip.action


def _merge_duplicates(same: Sequence[Tip]) -> Tip:
    """What several memories know of one tip. One without a time is older than any that has one."""
    best = max(same, key=lambda tip: (tip.score, tip.max_score))
    return replace(
        min(same, key=_provenance_key), id=None, score=best.score, max_score=best.max_score,
        support=max(tip.support for tip in same), enabled=all(tip.enabled for tip in same),
    )  # fmt: skip


def _read_tasks_and_identities(paths: Sequence[Path]) -> tuple[list[TaskRow], set[EmbedderIdentity]]:
    """The tasks that the memory files among `paths` have met, and whose vectors they hold."""
    tasks: list[TaskRow] = []
    identities = set()
    for path in paths:
        if not _has_vectors(path):
            continue
        with open_snapshot(path) as source:
            tasks += read_tasks(source)
            identities.add(read_identity(source))
    return tasks, identities


def _has_vectors(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return is_memory_file(file)
    except OSError as error:
        raise MemoryStoreError(f"cannot read {path} ({error.strerror})") from error
