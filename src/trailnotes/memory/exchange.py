"""The owner's operations on a memory file (list, search, add, edit, switch, export, import), and rewinding a run.

Every change of the owner is recorded with the file (`TipStore.record_owner_change`). A resumed run repeats everything
after its checkpoint, so it drops the tips that it wrote since, and replays these changes on those of the checkpoint.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trailnotes.config.schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory import schema
from trailnotes.memory.retrieval import Embedder, load_file_embedder, make_embedder
from trailnotes.memory.schema import EmbedderIdentity
from trailnotes.memory.scope import Scope
from trailnotes.memory.store import SELECT_ITEM, ItemRow, OwnerChange, TipStore, build_addition
from trailnotes.memory.tipfile import is_memory_file, iter_tips, resolve_memory_file, write_tips
from trailnotes.memory.tips import SearchHit, TipMemory, clean_tip, normalize_tip, quoted, utc_now
from trailnotes.storage.checkpoint import META
from trailnotes.types import MAX_MAGNITUDE, StrPath, Tip

MAX_NAMED_NAMESPACES = 10  # namespaces that an error spells out
IMPORT_BATCH = 10_000

TipOrder = Literal["recency", "score", "shown", "worth"]


class ImportResult(NamedTuple):
    added: int
    known: int  # the memory had the same text under the same key


def open_store(path: StrPath, identity: EmbedderIdentity | None = None) -> TipStore:
    """Open the memory file `path`, or that of the run directory `path`; with `identity` it is made if it is missing."""
    file = resolve_memory_file(path)
    if (file.parent / META).is_file():  # opening it would change it
        raise MemoryStoreError(f"{file.parent} is a checkpoint: name the run directory, or a copy")
    if file.exists() and not is_memory_file(file):
        raise MemoryStoreError(f"{file} is no memory file: `trailnotes memory import` adds a file of tips to one")
    return TipStore(file, identity)


def create_store(path: StrPath, embedder: str) -> TipStore:
    if Path(path).exists():
        raise MemoryStoreError(f"{path} exists: name a new file")
    made = make_embedder(embedder)
    return TipStore(path, EmbedderIdentity(made.name, made.dim))


def list_tips(
    store: TipStore, namespace: str | None = None, *, limit: int = 0, by: TipOrder = "recency", retired: bool = False
) -> list[Tip]:
    """List tips, or with `retired` the retired ones, by a key of `LIST_ORDERS`; `limit` 0 gives all."""
    if limit < 0:
        raise MemoryStoreError(f"a limit of {limit} tips means nothing: give a number, or 0 for all")
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
    return difflib.get_close_matches(wanted, list(names), MAX_NAMED_NAMESPACES, 0.0)


def require_tip(store: TipStore, tip_id: int) -> Tip:
    tip = store.get_tip(tip_id) if 0 < tip_id < 2**63 else None  # SQLite counts no further
    if tip is None:
        raise MemoryStoreError(f"{store.path} has no tip {tip_id}: `trailnotes memory list` shows the ids")
    return tip


def search_tips(
    store: TipStore, namespace: str, query: str, top_k: int = 10, scope: Scope = "task", *, embedder: str = "",
) -> list[SearchHit]:  # fmt: skip
    """Search the enabled tips most similar to `query`, by the embedder of the file, in the scope of a task."""
    if top_k < 1:
        raise MemoryStoreError(f"a search for {top_k} tips finds nothing: ask for 1 or more")
    if scope == "task" or store.tasks.get_info(namespace) is None:
        require_namespace(store, namespace)
    memory = _make_memory(store, MemoryConfig(threshold=-1.0, scope=scope), embedder)
    return memory.search_nearest(namespace, query, top_k)


def add_tip(
    store: TipStore, namespace: str, text: str, *,
    key: str | None = None, score: float | None = None, enabled: bool = True, config: MemoryConfig | None = None,
) -> Tip:  # fmt: skip
    """Store a tip of the owner, and return it as it is stored; raises where the memory has it under this key.

    `key` is by default the text, `score` that of the best tip of the namespace, or 1 for the first; `config` has the
    rules of eviction, and the embedder that the user names.
    """
    if not namespace.strip():
        raise MemoryStoreError("a tip needs a task")
    if not clean_tip(text):
        raise MemoryStoreError("a tip needs a letter or digit: write what the agent should know")
    likely, most = store.get_best_score(namespace)
    score = likely if score is None else _require_finite(score)
    key = text if key is None else key
    tip = Tip(namespace, text, key, score, max(score, most), model="by hand", enabled=enabled)
    return add_new_tip(_make_memory(store, config), tip)


def add_new_tip(memory: TipMemory, tip: Tip) -> Tip:
    """Add one tip as `add_imported` does, and return it as it is stored; raises where the memory has it."""
    if not add_imported(memory, [replace(tip, created=utc_now())]):
        raise MemoryStoreError(f"{quoted(tip.namespace)} has this tip already, under the same key: nothing was added")
    stored = normalize_tip(replace(tip, imported=True), utc_now)
    assert stored is not None, "it was added"
    return require_tip(memory.store, memory.store.find_duplicate(stored, same=["key"]) or 0)


def delete_tips(store: TipStore, ids: Iterable[int]) -> int:
    """Delete all of `ids`, or none if one does not exist; return how many."""
    with store.transaction():
        for tip_id in (wanted := dict.fromkeys(ids)):
            require_tip(store, tip_id)
            store.record_owner_change(OwnerChange(tip_id, None))
        return store.delete(wanted)


def edit_tip(store: TipStore, tip_id: int, text: str | None = None, *, score: float | None = None) -> Tip:
    """Replace a tip's text, its score, or both; a score above the highest known becomes the highest."""
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


def set_tip_enabled(store: TipStore, tip: Tip, *, enabled: bool) -> bool:
    """Enable or disable one tip within a transaction; return whether it changed."""
    retired = tip.id in store.load_retirements(tip.id)
    if tip.enabled == enabled and not retired:
        return False
    store.update(replace(tip, enabled=enabled), refresh=retired and enabled, settled=True)
    return True


def export_tips(store: TipStore, path: StrPath, namespace: str | None = None) -> int:
    """Export tips as JSONL, the oldest first, atomically, without vectors; return how many.

    Retired tips are left out, and so are those that were switched off, unless these were imported, and may just wait.
    Another file at `path` is replaced, unless it is a memory file.
    """
    if Path(path).is_file() and is_memory_file(Path(path)):
        raise MemoryStoreError(f"{path} is a memory file, which an export would replace: name another file")
    tips = [tip for tip in list_tips(store, namespace)[::-1] if tip.enabled or tip.imported]
    _refuse_items(path, [item for item in store.load_items() if namespace in {None, item.dotted_namespace}])
    write_tips(path, tips, memory=store.lineage)
    return len(tips)


def import_tips(
    store: TipStore, path: StrPath, *, enable: bool = False, config: MemoryConfig | None = None
) -> ImportResult:
    """Add the tips of a file or memory, marked as imported.

    The whole file is checked before the first tip is added; each transaction adds `IMPORT_BATCH` tips. Unless `enable`
    is set they wait for `enable_tips`; `config` is as for `add_tip`.

    Raises:
        MemoryStoreError: the file cannot be read, is the memory itself, or has malformed lines; nothing is added then.
    """
    file = resolve_memory_file(path)
    if store.path is not None and file.exists() and file.samefile(store.path):
        raise MemoryStoreError(f"{path} is the memory itself: name another file, or another run")
    if is_memory_file(file):
        with schema.open_snapshot(file, every_page=False) as source:
            _refuse_items(file, [ItemRow(*row) for row in source.execute(SELECT_ITEM)])
    memory = _make_memory(store, config)
    total, added = sum(1 for _ in iter_tips(file)), 0
    tips = (replace(tip, enabled=enable) for tip in iter_tips(file))
    while batch := list(islice(tips, IMPORT_BATCH)):
        added += add_imported(memory, batch)
    return ImportResult(added, total - added)


def _refuse_items(path: StrPath, items: Sequence[ItemRow]) -> None:
    """Refuse to carry values of a LangGraph store, which are more than their tips."""
    if items:
        names = ", ".join(sorted({item.dotted_namespace for item in items})[:MAX_NAMED_NAMESPACES])
        raise MemoryStoreError(
            f"{path}: {len(items)} values of a LangGraph store ({names}) are no tips, and would be lost: copy the "
            "memory file, or name another task with --namespace"
        )


def delete_namespace(store: TipStore, namespace: str) -> int:
    """Delete all tips of a task, retired ones too, and the values of a LangGraph store there; return how many tips."""
    with store.transaction():
        for item in store.load_items():
            if item.dotted_namespace == namespace:
                store.put_item(item.namespace, item.key, None, None)
    return delete_tips(store, [tip.id for tip in store.load_tips(namespace) if tip.id is not None])


def add_imported(memory: TipMemory, tips: Sequence[Tip]) -> int:
    """Add tips that no policy of this memory wrote, marked as imported; return how many were new.

    The same text under the same key is added once only, and not at all where the memory has its own tip like it.
    """
    config = memory.config.model_copy(update={"duplicates": "reject", "entries": "step"})
    own = TipMemory(memory.store, memory.embedder, config, clock=lambda: "")
    return own.add([replace(tip, id=None, imported=True) for tip in tips], by_owner=True)


def reembed(path: StrPath, name: str, *, make: Callable[[str], Embedder] = make_embedder) -> int:
    """Recompute all vectors of a memory file with the embedder `name`; return their number."""
    embedder = make(name)
    with open_store(path) as store, store.transaction():
        tips = store.load_tips()
        vectors = embedder.embed([tip.key for tip in tips])
        store.set_vectors(EmbedderIdentity(embedder.name, embedder.dim), tips, vectors)
    return len(tips)


def reconcile(memory: TipMemory, saved: Path | None, start: Path, late_file: Path, tips: Sequence[Tip] = ()) -> bool:
    """Bring a run's memory to where the run continues; return whether the file is new to the run and so takes `tips`.

    The tips that the run wrote after the snapshot `saved` in its last checkpoint move to the JSONL file `late_file`;
    before the first checkpoint it rewinds to `start`, a copy of the memory as the run first opened it. A file that the
    run has not seen before (a first start, or another file in its place) stays as it is.
    """
    store = memory.store
    for snapshot in (saved, start):
        if snapshot is not None and snapshot.is_file():
            with schema.open_snapshot(snapshot) as source:
                is_copy = schema.read_meta(source, "lineage") == store.lineage
            if is_copy:
                rewind_to_snapshot(memory, snapshot, late_file)
                return False
    if saved is not None and saved.is_file() and not store.sequence:
        memory.restore(saved)  # the file was lost, and made anew a moment ago
        return False
    add_imported(memory, tips)
    memory.snapshot(start)
    return True


def discard_empty_start(live: Path, start: Path) -> None:
    """Remove what a failed start left in `live` and `start`, so that the next start may choose any embedder.

    A run that was killed while it went back to its start, and has set its lines aside already, still needs `start`.
    """
    sequence = 0
    if live.is_file():
        with TipStore(live) as store:
            sequence = store.sequence
    if sequence and start.is_file():
        with schema.open_snapshot(start) as source:
            if sequence > int(schema.read_meta(source, "sequence")):
                return
    start.unlink(missing_ok=True)
    if live.is_file() and not sequence:
        for file in live.parent.glob(f"{live.name}*"):  # the file, and those that SQLite keeps next to it
            file.unlink()


def rewind_to_snapshot(memory: TipMemory, snapshot: Path, late_file: Path) -> int:
    """Rewind to a snapshot, replay the owner's changes since, and save the run's own tips since in `late_file` (JSONL).

    Returns the number of tips that were saved; at 0 no file is written. Raises `MemoryStoreError` where the snapshot
    cannot be read or has another embedder; nothing has changed then.
    """
    store = memory.store
    with schema.open_snapshot(snapshot) as source, store.transaction():
        after = int(schema.read_meta(source, "sequence"))
        (last,) = source.execute("SELECT COALESCE(MAX(number), 0) FROM owner_changes").fetchone()
        changes = store.load_owner_changes(after=last)
        by_hand = {change.tip_id for change in changes if change.is_addition}
        marks = "SELECT COUNT(*) FROM meta WHERE name LIKE 'once/%'"  # of batches, some of which change no tip
        if store.sequence == after + len(by_hand) and store.query(marks) == source.execute(marks).fetchall():
            return 0  # the run wrote nothing since
        schema.require_identity(schema.read_identity(source), store.identity, snapshot)
        touched = {change.tip_id for change in changes}
        written, retired = store.load_tips(after=after), store.load_retirements()
        late = [tip for tip in written if tip.id not in touched]
        if late:
            write_tips(late_file, late, memory=store.lineage)
        # A tip that was retired since is judged again: the run plays anew what its mark is about.
        kept = {tip.id: replace(tip, enabled=tip.enabled or tip.id in retired) for tip in written if tip.id in touched}
        schema.copy_rows(source, store.connection)
        for change in changes:
            _replay_change(memory, change, kept.get(change.tip_id))
    return len(late)


def _replay_change(memory: TipMemory, change: OwnerChange, late: Tip | None) -> None:
    """`late`: the tip before the rewind, where the run wrote it after the snapshot."""
    store, fields = memory.store, change.fields
    tip = store.get_tip(change.tip_id)
    if fields is None:
        if store.delete([change.tip_id]):
            store.record_owner_change(change)
        return
    if tip is not None:
        if fields.keys() == {"enabled"}:
            set_tip_enabled(store, tip, **fields)
        else:
            store.update(replace(tip, **fields), refresh=change.is_addition)  # added again, it is as new as it was
        if change.is_addition:
            memory.evict([tip.namespace])
        store.record_owner_change(change)
        return
    tip = Tip(id=change.tip_id, **fields) if change.is_addition else late
    if tip is not None:  # else it was deleted afterwards
        store.insert(tip, memory.embed([tip.key])[0], change.tip_id)
        memory.evict([tip.namespace])
        store.record_owner_change(build_addition(tip))


def _require_finite(score: float) -> float:
    if not abs(score) <= MAX_MAGNITUDE:
        raise MemoryStoreError(f"a tip's score must be a finite number of at most {MAX_MAGNITUDE:g}, got {score}")
    return score


def _make_memory(store: TipStore, config: MemoryConfig | None, embedder: str = "") -> TipMemory:
    config = config or MemoryConfig()
    return TipMemory(store, load_file_embedder(store.identity.name, embedder or config.embedder), config)
