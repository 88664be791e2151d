"""How a run rewinds its memory file to a checkpoint without losing what a person changed meanwhile.

A resumed run repeats everything after its checkpoint, so it must drop the tips that it wrote since. Each change of the
owner also writes a row of `owner_changes`, and rewinding replays these rows on the tips of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trailnotes.memory import schema
from trailnotes.memory.exchange import add_imported, set_tip_enabled
from trailnotes.memory.store import OwnerChange, TipStore, build_addition
from trailnotes.memory.tipfile import write_tips
from trailnotes.memory.tips import TipMemory
from trailnotes.types import Tip


def reconcile(memory: TipMemory, saved: Path | None, start: Path, aside: Path, tips: Sequence[Tip] = ()) -> bool:
    """Bring a run's memory to where the run continues; return whether the file is new to the run and so takes `tips`.

    The tips that the run wrote after its last checkpoint move to `aside`. A file that the run has not seen before (a
    first start, or another file in its place) stays as it is.

    Args:
        memory: the live one.
        saved: the snapshot in the last checkpoint, if there is one.
        start: copy of the memory as the run first found it, for rewinding before the first checkpoint.
        aside: JSONL of the tips that were set aside; written only if there are any.
        tips: initial tips, besides those in the file.
    """
    store = memory.store
    for snapshot in (saved, start):
        if snapshot is not None and snapshot.is_file():
            with schema.open_snapshot(snapshot) as source:
                is_copy = schema.read_meta(source, "lineage") == store.lineage
            if is_copy:
                rewind_to_snapshot(memory, snapshot, aside)
                return False
    if saved is not None and saved.is_file() and not store.sequence:
        memory.restore(saved)  # the file was lost, and made anew a moment ago
        return False
    add_imported(memory, tips)
    memory.snapshot(start)
    return True


def discard_empty_start(live: Path, start: Path) -> None:
    """Remove what a failed start left in `live` and `start`, so that the next start may choose any embedder."""
    start.unlink(missing_ok=True)
    if live.is_file():
        with TipStore(live) as store:
            empty = not store.sequence
        if empty:
            for file in live.parent.glob(f"{live.name}*"):  # the file, and those that SQLite keeps next to it
                file.unlink()


def rewind_to_snapshot(memory: TipMemory, snapshot: Path, aside: Path) -> int:
    """Rewind to a snapshot, replay the owner's changes since, and save the run's own tips since as JSONL in `aside`.

    Returns:
        Number of tips set aside; at 0 no file is written.

    Raises:
        MemoryStoreError: the snapshot is missing, damaged, or of another embedder; nothing has changed then.
    """
    store = memory.store
    with schema.open_snapshot(snapshot) as source, store.transaction():
        after = schema.read_sequence(source)
        (last,) = source.execute("SELECT COALESCE(MAX(number), 0) FROM owner_changes").fetchone()
        changes = store.load_owner_changes(after=last)
        by_hand = {change.tip_id for change in changes if change.is_addition}
        if store.sequence == after + len(by_hand):
            return 0  # the run wrote nothing since
        schema.require_identity(schema.read_identity(source), store.identity, snapshot)
        touched = {change.tip_id for change in changes}
        written, retired = store.load_tips(after=after), store.load_retirements()
        late = [tip for tip in written if tip.id not in touched]
        if late:
            write_tips(aside, late, memory=store.lineage)
        # A tip that was retired since is judged again: the run plays anew what its mark is about.
        kept = {tip.id: replace(tip, enabled=tip.enabled or tip.id in retired) for tip in written if tip.id in touched}
        store.replace_rows(source)
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
        store.insert(tip, memory.embed_keys([tip])[0], change.tip_id)
        memory.evict([tip.namespace])
        store.record_owner_change(build_addition(tip))
