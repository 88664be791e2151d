"""Room for new tips: which of those that there are go, once there are more than `memory.capacity`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np

from trailnotes.memory.indexed import decode_vectors
from trailnotes.memory.retrieval import DECIMALS, HashingEmbedder
from trailnotes.memory.store import TipStore

if TYPE_CHECKING:
    from trailnotes.config.memory_schema import MemoryConfig
    from trailnotes.memory.retired import MergeCandidate
    from trailnotes.memory.scope import TipFilter

PROTECTED_SHARE: Final = 0.25  # share of the capacity, the newest tips, that is not judged by its readers
MAX_COMPARED: Final = 2048  # tips, the oldest, that are compared with each other


def evict(store: TipStore, namespaces: Iterable[str], config: MemoryConfig, on: str = "") -> None:
    """Retire tips of these tasks, or of their scope, until `config.capacity` are enabled; within a transaction.

    By use and by worth the newest quarter is not judged: what was just written has had no reader yet, and would go at
    once (the window of W-TinyLFU, arXiv 1512.00727, for the same reason). By worth see `worth.shrunk_gain`.

    Args:
        store: the rows.
        namespaces: tasks whose tips have become more.
        config: `capacity`, `retire`, `scope`, `merge_similarity`.
        on: the time, which the marks keep.
    """
    by = f"memory.capacity = {config.capacity}"
    for pool, excess in find_over_capacity(store, namespaces, config):
        merged = _merge_similar(store, pool, excess, config.merge_similarity, on) if config.retire == "merge" else 0
        if excess > merged:
            rule = "oldest" if config.retire == "merge" else config.retire
            spared = 0 if rule == "oldest" else ceil(PROTECTED_SHARE * config.capacity)
            store.retire(store.select_victims(pool, rule, excess - merged, spared=spared), rule, by, on=on)


def find_over_capacity(
    store: TipStore, namespaces: Iterable[str], config: MemoryConfig
) -> Iterator[tuple[TipFilter, int]]:
    """Those of these tasks, or of their scopes, that have more enabled tips than `config.capacity`, and how many."""
    for pool in dict.fromkeys(store.get_capacity_pool(namespace, config.scope) for namespace in namespaces):
        if (excess := store.size(pool) - config.capacity) > 0:
            yield pool, excess


def _merge_similar(store: TipStore, pool: TipFilter, most: int, least: float, on: str) -> int:
    """Make one of two tips that say nearly the same of nearly the same states, `most` times; returns how often.

    The one of more worth stays, of equals that of the higher score, the more often written, the newer.
    """
    tips = store.load_oldest(pool, MAX_COMPARED)
    gone: set[int] = set()
    for first, second, similarity in _find_similar_pairs(tips, least, store.identity.dim):
        if len(gone) == most:
            break
        if first.id in gone or second.id in gone:
            continue
        kept, other = sorted((first, second), key=lambda tip: tip[3:], reverse=True)
        store.merge_stats(kept.id, other.id)
        store.retire([other.id], "merge", f"{similarity:.2f} like tip {kept.id}", on=on, into=kept.id)
        gone.add(other.id)
    return len(gone)


def _find_similar_pairs(
    tips: list[MergeCandidate], least: float, dim: int
) -> Iterator[tuple[MergeCandidate, MergeCandidate, float]]:
    """Pairs whose keys and whose words are at least so similar, with the lower of both cosines, the highest first.

    Words are compared by the hashing embedder, whatever finds the keys: to a model of meaning "go left" is much like
    "go right".
    """
    keys = decode_vectors([tip.vector for tip in tips], dim)
    words = HashingEmbedder().embed([tip.text for tip in tips])
    alike = np.triu(np.round(np.minimum(keys @ keys.T, words @ words.T), DECIMALS), 1)
    rows, columns = np.nonzero(alike >= np.float32(least))
    values = alike[rows, columns]
    for pair in np.lexsort((columns, rows, -values)).tolist():
        yield tips[rows[pair]], tips[columns[pair]], float(values[pair])
