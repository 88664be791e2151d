"""EMPO2's memory: which tips are kept, which are found, in which order (arXiv 2602.23008, section 4.1).

Every tip is cleaned once, by whatever writes it into a store: `normalize_tip`, for a memory's `add` and so for imports, and
`exchange.edit_tip`. A file that somebody else made may hold anything: prompts quote whatever they show
(`prompts.quoted`), stored where and how it may be.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.errors import ConfigError, MemoryStoreError
from trailnotes.memory.eviction import evict
from trailnotes.memory.index import is_faiss_installed
from trailnotes.memory.retired import DISTILLED
from trailnotes.memory.retrieval import Embedder, Floats, Ints, embed_async, make_embedder
from trailnotes.memory.schema import EmbedderIdentity, replace_surrogates
from trailnotes.memory.scope import TipFilter
from trailnotes.memory.store import StoreBackedMemory, TipPage, TipStore, build_addition
from trailnotes.memory.tip_stats import Numbers, TipEffect, compute_exposures, compute_ucb_scores, mean_gain
from trailnotes.memory.words import fuse_reciprocal_ranks
from trailnotes.types import StrPath, Task, Tip, Trajectory, strip_thinking

MAX_TIP_WORDS = 100
MAX_ACTION_WORDS = 32
MAX_CHARS = 2000  # of a tip or action: words may be endless
MAX_KEY_CHARS = 32_768  # several times what the longest context holds
MARKUP = re.compile(r"<\|[^<>]{0,64}\|>|</?[A-Za-z][^<>]{0,64}>")  # special tokens of chat templates, tags
COMPUTED_KEYS = {"similarity", "ucb", "worth"}  # orders of a search, which no page can be sorted by
LEADING_MARKS = re.compile(r"^(?:[-*#>]+ |[-*#>]+$)+")  # bullets, headings, quotations
QUOTES = str.maketrans(dict.fromkeys('"`\u201c\u201d', "'"))


class SearchTarget(NamedTuple):
    """Where a task searches."""

    place: str | TipFilter
    by_index: bool  # it holds so many tips that the index is asked


class TipMemory(StoreBackedMemory):
    """Tips by namespace, in one store, found through one embedder.

    Args:
        store: the rows; its vectors must be those of `embedder`.
        embedder: turns keys and queries into unit vectors.
        config: capacity, threshold, order and rule for duplicates.
        clock: gives `created` to tips that have none. Information only: age is counted in writes, not in seconds.

    Raises:
        MemoryStoreError: the store holds vectors of another embedder.
    """

    def __init__(
        self, store: TipStore, embedder: Embedder, config: MemoryConfig, *, clock: Callable[[], str] | None = None
    ) -> None:
        held, wanted = store.identity, EmbedderIdentity(embedder.name, embedder.dim)
        if held != wanted:
            raise MemoryStoreError(
                f"{store.path} holds vectors of {held.name} ({held.dim} dimensions), not of {wanted.name} "
                f"({wanted.dim}): set memory.embedder = {held.name!r}, or convert the file with "
                "trailnotes.memory.reembed(path, name)"
            )
        self.store = store
        self.embedder = embedder
        self.config = config
        self._clock = clock or utc_now

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """Enabled tips of `namespace` whose key is at least `config.threshold` similar to `query`, the best first.

        Best is by `config.ranking`, then the newest. With threshold -1 every tip is a candidate. Beyond the task
        (`config.scope`) these are the tips of all tasks that this one, which `meet` told of, may read;
        where a task has so many that the index is asked, the `config.candidates` nearest.
        """
        place = self._resolve_target(namespace)
        if self._is_query_independent(place, top_k):
            return self._select_top(place, top_k)
        vector = None if self.config.retrieval == "sparse" else self._embed([query])[0]
        return self._select_similar(self._load_page(place, vector, top_k), query, vector, top_k)

    async def search_async(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """`search` for an event loop: it waits for a slow embedder, or for words, without holding it up."""
        place = self._resolve_target(namespace)
        if self._is_query_independent(place, top_k):
            return self._select_top(place, top_k)
        vector = None
        if self.config.retrieval != "sparse":
            (vector,) = await embed_async(self.embedder, [_truncate_for_embedding(query)])
        page = self._load_page(place, vector, top_k)
        if self.config.retrieval == "dense":
            return self._select_similar(page, query, vector, top_k)
        import asyncio

        return await asyncio.to_thread(self._select_similar, page, query, vector, top_k)

    def search_nearest(self, namespace: str, query: str, top_k: int) -> list[tuple[Tip, float]]:
        """The same candidates with their cosine similarity, the most similar first, whatever `config.order` says."""
        vector = self._embed([query])[0]
        page = self._load_page(self._resolve_target(namespace), vector, top_k)
        rows, similarities = page.index.find_within(vector, self.config.threshold)
        chosen = _sort_rows(page, rows, {"similarity": similarities}, ("similarity",))[:top_k].tolist()
        by_row = dict(zip(rows.tolist(), similarities.tolist(), strict=True))
        return [(tip, by_row[row]) for row in chosen for tip in self.store.fetch(page, [row])]

    def register_tasks(self, tasks: Sequence[Task]) -> bool:
        """See `ScopedMemory.register_tasks`."""
        if self.config.scope == "family" and (nameless := next((task for task in tasks if not task.family), None)):
            raise ConfigError(
                f"memory.scope = family, and {nameless.id} says no family: set Task.family where {nameless.env} lists "
                "its tasks, or memory.scope = env"
            )
        return self.config.scope != "task" and self.store.register_tasks(tasks)

    def add(self, tips: Sequence[Tip], *, once: str = "", by_owner: bool = False) -> int:
        """Store `tips` in the order given, in one transaction; returns how many rows are new or changed.

        `once` names the batch: one of that name that was stored before, perhaps before a restart, is not stored again.
        What a person adds is marked as such (`by_owner`), and survives when a run goes back to a checkpoint.

        Texts are cleaned (`clean_tip`) and tips of which nothing is left are skipped. The same text again in a
        namespace (with entries = "step": under the same key) is a duplicate: it is rejected, or counted as support,
        when the row becomes the newest, moves to the new key and action, and keeps its highest score and its first
        author. Beyond `config.capacity` enabled tips some are retired (`room.make_room`). One that had to make room
        comes back when it is written again, with its readers; one that is distilled does not.
        """
        usable = [clean for tip in tips if (clean := normalize_tip(tip, self._clock))]
        vectors = self.embed_keys(usable)
        with self.store.transaction():
            if once and not self.store.mark_first_time(once):
                return 0
            before = self.store.sequence
            changed = sum(self._store_tip(tip, vector, by_owner) for tip, vector in zip(usable, vectors, strict=True))
            for tip in self.store.load_tips(after=before) if by_owner else ():
                self.store.record_owner_change(build_addition(tip))
            self.evict(tip.namespace for tip in usable)
        return changed

    def evict(self, namespaces: Iterable[str]) -> None:
        """Retire tips of these tasks beyond the capacity; within a transaction."""
        evict(self.store, dict.fromkeys(namespaces), self.config, self._clock())

    def report(self, episodes: Sequence[Trajectory], *, once: str = "") -> None:
        """See `FeedbackMemory.report`: count the readers of each tip, and what they gained over those without it."""
        if not (readings := list(compute_exposures(episodes))):
            return
        with self.store.transaction():
            if not once or self.store.mark_first_time(f"read/{once}"):
                self.store.record_exposures(readings)

    def record_effects(self, readings: Sequence[TipEffect], *, once: str = "") -> None:
        """See `TipEffectMemory.measure`; with `config.distilled` those that change nothing any more are retired."""
        config = self.config
        if not readings:
            return
        with self.store.transaction():
            if once and not self.store.mark_first_time(f"lead/{once}"):
                return
            self.store.record_effects(readings, config.distilled_readers)
            for tip_id in dict.fromkeys(reading.tip for reading in readings) if config.distilled else ():
                found = self.store.load_reader_stats(tip_id).get(tip_id)
                if found and found.measured >= config.distilled_readers and found.tip_free_ratio >= config.distilled:
                    by = f"{found.tip_free_ratio:.2f} as often without it, by {found.measured} readers who did well"
                    self.store.retire([tip_id], DISTILLED, by, on=self._clock())

    def _store_tip(self, tip: Tip, vector: Floats, by_owner: bool) -> int:
        tip_id = self.store.find_duplicate(tip, same_key=self.config.entries == "step", among_own=by_owner)
        if tip_id is None:
            self.store.insert(tip, vector)
            return 1
        mark = self.store.load_retirements(tip_id).get(tip_id)
        kept = self.store.find_merge_target(tip_id) if mark and mark.into else None
        comes_back = mark is not None and kept is None and mark.rule != DISTILLED and tip.enabled
        if self.config.duplicates == "reject" and not comes_back:
            return 0
        old = self.store.get_tip(kept or tip_id)
        assert old is not None, "rows do not vanish within a transaction"
        moved: Floats | None = vector
        if kept is not None:  # what finds the other stays
            tip, moved = replace(tip, key=old.key, action=old.action), None
        best = max(old, tip, key=lambda candidate: candidate.score)
        merged = replace(
            old, key=tip.key, action=tip.action, support=old.support + tip.support,
            score=best.score, max_score=best.max_score, enabled=old.enabled or comes_back,
        )  # fmt: skip
        self.store.update(merged, moved, refresh=True)
        return 1

    def embed_keys(self, tips: Sequence[Tip]) -> Floats:
        """What finds each of `tips`: float32 (len(tips), dim)."""
        return self._embed([tip.key for tip in tips])

    def _resolve_target(self, namespace: str) -> SearchTarget:
        """What a task searches."""
        namespace, config = replace_surrogates(namespace), self.config
        wider = (
            None if config.scope == "task" else self.store.get_search_filter(namespace, config.scope, config.open_split)
        )
        place = wider or namespace
        asks_index = config.index != "exact" and config.retrieval == "dense" and is_faiss_installed()
        return SearchTarget(place, asks_index and self.store.size(place) >= config.exact_below)

    def _load_page(self, searched: SearchTarget, vector: Floats | None, top_k: int) -> TipPage:
        """The tips of a place; of one with many those nearest to `vector`, if there is one."""
        if vector is None or not searched.by_index:
            return self._load_sorted_page(searched.place)
        return self.store.load_nearest_page(
            searched.place, self._stored_sort_keys, vector, max(8 * top_k, self.config.candidates)
        )

    def _load_sorted_page(self, place: str | TipFilter) -> TipPage:
        return self.store.load_page(place, self._stored_sort_keys)

    @property
    def _stored_sort_keys(self) -> list[str]:
        return [name for name in self.config.ranking if name not in COMPUTED_KEYS]

    def _is_query_independent(self, searched: SearchTarget, top_k: int) -> bool:
        """Whether the answer does not depend on the query, so that nothing need be embedded."""
        if top_k <= 0:
            return True
        if searched.by_index:
            return False
        config = self.config
        ranks_all = config.threshold <= -1 and config.retrieval != "sparse" and not config.rerank
        return not self._load_sorted_page(searched.place).ids or (ranks_all and "similarity" not in config.ranking)

    def _select_top(self, searched: SearchTarget, top_k: int) -> list[Tip]:
        """The best tips of a place, whatever the query."""
        if top_k <= 0:
            return []
        page = self._load_sorted_page(searched.place)
        return self._rank_candidates(page, np.arange(len(page.ids)), None, top_k)

    def _select_similar(self, page: TipPage, query: str, vector: Floats | None, top_k: int) -> list[Tip]:
        rows, similarities = self._find_candidates(page, query, vector)
        if self.config.rerank:
            nearest = _sort_rows(page, rows, {"similarity": similarities}, ("similarity",))[: self.config.rerank]
            chosen = np.isin(rows, nearest)
            rows, similarities = rows[chosen], similarities[chosen]
        return self._rank_candidates(page, rows, similarities, top_k)

    def _find_candidates(self, page: TipPage, query: str, vector: Floats | None) -> tuple[Ints, Numbers]:
        """Rows (n,), ascending, and how like the query they are (n,): cosine, BM25, or the reciprocal ranks by both."""
        dense = None if vector is None else page.index.find_within(vector, self.config.threshold)
        if dense is not None and self.config.retrieval == "dense":
            return dense
        scores = self.store.get_word_index(page).score(_truncate_for_embedding(query))
        rows = np.flatnonzero(scores)
        if dense is None:
            return rows, scores[rows]
        fused = fuse_reciprocal_ranks(len(page.ids), dense, (rows, scores[rows]))
        rows = np.flatnonzero(fused)
        return rows, fused[rows]

    def _rank_candidates(self, page: TipPage, rows: Ints, similarities: Numbers | None, top_k: int) -> list[Tip]:
        """The first `top_k` of the candidates `rows`, which come in the order of the page."""
        if top_k <= 0 or not rows.size:
            return []
        order, columns = self.config.ranking, page.columns
        computed: dict[str, Numbers] = {} if similarities is None else {"similarity": similarities}
        if "ucb" in order:
            computed["ucb"] = compute_ucb_scores(columns["shown"], columns["earned"], self.config.ucb)[rows]
        if "worth" in order:
            computed["worth"] = mean_gain(columns["compared"], columns["gained"])[rows]
        if COMPUTED_KEYS & set(order):  # else the store has sorted the page
            rows = _sort_rows(page, rows, computed, order)
        return self.store.fetch(page, rows[:top_k].tolist())

    def _embed(self, texts: Sequence[str]) -> Floats:
        return self.embedder.embed([_truncate_for_embedding(text) for text in texts])


def _truncate_for_embedding(text: str) -> str:
    return replace_surrogates(text[:MAX_KEY_CHARS])


def _sort_rows(page: TipPage, rows: Ints, computed: Mapping[str, Numbers], order: Sequence[str]) -> Ints:
    """`rows` by `order`, all keys descending, the newest first among equals; `computed` are of `rows` alone."""
    keys = [computed[name] if name in computed else page.columns[name][rows] for name in (*order, "recency")]
    return rows[np.lexsort([-key for key in reversed(keys)])]


def open_memory(
    path: StrPath | None,
    config: MemoryConfig | None = None,
    *,
    clock: Callable[[], str] | None = None,
    embedder: Embedder | None = None,
) -> TipMemory:
    """The memory in the file `path`, made if it is missing; None keeps it in this process only.

    Without a `config` every setting is the default. Without an `embedder` it is that of `config.embedder`, on the CPU.

    Raises:
        MemoryStoreError: the file is damaged, of a newer version, or belongs to another embedder.
        MissingExtraError: the embedder needs a package that is not installed.
    """
    config = config or MemoryConfig()
    embedder = embedder or make_embedder(config.embedder)
    store = TipStore(path, EmbedderIdentity(embedder.name, embedder.dim))
    try:
        return TipMemory(store, embedder, config, clock=clock)
    except MemoryStoreError:
        store.close()
        raise


def tips_of(  # noqa: PLR0913 (an author is four words)
    trajectory: Trajectory,
    text: str,
    config: MemoryConfig,
    *,
    keys: Sequence[str],
    model: str = "",
    version: int = 0,
    run: str = "",
    step: int = 0,
) -> list[Tip]:
    """The entries for one written tip, in its own words: none if cleaning would leave nothing, or the episode failed.

    Args:
        trajectory: the episode; gives namespace, score and actions.
        text: what the model wrote; the memory cleans what is added.
        config: `entries`: "episode" is one entry with the last action; "step" one for each step.
        keys: what finds each state again: one for each step, then that of the final observation (it may be left
            out). "episode" takes the last of them, "step" each step's own.
        model: its author, a model's name or path.
        version: of the author's weights.
        run: name of the run.
        step: iteration or trial.
    """
    if not clean_tip(text) or not trajectory.steps or trajectory.outcome == "error":
        return []
    actions = [played.action for played in trajectory.steps]
    if config.entries == "episode":
        actions, keys = actions[-1:], keys[-1:]
    if len(keys) < len(actions):
        raise ValueError(f"{len(actions)} entries need as many keys, got {len(keys)}")
    return [
        Tip(
            namespace=trajectory.task.id, text=text, key=key, action=action,
            score=trajectory.score, max_score=trajectory.max_score, model=model, version=version, run=run, step=step,
        )
        for key, action in zip(keys, actions, strict=False)
    ]  # fmt: skip


def normalize_tip(tip: Tip, clock: Callable[[], str], max_words: int = MAX_TIP_WORDS) -> Tip | None:
    """`tip` as it may be stored, its text and action cleaned, or None if its text has nothing usable."""
    text = clean_tip(tip.text, max_words)
    if not text:
        return None
    return replace(
        tip,
        namespace=replace_surrogates(tip.namespace),
        text=text,
        key=replace_surrogates(tip.key[:MAX_KEY_CHARS]),
        action=clean_tip(tip.action, MAX_ACTION_WORDS),
        model=replace_surrogates(tip.model),
        run=replace_surrogates(tip.run),
        created=replace_surrogates(tip.created) or clock(),
    )


def clean_tip(text: str, max_words: int = MAX_TIP_WORDS) -> str:
    """One line of at most `max_words` words that cannot pass for anything but data; '' if no letter or digit is left.

    Thinking goes, also one that is never closed. Lines are joined; control and format characters, markup, special
    tokens, bullets and enclosing quotes go; double quotes become single ones, so that a tip shown between double quotes
    cannot close them. Cleaning twice changes nothing.
    """
    text, passes = strip_thinking(text)[: 8 * MAX_CHARS], 0
    while (cleaned := _clean_once(text, max_words)) != text:  # removing markup may bring new markup together
        text, passes = cleaned, passes + 1
        if passes >= 10:  # nested without end: what could become markup goes at once
            text = text.replace("<", " ")
    return text if any(map(str.isalnum, text)) else ""


def _clean_once(text: str, max_words: int) -> str:
    text = MARKUP.sub(" ", unicodedata.normalize("NFC", text))  # or one text could be stored twice
    text = "".join(" " if char.isspace() else char for char in text if char.isspace() or not _is_control(char))
    text = LEADING_MARKS.sub("", " ".join(text.split()).translate(QUOTES))
    while len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1].strip()
    return " ".join(text.split()[:max_words])[:MAX_CHARS].strip()


def _is_control(char: str) -> bool:
    return unicodedata.category(char)[0] == "C"  # control, format (bidi overrides), surrogates, unassigned


def utc_now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
