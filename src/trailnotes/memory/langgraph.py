"""A LangGraph store in a memory file: values under keys, searched by what they say.

A value's text (its "text" or "content", or the fields that `index` names) is also a tip of the namespace, so that
`TipMemory.session` can show it, and its readers' results count; one without text is no tip, and no query ranks it. A
query ranks by the first 100 words, and values that share these are one tip. Otherwise it acts as `InMemoryStore`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from langgraph.store import base
from langgraph.store.memory import InMemoryStore

from trailnotes.memory.store import ItemRow
from trailnotes.memory.tips import TipMemory, clean_tip
from trailnotes.storage.files import parse_json
from trailnotes.types import Tip

AUTHOR = "langgraph"  # of the tips that find values
MAX_DEPTH = 100  # levels of a value: whoever reads it has a stack of its own
Place = tuple[tuple[str, ...], str]  # namespace and key


class TipStore(base.BaseStore):
    """A `BaseStore` over `memory`: pass it to ``graph.compile(store=TipStore(memory))``.

    A time to live is refused: tips are retired by what they were worth to their readers (`memory.retire`).
    """

    __slots__ = ("_unlimited", "memory")
    supports_ttl = False

    def __init__(self, memory: TipMemory) -> None:
        self.memory = memory
        # Values are never evicted, and neither are the tips that find them.
        self._unlimited = TipMemory(
            memory.store, memory.embedder, memory.config.model_copy(update={"capacity": sys.maxsize})
        )

    def batch(self, ops: Iterable[base.Op]) -> list[base.Result]:
        """Execute operations; as in `InMemoryStore`, all reads see the state before the batch."""
        given = list(ops)
        if any(isinstance(op, base.PutOp) and op.ttl is not None for op in given):
            raise NotImplementedError("a memory has no time to live: tips are retired by their worth (memory.retire)")
        results: list[base.Result] = [None if isinstance(op, base.PutOp) else self._read(op) for op in given]
        last = {(op.namespace, op.key): op for op in given if isinstance(op, base.PutOp)}
        values = {place: None if op.value is None else _encode(op) for place, op in last.items()}
        tips = {place: tip for place, op in last.items() if (tip := _build_tip(op))}
        self._unlimited.add([*tips.values()])  # a process that dies here leaves tips without values, and loses nothing
        with self.memory.store.transaction():
            for place, op in last.items():
                self._put(op, values[place], tips.get(place))
        return results

    async def abatch(self, ops: Iterable[base.Op]) -> list[base.Result]:
        """Execute operations in a thread, since they may wait for the disk."""
        return await asyncio.to_thread(self.batch, list(ops))

    def _read(self, op: base.Op) -> base.Result:
        store = self.memory.store
        if isinstance(op, base.GetOp):
            rows = store.load_items(json.dumps(op.namespace), op.key)
            return _build_item(rows[0]) if rows else None
        rows = store.load_items()
        if isinstance(op, base.SearchOp):
            start = [*op.namespace_prefix]
            rows = [row for row in rows if parse_json(row.namespace)[: len(start)] == start]
        items = {(item.namespace, item.key): item for item in map(_build_item, rows)}
        scratch = InMemoryStore()
        scratch.batch([base.PutOp(namespace, key, item.value) for (namespace, key), item in items.items()])
        if isinstance(op, base.ListNamespacesOp):
            return scratch.batch([op])[0]
        assert isinstance(op, base.SearchOp), "there is no other"
        (matches,) = scratch.batch([op._replace(query=None, limit=len(items), offset=0)])
        places: list[Place] = [(item.namespace, item.key) for item in matches]  # type: ignore[union-attr]
        scores = self._score(op.query, {place[0] for place in places}) if op.query else {}
        tips = dict(zip(items, (row.tip for row in rows), strict=True))
        by_place = {place: scores.get(tips[place] or -1) for place in places}
        places.sort(key=lambda place: -2.0 if by_place[place] is None else by_place[place] or 0.0, reverse=True)
        page = [(items[place], by_place[place]) for place in places[op.offset : op.offset + op.limit]]
        return [base.SearchItem(i.namespace, i.key, i.value, i.created_at, i.updated_at, score) for i, score in page]

    def _score(self, query: str, namespaces: set[tuple[str, ...]]) -> dict[int, float]:
        hits = (self.memory.search_nearest(".".join(name), query, 1_000_000, -1.0) for name in namespaces)
        return {tip.id: similarity for tips in hits for tip, similarity in tips if tip.id is not None}

    def _put(self, op: base.PutOp, value: str | None, tip: Tip | None) -> None:
        store, namespace = self.memory.store, json.dumps(op.namespace)
        before = next((row.tip for row in store.load_items(namespace, op.key)), None)
        tip_id = store.find_duplicate(tip) if tip else None
        store.put_item(namespace, op.key, value, tip_id)
        if before is not None and not store.query("SELECT 1 FROM items WHERE tip = ? LIMIT 1", (before,)):
            old = store.get_tip(before)
            store.delete([before] if old and old.model == AUTHOR else [])  # it may be another's, in the same words


def _encode(op: base.PutOp) -> str:
    """Encode a value as JSON; raises `ValueError` where it, its namespace or its key cannot be read back."""
    try:
        if not isinstance(op.namespace, tuple):
            raise TypeError("a namespace is a tuple of texts")  # noqa: TRY301
        "".join((*op.namespace, op.key)).encode()
        text = json.dumps(op.value, allow_nan=False)
        if _measure_depth(op.value) > MAX_DEPTH or json.dumps(parse_json(text)) != text:
            raise ValueError(f"it nests more than {MAX_DEPTH} deep, or JSON does not give it back")  # noqa: TRY301
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the value of {op.key!r} in {op.namespace} cannot be stored: {error}") from None
    return text


def _measure_depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return 0 if inner is None else 1 + max(map(_measure_depth, inner), default=0)


def _build_item(row: ItemRow) -> base.Item:
    return base.Item(
        value=parse_json(row.value), key=row.key, namespace=tuple(parse_json(row.namespace)),
        created_at=datetime.fromtimestamp(row.created, UTC), updated_at=datetime.fromtimestamp(row.updated, UTC),
    )  # fmt: skip


def _build_tip(op: base.PutOp) -> Tip | None:
    text = "" if op.value is None else clean_tip(_read_text(op.value, op.index))
    return Tip(".".join(op.namespace), text, text, 0.0, model=AUTHOR, imported=True) if text else None


def _read_text(value: Mapping[str, Any], index: bool | list[str] | None) -> str:
    if index is False:
        return ""
    if isinstance(index, list):
        return " ".join(text for path in index for text in base.get_text_at_path(dict(value), base.tokenize_path(path)))
    return next((value[name] for name in ("text", "content") if isinstance(value.get(name), str)), "")
