"""EMPO2's memory: which tips are kept, which are found, in which order (arXiv 2602.23008, section 4.1).

Every writer cleans a tip once: `normalize_tip` in `add`, and so for imports, and `exchange.edit_tip`. A file of unknown
origin may hold anything: prompts quote all that they show (`prompts.quoted`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.errors import ConfigError, MemoryStoreError
from trailnotes.memory import retrieval
from trailnotes.memory.index import decode_vectors, is_faiss_installed
from trailnotes.memory.retrieval import Embedder, Floats, Ints
from trailnotes.memory.schema import EmbedderIdentity, require_identity
from trailnotes.memory.scope import DISTILLED, MergeCandidate, TipFilter
from trailnotes.memory.sessions import Author, TipSession, record_attempt
from trailnotes.memory.store import StoreBackedMemory, TipPage, TipStore, build_addition
from trailnotes.memory.tip_stats import Numbers, TipEffect, compute_exposures, compute_ucb_scores, mean_gain
from trailnotes.types import StrPath, Task, Tip, Trajectory, replace_surrogates, strip_thinking

MAX_TIP_WORDS = 100
MAX_ACTION_WORDS = 32
MAX_CHARS = 2000  # of a tip or action: words may be endless
MAX_KEY_CHARS = 32_768  # several times what the longest context holds
MARKUP = re.compile(r"<\|[^<>]{0,64}\|>|</?[A-Za-z][^<>]{0,64}>")  # special tokens of chat templates, tags
COMPUTED_KEYS = {"similarity", "ucb", "worth"}  # orders that depend on the search, so that no page is sorted by them
PROTECTED_SHARE = 0.25  # share of the capacity: the newest tips, exempt from eviction by use or worth
MAX_COMPARED = 2048  # oldest tips that are compared for merging
LEADING_MARKS = re.compile(r"^(?:[-*#>]+ |[-*#>]+$)+")  # bullets, headings, quotations
QUOTES = str.maketrans(dict.fromkeys('"`\u201c\u201d', "'"))


class SearchHit(NamedTuple):
    """A tip, and the similarity of its key to the query."""

    tip: Tip
    similarity: float  # cosine, -1..1


class SearchTarget(NamedTuple):
    """The tips that a task searches."""

    place: str | TipFilter
    by_index: bool  # whether it has so many tips that the index is asked


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
        fix = ", or convert the file with trailnotes.memory.reembed(path, name)"
        require_identity(store.identity, EmbedderIdentity(embedder.name, embedder.dim), store.path, fix)
        self.store, self.embedder, self.config = store, embedder, config
        self._clock = clock or utc_now

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """Return enabled tips whose key is at least `config.threshold` similar to `query`, the best first.

        The order is `config.ranking`, then the newest. With threshold -1 every tip is a candidate. With a scope beyond
        the task (`config.scope`) the tips of all tasks that this one may read are candidates; where these are so many
        that the index is asked, the `config.candidates` nearest.
        """
        target, vector = self._resolve_target(namespace), None
        if top_k > 0 and self._needs_vector(target):
            vector = self._embed([query])[0]
        return self._search_target(target, query, vector, top_k)

    async def search_async(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """Search without blocking the event loop while a slow embedder, or the word index, computes."""
        target, vector = self._resolve_target(namespace), None
        if top_k > 0 and self._needs_vector(target):
            (vector,) = await retrieval.embed_async(self.embedder, [_truncate_for_embedding(query)])
        if self.config.retrieval == "dense":
            return self._search_target(target, query, vector, top_k)
        import asyncio

        return await asyncio.to_thread(self._search_target, target, query, vector, top_k)

    def search_nearest(self, namespace: str, query: str, top_k: int, threshold: float | None = None) -> list[SearchHit]:
        """Return the candidates with their cosine similarity, the most similar first, whatever `config.order` is.

        `threshold` is by default that of the config.
        """
        vector = self._embed([query])[0]
        page = self._load_page(self._resolve_target(namespace), vector, top_k)
        least = self.config.threshold if threshold is None else threshold
        rows, similarities = page.index.find_within(vector, least)
        chosen = _sort_rows(page, rows, {"similarity": similarities}, ("similarity",))[:top_k].tolist()
        by_row = dict(zip(rows.tolist(), similarities.tolist(), strict=True))
        return [SearchHit(tip, by_row[row]) for row in chosen for tip in self.store.fetch(page, [row])]

    def register_tasks(self, tasks: Sequence[Task]) -> bool:
        """Record where tasks belong; see `ScopedMemory.register_tasks`."""
        if self.config.scope == "family" and (nameless := next((task for task in tasks if not task.family), None)):
            raise ConfigError(
                f"memory.scope = family, and {nameless.id} says no family: set Task.family where {nameless.env} lists "
                "its tasks, or memory.scope = env"
            )
        return self.config.scope != "task" and self.store.register_tasks(tasks)

    def add(self, tips: Sequence[Tip], *, once: str = "", by_owner: bool = False) -> int:
        """Store `tips` in the given order, in one transaction; return the number of rows that are new or changed.

        `once` names the batch: a batch of that name that was stored before, perhaps before a restart, is skipped.
        Tips of the owner (`by_owner`) are recorded as such, and survive when a run rewinds to a checkpoint.

        Texts are cleaned (`clean_tip`); tips without usable text are skipped. The same text again in a namespace (with
        entries = "step": under the same key) is a duplicate: it is rejected, or counts as support, so that the row
        becomes the newest, takes the new key and action, and keeps its highest score and its first author. Beyond
        `config.capacity` enabled tips some are retired (`evict`). An evicted tip that is written again comes back, with
        its readers; a distilled one does not.
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
        """Retire tips of these tasks, or of their scopes, beyond `config.capacity`; within a transaction.

        By use and by worth (`schema.WORTH_SQL`) the newest quarter is exempt: a tip just written has had no reader yet,
        and would go at once (the window of W-TinyLFU, arXiv 1512.00727, for the same reason).
        """
        config, on = self.config, self._clock()
        for pool in dict.fromkeys(self.store.get_capacity_pool(namespace, config.scope) for namespace in namespaces):
            excess = self.store.size(pool) - config.capacity
            merged = self._merge_similar(pool, excess, on) if config.retire == "merge" and excess > 0 else 0
            if excess > merged:
                rule = "oldest" if config.retire == "merge" else config.retire
                spared = 0 if rule == "oldest" else ceil(PROTECTED_SHARE * config.capacity)
                victims = self.store.select_victims(pool, rule, excess - merged, spared=spared)
                self.store.retire(victims, rule, f"memory.capacity = {config.capacity}", on=on)

    def _merge_similar(self, pool: TipFilter, most: int, on: str) -> int:
        """Merge up to `most` pairs with similar keys and similar words; returns how many.

        The tip of more worth stays, of equals that of the higher score, the more often written, the newer.
        """
        tips, gone = self.store.load_oldest(pool, MAX_COMPARED), set[int]()
        for first, second, similarity in _find_similar_pairs(
            tips, self.config.merge_similarity, self.store.identity.dim
        ):
            if len(gone) == most:
                break
            if first.id in gone or second.id in gone:
                continue
            kept, other = sorted((first, second), key=lambda tip: tip[3:], reverse=True)
            self.store.merge_stats(kept.id, other.id)
            self.store.retire([other.id], "merge", f"{similarity:.2f} like tip {kept.id}", on=on, into=kept.id)
            gone.add(other.id)
        return len(gone)

    def report(self, episodes: Sequence[Trajectory], *, once: str = "") -> None:
        """Count the readers of each tip, and their gains over members without it; see `FeedbackMemory.report`."""
        if readings := list(compute_exposures(episodes)):
            with self.store.transaction():
                if not once or self.store.mark_first_time(f"read/{once}"):
                    self.store.record_exposures(readings)

    def session(
        self, task: str, query: str, *, top_k: int | None = None, show_tips: bool = True, author: Author | None = None
    ) -> TipSession:
        """Open one attempt at `task` outside our loop; its report tells what the tips were worth.

        Args:
            task: the id under which attempts share their tips.
            query: the state that tips are found for, as in `search`.
            top_k: tips at most; None: `config.top_k`.
            show_tips: False for an attempt without tips, which the others are compared with.
            author: writes a tip from the transcript of the report.
        """
        limit = self.config.top_k if top_k is None else top_k
        tips = tuple(self.search(task, query, limit)) if show_tips else ()
        return TipSession(self, task, query, record_attempt(self, task, tips), tips, author)

    def record_effects(self, readings: Sequence[TipEffect], *, once: str = "") -> None:
        """Record tip effects; with `config.distilled` a tip that no longer changes anything is retired."""
        config = self.config
        if not readings:
            return
        with self.store.transaction():
            if once and not self.store.mark_first_time(f"lead/{once}"):
                return
            self.store.record_effects(readings, config.distilled_readers)
            for tip_id in dict.fromkeys(reading.tip for reading in readings) if config.distilled else ():
                readers = self.store.load_reader_stats(tip_id).get(tip_id)
                if readers is None or readers.measured < config.distilled_readers:
                    continue
                if readers.tip_free_ratio >= config.distilled:
                    by = f"{readers.tip_free_ratio:.2f} as often without it, by {readers.measured} readers who did well"
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
        if kept is not None:  # the other tip's key stays
            tip, moved = replace(tip, key=old.key, action=old.action), None
        best = max(old, tip, key=lambda candidate: candidate.score)
        merged = replace(
            old, key=tip.key, action=tip.action, support=old.support + tip.support,
            score=best.score, max_score=best.max_score, enabled=old.enabled or comes_back,
        )  # fmt: skip
        self.store.update(merged, moved, refresh=True)
        return 1

    def embed_keys(self, tips: Sequence[Tip]) -> Floats:
        """Embed the retrieval keys of `tips`: float32 (len(tips), dim)."""
        return self._embed([tip.key for tip in tips])

    def _resolve_target(self, namespace: str) -> SearchTarget:
        namespace, config, scope = replace_surrogates(namespace), self.config, self.config.scope
        wider = None if scope == "task" else self.store.get_search_filter(namespace, scope, config.shared_split)
        place = wider or namespace
        asks_index = config.retrieval == "dense" and is_faiss_installed()
        return SearchTarget(place, asks_index and self.store.size(place) >= config.exact_below)

    def _load_page(self, target: SearchTarget, vector: Floats | None, top_k: int) -> TipPage:
        if vector is None or not target.by_index:
            return self._load_sorted_page(target.place)
        count = max(8 * top_k, self.config.candidates)
        return self.store.load_nearest_page(target.place, self._stored_sort_keys, vector, count)

    def _load_sorted_page(self, place: str | TipFilter) -> TipPage:
        return self.store.load_page(place, self._stored_sort_keys)

    @property
    def _stored_sort_keys(self) -> list[str]:
        return [name for name in self.config.ranking if name not in COMPUTED_KEYS]

    def _needs_vector(self, target: SearchTarget) -> bool:
        """Return whether the result depends on the vector of the query, which is else not embedded."""
        config = self.config
        if target.by_index or config.retrieval == "sparse":
            return target.by_index
        ranks_all = config.threshold <= -1 and "similarity" not in config.ranking
        return not ranks_all and bool(self._load_sorted_page(target.place).ids)

    def _search_target(self, target: SearchTarget, query: str, vector: Floats | None, top_k: int) -> list[Tip]:
        if top_k <= 0:
            return []
        page = self._load_page(target, vector, top_k)
        if vector is None and self.config.retrieval != "sparse":
            return self._rank_candidates(page, np.arange(len(page.ids)), None, top_k)
        rows, similarities = self._find_candidates(page, query, vector)
        return self._rank_candidates(page, rows, similarities, top_k)

    def _find_candidates(self, page: TipPage, query: str, vector: Floats | None) -> tuple[Ints, Numbers]:
        """Find rows (n,), ascending, and their similarities (n,): cosine, BM25, or the reciprocal ranks by both."""
        dense = None if vector is None else page.index.find_within(vector, self.config.threshold)
        if dense is not None and self.config.retrieval == "dense":
            return dense
        scores = self.store.score_words(page, _truncate_for_embedding(query))
        rows = np.flatnonzero(scores)
        if dense is not None:
            scores = retrieval.fuse_reciprocal_ranks(len(page.ids), dense, (rows, scores[rows]))
            rows = np.flatnonzero(scores)
        return rows, scores[rows]

    def _rank_candidates(self, page: TipPage, rows: Ints, similarities: Numbers | None, top_k: int) -> list[Tip]:
        if not rows.size:
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
    """Sort `rows` by `order`, all keys descending, the newest first among equals; `computed` holds one number a row."""
    keys = [computed[name] if name in computed else page.columns[name][rows] for name in (*order, "recency")]
    return rows[np.lexsort([-key for key in reversed(keys)])]


def open_memory(
    path: StrPath | None, config: MemoryConfig | None = None, *,
    clock: Callable[[], str] | None = None, embedder: Embedder | None = None,
) -> TipMemory:  # fmt: skip
    """Open the memory in the file `path`, which is made if it is missing; None keeps it in this process only.

    Without a `config` every setting is the default. Without an `embedder` it is that of `config.embedder`, on the CPU.

    Raises:
        MemoryStoreError: the file is damaged, of a newer version, or belongs to another embedder.
        MissingExtraError: the embedder needs a package that is not installed.
    """
    config = config or MemoryConfig()
    embedder = embedder or retrieval.make_embedder(config.embedder)
    store = TipStore(path, EmbedderIdentity(embedder.name, embedder.dim))
    try:
        return TipMemory(store, embedder, config, clock=clock)
    except MemoryStoreError:
        store.close()
        raise


def tips_of(  # noqa: PLR0913 (an author is four words)
    trajectory: Trajectory, text: str, config: MemoryConfig, *,
    keys: Sequence[str], model: str = "", version: int = 0, run: str = "", step: int = 0,
) -> list[Tip]:  # fmt: skip
    """Make the entries of one written tip, not yet cleaned: none without usable text, or after a failed episode.

    Args:
        trajectory: the episode; gives namespace, score and actions.
        text: as the model wrote it; the memory cleans what is added.
        config: `entries`: "episode" is one entry with the last action; "step" one for each step.
        keys: the retrieval key of each step, then that of the final observation (which may be left out). "episode"
            takes the last of them, "step" each step's own.
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
    """Return `tip` with its text and action cleaned, as a store may hold it; None without usable text."""
    text = clean_tip(tip.text, max_words)
    if not text:
        return None
    plain: dict[str, Any] = {
        name: replace_surrogates(getattr(tip, name)) for name in ("namespace", "model", "run", "created")
    }
    plain["created"] = plain["created"] or clock()
    key = replace_surrogates(tip.key[:MAX_KEY_CHARS])
    return replace(tip, text=text, key=key, action=clean_tip(tip.action, MAX_ACTION_WORDS), **plain)


def clean_tip(text: str, max_words: int = MAX_TIP_WORDS) -> str:
    """Return one line of at most `max_words` words that can only pass for data; '' if no letter or digit is left.

    Thinking goes, even if it is never closed. Lines are joined; control and format characters, markup, special tokens,
    bullets and enclosing quotes go; double quotes become single ones, so that a tip between double quotes cannot close
    them. Cleaning twice changes nothing.
    """
    text, passes = strip_thinking(text)[: 8 * MAX_CHARS], 0
    while (cleaned := _clean_once(text, max_words)) != text:  # removing markup may bring new markup together
        text, passes = cleaned, passes + 1
        if passes >= 10:  # nested without end: what could become markup goes at once
            text = text.replace("<", " ")
    return text if any(map(str.isalnum, text)) else ""


def _clean_once(text: str, max_words: int) -> str:
    text = MARKUP.sub(" ", unicodedata.normalize("NFC", text))  # or one text could be stored twice
    # Category C: control, format (bidi overrides), surrogates, unassigned.
    kept = (char for char in text if char.isspace() or unicodedata.category(char)[0] != "C")
    text = "".join(" " if char.isspace() else char for char in kept)
    text = LEADING_MARKS.sub("", " ".join(text.split()).translate(QUOTES))
    while len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1].strip()
    return " ".join(text.split()[:max_words])[:MAX_CHARS].strip()


def utc_now() -> str:
    """Return the time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _find_similar_pairs(
    tips: list[MergeCandidate], least: float, dim: int
) -> Iterator[tuple[MergeCandidate, MergeCandidate, float]]:
    """Yield pairs with keys and words at least so similar, with the lower of both cosines, the highest first."""
    keys = decode_vectors([tip.vector for tip in tips], dim)
    # A model of meaning finds "go left" much like "go right", so hashing compares the words.
    words = retrieval.HashingEmbedder().embed([tip.text for tip in tips])
    alike = np.triu(np.round(np.minimum(keys @ keys.T, words @ words.T), retrieval.DECIMALS), 1)
    rows, columns = np.nonzero(alike >= np.float32(least))
    values = alike[rows, columns]
    for pair in np.lexsort((columns, rows, -values)).tolist():
        yield tips[rows[pair]], tips[columns[pair]], float(values[pair])
