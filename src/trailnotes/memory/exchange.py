"""The owner's operations on a memory file: list, search, add, edit, switch, export, import.

Tips belong to their owner, readable without this program (`tipfile`). Every change is recorded with the file
(`TipStore.record_owner_change`), so that a run that rewinds to a checkpoint replays it (`owner.rewind_to_snapshot`).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory.retrieval import Embedder, load_file_embedder, make_embedder
from trailnotes.memory.schema import EmbedderIdentity
from trailnotes.memory.scope import Scope
from trailnotes.memory.store import OwnerChange, TipStore
from trailnotes.memory.tipfile import is_memory_file, iter_tips, resolve_memory_file, write_tips
from trailnotes.memory.tips import SearchHit, TipMemory, clean_tip, utc_now
from trailnotes.storage.checkpoint import META
from trailnotes.types import StrPath, Tip

MAX_NAMED_NAMESPACES = 10  # namespaces that an error spells out
REEMBED_BATCH = 256
IMPORT_BATCH = 10_000

TipOrder = Literal["recency", "score", "shown", "worth"]


class ImportResult(NamedTuple):
    """The counts of an import."""

    added: int
    known: int  # the memory had the same text under the same key


def open_store(path: StrPath, identity: EmbedderIdentity | None = None) -> TipStore:
    """Open the memory file `path`, or that of the run directory `path`; with `identity` it is made if it is missing.

    A memory file in a checkpoint is refused, since opening would change it.
    """
    file = resolve_memory_file(path)
    if (file.parent / META).is_file():
        raise MemoryStoreError(
            f"{file.parent} is a checkpoint, which must not change: name the run directory, or a copy"
        )
    if file.exists() and not is_memory_file(file):
        raise MemoryStoreError(f"{file} is no memory file: `trailnotes memory import` adds a file of tips to one")
    return TipStore(file, identity)


def create_store(path: StrPath, embedder: str) -> TipStore:
    """Make a new memory file without tips, for vectors of the embedder of this name."""
    if Path(path).exists():
        raise MemoryStoreError(f"{path} exists: name a new file")
    made = make_embedder(embedder)
    return TipStore(path, EmbedderIdentity(made.name, made.dim))


def list_tips(
    store: TipStore, namespace: str | None = None, *, limit: int = 0, by: TipOrder = "recency", retired: bool = False
) -> list[Tip]:
    """List tips, the newest first, or the best `by` score, number of readers, or gain of readers.

    Tips that are not retired, or with `retired` those that are; `limit` 0 gives all.
    """
    if namespace is not None:
        require_namespace(store, namespace)
    return store.list_sorted(namespace, by, limit, retired=retired)


def require_namespace(store: TipStore, namespace: str) -> None:
    """Raise `MemoryStoreError`, which names similar namespaces, where `namespace` has no tip."""
    names = store.count_by_namespace()
    if namespace not in names:
        near = f": it has tips of {', '.join(find_similar_names(names, namespace))} ..." if names else ""
        raise MemoryStoreError(f"{store.path} has no tip of {namespace!r}{near}")


def find_similar_names(names: Iterable[str], wanted: str) -> list[str]:
    """Return the few of `names` that are most like `wanted`."""
    return difflib.get_close_matches(wanted, list(names), MAX_NAMED_NAMESPACES, 0.0)


def require_tip(store: TipStore, tip_id: int) -> Tip:
    tip = store.get_tip(tip_id) if 0 < tip_id < 2**63 else None  # SQLite counts no further
    if tip is None:
        raise MemoryStoreError(f"{store.path} has no tip {tip_id}: `trailnotes memory list` shows the ids")
    return tip


def search_tips(
    store: TipStore, namespace: str, query: str, top_k: int = 10, threshold: float = -1.0, scope: Scope = "task",
    *, embedder: str = "",
) -> list[SearchHit]:  # fmt: skip
    """Search the enabled tips most similar to `query`, by the embedder of the file, in the scope of a task.

    `embedder` is as `named` of `load_file_embedder`.
    """
    if scope == "task" or store.get_task_info(namespace) is None:
        require_namespace(store, namespace)
    memory = _make_memory(store, MemoryConfig(threshold=threshold, scope=scope), embedder)
    return memory.search_nearest(namespace, query, top_k)


def add_tip(
    store: TipStore, namespace: str, text: str, *,
    key: str | None = None, score: float | None = None, enabled: bool = True, config: MemoryConfig | None = None,
) -> Tip:  # fmt: skip
    """Store a tip of the owner, and return it as it is stored.

    Args:
        store: the memory file.
        namespace: id of the task that it belongs to.
        text: the advice.
        key: its retrieval key; by default its own text.
        score: a score above the highest known becomes the highest; by default that of the best tip of the namespace,
            or 1 for the first.
        enabled: whether it is shown.
        config: rules of eviction, and in `embedder` the one that the user names, as for `load_file_embedder`; default
            settings if None.

    Raises:
        MemoryStoreError: a text without any letter or digit, or that the memory has under this key.
    """
    if not clean_tip(text):
        raise MemoryStoreError("a tip needs a letter or digit: write what the agent should know")
    likely, most = store.get_best_score(namespace)
    score = likely if score is None else _require_finite(score)
    tip = Tip(
        namespace, text, text if key is None else key, score, max(score, most),
        model="by hand", enabled=enabled,
    )  # fmt: skip
    return add_new_tip(_make_memory(store, config), tip)


def add_new_tip(memory: TipMemory, tip: Tip) -> Tip:
    """Add one tip as `add_imported` does, and return it as it is stored; raises where the memory has it."""
    before = memory.store.sequence
    if not add_imported(memory, [replace(tip, created=utc_now())]).added:
        raise MemoryStoreError(f"{tip.namespace} has this tip already, under the same key: nothing was added")
    return memory.store.load_tips(after=before)[-1]


def delete_tips(store: TipStore, ids: Iterable[int]) -> int:
    """Delete all of `ids`, or none if one does not exist; return how many."""
    wanted = list(dict.fromkeys(ids))
    with store.transaction():
        for tip_id in wanted:
            require_tip(store, tip_id)
            store.record_owner_change(OwnerChange(tip_id, None))
        return store.delete(wanted)


def edit_tip(store: TipStore, tip_id: int, text: str | None = None, *, score: float | None = None) -> Tip:
    """Replace a tip's text, its score, or both; its retrieval key stays.

    A score above the highest known becomes the highest.
    """
    fields: dict[str, Any] = {}
    if text is not None:
        fields["text"] = clean_tip(text)
        if not fields["text"]:
            raise MemoryStoreError("a tip needs a letter or digit: use `trailnotes memory delete` to remove it")
    if score is not None:
        fields["score"] = _require_finite(score)
    if not fields:
        raise MemoryStoreError("nothing to change: give a text, a score, or both")
    with store.transaction():
        tip = require_tip(store, tip_id)
        if score is not None and score > tip.max_score:
            fields["max_score"] = fields["score"]
        edited = replace(tip, **fields)
        store.update(edited)
        store.record_owner_change(OwnerChange(tip_id, fields))
    return edited


def enable_tips(store: TipStore, ids: Iterable[int], *, enabled: bool = True) -> int:
    """Enable or disable tips; return how many changed.

    Enabling a retired tip makes it the newest; disabling one keeps it off for good, even if it is written again.
    """
    with store.transaction():
        changed = [i for i in ids if set_tip_enabled(store, require_tip(store, i), enabled=enabled)]
        for tip_id in changed:
            store.record_owner_change(OwnerChange(tip_id, {"enabled": enabled}))
    return len(changed)


def enable_all(store: TipStore, *, enabled: bool = True) -> int:
    """Enable or disable all tips that are not retired, in two statements however many there are."""
    with store.transaction():
        return store.set_all_enabled(enabled=enabled)


def set_tip_enabled(store: TipStore, tip: Tip, *, enabled: bool) -> bool:
    """Enable or disable one tip within a transaction; return whether it changed."""
    retired = tip.id in store.load_retirements(tip.id)
    if tip.enabled == enabled and not retired:
        return False
    store.update(replace(tip, enabled=enabled), refresh=retired and enabled, settled=True)
    return True


def export_tips(store: TipStore, path: StrPath, namespace: str | None = None) -> int:
    """Export tips as JSONL, the oldest first, atomically, without vectors and retired tips; return how many."""
    tips = list_tips(store, namespace)[::-1]
    write_tips(path, tips, memory=store.lineage)
    return len(tips)


def import_tips(
    store: TipStore, path: StrPath, *, enable: bool = False, config: MemoryConfig | None = None
) -> ImportResult:
    """Add the tips of a file or memory, marked as imported.

    The whole file is checked before the first tip is added. Each transaction adds `IMPORT_BATCH` tips, so that other
    writers need not wait for all of them, and after an interruption the same call continues.

    Args:
        store: the memory file.
        path: as for `read_tips`; `id`, `imported` and `enabled` of its tips are set anew.
        enable: retrieve them at once; otherwise they wait for `enable_tips`.
        config: as for `add_tip`.

    Raises:
        MemoryStoreError: the file cannot be read, is the memory itself, or has malformed lines, which are named;
            nothing is added then.
    """
    file = resolve_memory_file(path)
    if store.path is not None and file.exists() and file.samefile(store.path):
        raise MemoryStoreError(f"{path} is the memory itself: name another file, or another run")
    memory = _make_memory(store, config)
    total, added = sum(1 for _ in iter_tips(file)), 0
    tips = (replace(tip, enabled=enable) for tip in iter_tips(file))
    while batch := list(islice(tips, IMPORT_BATCH)):
        added += add_imported(memory, batch).added
    return ImportResult(added, total - added)


def add_imported(memory: TipMemory, tips: Sequence[Tip]) -> ImportResult:
    """Add tips that no policy of this memory wrote, marked as imported.

    The same text under the same key is added once only, and not at all where the memory has its own tip like it.
    """
    config = memory.config.model_copy(update={"duplicates": "reject", "entries": "step"})
    own = TipMemory(memory.store, memory.embedder, config, clock=lambda: "")
    added = own.add([replace(tip, id=None, imported=True) for tip in tips], by_owner=True)
    return ImportResult(added, len(tips) - added)


def reembed(path: StrPath, name: str, *, make: Callable[[str], Embedder] = make_embedder) -> int:
    """Recompute all vectors of a memory file with the embedder `name`; return their number."""
    embedder = make(name)
    with open_store(path) as store, store.transaction():
        tips = store.load_tips()
        batches = [tips[start : start + REEMBED_BATCH] for start in range(0, len(tips), REEMBED_BATCH)]
        vectors = [vector for batch in batches for vector in embedder.embed([tip.key for tip in batch])]
        store.set_vectors(EmbedderIdentity(embedder.name, embedder.dim), tips, vectors)
    return len(tips)


def _require_finite(score: float) -> float:
    if not math.isfinite(score):
        raise MemoryStoreError(f"a tip's score must be a finite number, got {score}")
    return score


def _make_memory(store: TipStore, config: MemoryConfig | None, embedder: str = "") -> TipMemory:
    config = config or MemoryConfig()
    return TipMemory(store, load_file_embedder(store.identity.name, embedder or config.embedder), config)
