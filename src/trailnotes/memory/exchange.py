"""What a person does with a memory file: look, search, edit, switch on and off, export, import, go back.

Tips are their owner's property: one JSON object a line, readable without this program.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from trailnotes.config.schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory.retrieval import Embedder, make_embedder
from trailnotes.memory.schema import Identity, opened_snapshot, read_sequence
from trailnotes.memory.store import TipStore
from trailnotes.memory.tips import TipMemory, clean_tip
from trailnotes.storage.files import write_text_atomic
from trailnotes.types import StrPath, Tip

FILE_NAME = "memory.db"
TYPES = {name: kind for name, kind in get_type_hints(Tip).items() if name != "id"}
REQUIRED = [field.name for field in fields(Tip) if field.default is MISSING]
NAMED_LINES = 10  # malformed lines that an error spells out
REEMBED_BATCH = 256


class Imported(NamedTuple):
    """What an import did."""

    added: int
    known: int  # an earlier import had brought the same text under the same key


def open_store(path: StrPath) -> TipStore:
    """The existing memory file `path`, or the one of the run directory `path`."""
    path = Path(path)
    return TipStore(path / FILE_NAME if path.is_dir() else path)


def list_tips(store: TipStore, namespace: str | None = None, *, limit: int = 0) -> list[Tip]:
    """Tips, the newest first; `limit` 0 gives all."""
    return store.tips(namespace)[::-1][: limit or None]


def namespaces(store: TipStore) -> dict[str, int]:
    """Number of tips of each namespace, in the order of the names."""
    names = sorted(tip.namespace for tip in store.tips())
    return {name: names.count(name) for name in dict.fromkeys(names)}


def show_tip(store: TipStore, tip_id: int) -> Tip:
    """One tip.

    Raises:
        MemoryStoreError: there is no tip of this id.
    """
    tip = store.tip(tip_id)
    if tip is None:
        raise MemoryStoreError(f"{store.path} has no tip {tip_id}: `trailnotes memory list` shows the ids")
    return tip


def search_tips(store: TipStore, namespace: str, query: str, top_k: int = 10, threshold: float = -1.0) -> list[Tip]:
    """The tips most similar to `query`, by the embedder that the file was made with."""
    config = MemoryConfig(embedder=store.identity.name, threshold=threshold, order=("similarity",))
    return TipMemory(store, make_embedder(config.embedder), config).search(namespace, query, top_k)


def delete_tips(store: TipStore, ids: Iterable[int]) -> int:
    """Delete all of `ids`, or none if one does not exist; returns how many."""
    wanted = list(dict.fromkeys(ids))
    with store.transaction():
        for tip_id in wanted:
            show_tip(store, tip_id)
        return store.delete(wanted)


def edit_tip(store: TipStore, tip_id: int, text: str) -> Tip:
    """Replace a tip's text; it is found by the same key as before.

    Raises:
        MemoryStoreError: no such tip, or a text without any letter or digit.
    """
    cleaned = clean_tip(text)
    if not cleaned:
        raise MemoryStoreError("a tip needs a letter or digit: use `trailnotes memory delete` to remove it")
    with store.transaction():
        edited = replace(show_tip(store, tip_id), text=cleaned)
        store.update(edited)
    return edited


def enable_tips(store: TipStore, ids: Iterable[int], *, enabled: bool = True) -> int:
    """Let tips be retrieved, or not; returns how many changed."""
    changed = 0
    with store.transaction():
        for tip_id in ids:
            tip = show_tip(store, tip_id)
            if tip.enabled != enabled:
                store.update(replace(tip, enabled=enabled))
                changed += 1
    return changed


def export_tips(store: TipStore, path: StrPath, namespace: str | None = None, *, after: int = 0) -> int:
    """Write tips as JSONL, the oldest first, atomically; vectors stay behind. Returns how many.

    Args:
        store: where from.
        path: the file to write or replace.
        namespace: only this one.
        after: only what was written after the store's `sequence` had this value.
    """
    tips = store.tips(namespace, after=after)
    try:
        write_text_atomic(Path(path), "".join(json.dumps(asdict(tip), ensure_ascii=False) + "\n" for tip in tips))
    except OSError as error:
        raise MemoryStoreError(f"cannot write {path} ({error.strerror}): nothing was exported") from error
    return len(tips)


def import_tips(
    store: TipStore, path: StrPath, *, enable: bool = False, capacity: int = 1000, embedder: Embedder | None = None
) -> Imported:
    """Add the tips of a JSONL file, marked as imported, in one transaction.

    Args:
        store: where to.
        path: one object a line with the fields of `Tip`; `id`, `imported` and `enabled` are ours to set.
        enable: let them be retrieved at once; otherwise they wait for `enable_tips`.
        capacity: enabled tips that a namespace may hold.
        embedder: of the store; None makes it.

    Raises:
        MemoryStoreError: the file cannot be read, or has malformed lines, which are named; nothing is added then.
    """
    tips = [replace(tip, imported=True, enabled=enable) for tip in read_tips(path)]
    config = MemoryConfig(
        embedder=store.identity.name, capacity=capacity, duplicates="reject", entries="step", order=()
    )
    memory = TipMemory(store, embedder or make_embedder(config.embedder), config, clock=lambda: "")
    added = memory.add(tips)
    return Imported(added, len(tips) - added)


def read_tips(path: StrPath) -> list[Tip]:
    """The tips of a JSONL file; blank lines are skipped.

    Raises:
        MemoryStoreError: the file cannot be read, or has malformed lines, named by number.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise MemoryStoreError(f"cannot read {path} ({error.strerror})") from error
    tips, faults = [], []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                tips.append(_tip_of(line))
            except (ValueError, RecursionError) as error:
                faults.append(f"line {number}: {error}")
    if faults:
        more = f"; and {len(faults) - NAMED_LINES} more" if len(faults) > NAMED_LINES else ""
        raise MemoryStoreError(
            f"{path} has {len(faults)} malformed lines, nothing was imported: fix or remove "
            f"{'; '.join(faults[:NAMED_LINES])}{more}"
        )
    return tips


def rewind(memory: TipMemory, snapshot: Path | None, aside: Path) -> int:
    """Go back to a snapshot, or to an empty memory, and keep what was written since as JSONL in `aside`.

    Returns:
        How many tips were set aside; with 0 no file is written.
    """
    after = 0
    if snapshot is not None:
        with opened_snapshot(snapshot) as source:
            after = read_sequence(source)
        if memory.store.sequence == after:
            return 0  # no tip came since; what its owner edited or switched meanwhile stays
    late = memory.store.tips(after=after)
    if late:
        export_tips(memory.store, aside, after=after)
    if snapshot is not None:
        memory.restore(snapshot)
    else:
        with memory.store.transaction():
            memory.store.clear()
    return len(late)


def reembed(path: StrPath, name: str, *, make: Callable[[str], Embedder] = make_embedder) -> int:
    """Compute all vectors of a memory file afresh with the embedder `name`; returns how many."""
    embedder = make(name)
    store = open_store(path)
    try:
        with store.transaction():
            tips = store.tips()
            batches = [tips[start : start + REEMBED_BATCH] for start in range(0, len(tips), REEMBED_BATCH)]
            vectors = [vector for batch in batches for vector in embedder.embed([tip.key for tip in batch])]
            store.set_vectors(Identity(embedder.name, embedder.dim), tips, vectors)
    finally:
        store.close()
    return len(tips)


def _tip_of(line: bytes) -> Tip:
    """Parse one line; ValueError says what is wrong with it."""
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 (read_tips names the line)
    record.pop("id", None)
    if unknown := sorted(set(record) - set(TYPES)):
        raise ValueError(f"unknown field {unknown[0]!r}")
    if missing := [name for name in REQUIRED if name not in record]:
        raise ValueError(f"no field {missing[0]!r}")
    values = {name: _value(name, value) for name, value in record.items()}
    if not clean_tip(values["text"]):
        raise ValueError("its text has no letter or digit")
    return Tip(**values)


def _value(name: str, value: Any) -> Any:
    kind = TYPES[name]
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 2**1000 else math.inf
    if type(value) is not kind:
        raise ValueError(f"{name} must be {kind.__name__}, got {type(value).__name__}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{name} must be finite")
    if kind is int and abs(value) >= 2**31:
        raise ValueError(f"{name} is out of range")
    return value
