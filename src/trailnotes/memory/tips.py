"""EMPO2's memory: which tips are kept, retrieved, and in which order (arXiv 2602.23008, section 4.1).

Every writer cleans a tip (`normalize_tip`); prompts quote all that they show.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trailnotes.config.schema import MemoryConfig
from trailnotes.errors import ConfigError, MemoryStoreError
from trailnotes.memory import retrieval, tip_stats
from trailnotes.memory.index import Ints, fuse_reciprocal_ranks
from trailnotes.memory.retrieval import Embedder, Floats
from trailnotes.memory.schema import EmbedderIdentity, require_identity
from trailnotes.memory.scope import TipFilter, add_filters
from trailnotes.memory.store import DISTILLED, StoreBackedMemory, TipPage, TipStore, build_addition
from trailnotes.memory.tip_stats import TipEffect
from trailnotes.types import (
    StrPath,
    Task,
    Tip,
    Trajectory,
    derive_seed,
    replace_surrogates,
    require_score_within,
    strip_thinking,
    to_finite_float,
)

Numbers = npt.NDArray[Any]  # float32 of cosines, else float64
MAX_TIP_WORDS = 100
MAX_ACTION_WORDS = 32
MAX_CHARS = 2000  # of a tip or action: words may be endless
MAX_KEY_CHARS = 32_768  # several times what the longest context holds
MARKUP = re.compile(r"<\|[^<>]{0,64}\|>|</?[A-Za-z][^<>]{0,64}>")  # special tokens of chat templates, tags
COMPUTED_KEYS = {"similarity", "ucb", "worth", "gain"}  # they depend on the search: no page is sorted by them
PROTECTED_SHARE = 0.25  # share of the capacity: the newest tips, exempt from eviction by use or worth
COMPARED_ATTEMPTS = 32  # newest attempts at the task that one is compared with
RETRY_SPACING = 8  # a withheld tip with n readers comes back in one search of so many times n
SURE_READERS = 2  # first readers of a tip, who are never left without it
LEAVE_OUT = 0.5  # probability that a session leaves out a new one of its tips; it falls with the readers
KEPT_ATTEMPTS = 100_000  # attempts in the file
MAX_TRANSCRIPT_CHARS = 32_768  # the end of a transcript that an author reads
AUTHOR_REQUEST = (
    "{transcript}\n\nThe attempt above has ended with a score of {score:g} of {max_score:g}. Write one note for the "
    "next attempt at this task: what was tried, what was learned, and what to do instead. One line, under 60 words; "
    "name places, objects and actions, so that the note can be used from a fresh start."
)
Author = Callable[[str], str | None]
"""Answers a request for one tip: for instance a call of any model."""
LEADING_MARKS = re.compile(r"^(?:[-*#>]+ |[-*#>]+$)+")  # bullets, headings, quotations
QUOTE_KINDS = ('"', "\u201c\u201d", "`", "'")
QUOTES = str.maketrans(dict.fromkeys("".join(QUOTE_KINDS), "'"))

# One-to-one replacements: nothing is left that closes a quote, opens a tag or imitates a chat template's brackets.
_ESCAPES = str.maketrans(
    {**dict.fromkeys('"“”„‟«»`', "'"), "<": "\u2039", ">": "\u203a", "[": "(", "]": ")", "|": "/", "#": " "}
)
_SPEAKERS = re.compile(
    r"\b(system|user|human|assistant|ai|model|tool|developer|notes?|task|instructions?|observation|"
    r"(?:admissible )?actions?|reply|response)\s*:",
    re.IGNORECASE,
)
_HEADER = re.compile(r"notes from earlier attempts(?: at this task)?(?: \(quoted; they may be wrong\))?", re.IGNORECASE)


class SearchHit(NamedTuple):
    """A tip, and the similarity of its key to the query."""

    tip: Tip
    similarity: float  # cosine, -1..1


@dataclass
class TipSession:
    """One attempt at a task, by an agent of any kind.

    A reader's gain is what it earned less the mean of the task's newest attempts without the tip, so let
    some sessions go without tips (`show_tips=False`): the gateway and MCP do it by a share.
    """

    memory: TipMemory
    task: str
    query: str
    id: str
    tips: tuple[Tip, ...]
    author: Author | None = None
    written: Tip | None = field(default=None, init=False)  # by the author, after the report

    @property
    def text(self) -> str:
        """Return the tips as lines for a prompt, "" for none: quoted, since they are data."""
        lines = [json.dumps(quoted(tip.text), ensure_ascii=False) for tip in self.tips]
        return "\n".join(["Notes from earlier attempts at this task (they may be wrong):", *lines]) if lines else ""

    def report(
        self, score: float, *, max_score: float = 1.0, success: bool | None = None, transcript: str = ""
    ) -> None:
        """Report the outcome, once; with a transcript, in words, the session's author then writes a tip.

        `success` says whether the goal is reached; None: whether the score is the highest.

        Raises:
            MemoryStoreError: it has been reported before.
            Exception: of the author, without whose tip the outcome is kept.
            ValueError: a score is not finite or above the highest, or that is not above 0.
        """
        self.memory.report_attempt(self.id, score, max_score=max_score, success=success)
        if self.author is not None and transcript:
            end = transcript[-MAX_TRANSCRIPT_CHARS:]
            text = self.author(AUTHOR_REQUEST.format(transcript=end, score=score, max_score=max_score))
            if text and text.strip():
                self.written = Tip(self.task, text, self.query, score, max_score, model="author of a session")
                self.memory.add([self.written])


class TipMemory(StoreBackedMemory):
    """Tips by namespace, in one store, searched through one embedder, whose vectors the store must hold.

    `clock` gives `created` to tips that have none, for information only: age is counted in writes.
    """

    def __init__(
        self, store: TipStore, embedder: Embedder, config: MemoryConfig, *, clock: Callable[[], str] | None = None
    ) -> None:
        fix = ", or convert the file with trailnotes.memory.reembed(path, name)"
        require_identity(store.identity, EmbedderIdentity(embedder.name, embedder.dim), store.path, fix)
        self.store, self.embedder, self.config = store, embedder, config
        self._clock = clock or utc_now

    def search(
        self, namespace: str, query: str, top_k: int, *, filters: Mapping[str, str | float] | None = None
    ) -> list[Tip]:
        """Return enabled tips whose key is at least `config.threshold` similar to `query`, the best first.

        The order is `config.ranking`, then the newest. Candidates are the tips of `config.scope`.

        Args:
            namespace: the task.
            query: text that keys are compared with.
            top_k: tips at most.
            filters: fields of `Tip` with the value that each must have, such as `{"run": "a", "model": "b"}`.
        """
        place = self._resolve_place(namespace)
        if filters:
            place = add_filters(place, filters)
        vector = self.embed([query])[0] if top_k > 0 and self._needs_vector(place) else None
        return self._search_place(place, query, vector, top_k)

    async def search_async(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """Search without blocking the event loop while a slow embedder, or the word index, computes."""
        place, vector = self._resolve_place(namespace), None
        if top_k > 0 and self._needs_vector(place):
            (vector,) = await retrieval.embed_async(self.embedder, [_truncate_for_embedding(query)])
        if self.config.retrieval == "dense":
            return self._search_place(place, query, vector, top_k)
        return await asyncio.to_thread(self._search_place, place, query, vector, top_k)

    def search_nearest(self, namespace: str, query: str, top_k: int, threshold: float | None = None) -> list[SearchHit]:
        """Return the candidates with their cosine similarity, the most similar first, whatever `config.order` is."""
        vector = self.embed([query])[0]
        page = self._load_page(self._resolve_place(namespace))
        least = self.config.threshold if threshold is None else threshold
        rows, similarities = page.index.find_within(vector, least)
        best = np.lexsort((-page.columns["recency"][rows], -similarities))[:top_k]
        by_id = {page.ids[rows[i]]: float(similarities[i]) for i in best}
        return [SearchHit(tip, by_id[tip.id or 0]) for tip in self.store.fetch(page, rows[best].tolist())]

    def register_tasks(self, tasks: Sequence[Task]) -> bool:
        """Record the split, environment and family of tasks; return whether any of it was new."""
        if self.config.scope == "family" and (nameless := next((task for task in tasks if not task.family), None)):
            raise ConfigError(
                f"memory.scope = family, and {nameless.id} says no family: set Task.family where {nameless.env} lists "
                "its tasks, or memory.scope = env"
            )
        return self.config.scope != "task" and self.store.tasks.register(tasks)

    def register_unknown_task(self, task: Task) -> None:
        """Record a task of an agent of its own, unless a run has recorded it as what it is."""
        if self.config.scope != "task" and self.store.tasks.get_info(task.id) is None:
            self.register_tasks([task])

    def add(self, tips: Sequence[Tip], *, once: str = "", by_owner: bool = False) -> int:
        """Store `tips` in the given order, in one transaction; return the number of rows that are new or changed.

        `once` names the batch: a batch of that name that was stored before, perhaps before a restart, is skipped.
        Tips of the owner (`by_owner`) survive when a run rewinds to a checkpoint.

        Texts are cleaned; tips without usable text are skipped. The same text again in a namespace (with entries =
        "step": under the same key; with duplicates = "exact": of the same action and score) is rejected, or counts as
        support, so that the row becomes the newest, takes the new key and action, and keeps its best score and its
        first author. An evicted tip that is written again comes back, with its readers; a distilled one does not.
        """
        if once and self.store.is_marked(once):  # before an embedder is paid for it
            return 0
        usable = [clean for tip in tips if (clean := normalize_tip(tip, self._clock))]
        vectors = self.embed([tip.key for tip in usable])
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

        By use and by worth the newest quarter is exempt, since nobody has read it yet (as in W-TinyLFU, arXiv
        1512.00727).
        """
        config = self.config
        for pool in dict.fromkeys(
            self.store.tasks.get_capacity_pool(namespace, config.scope) for namespace in namespaces
        ):
            excess = self.store.size(pool) - config.capacity
            if excess > 0:
                spared = 0 if config.retire == "oldest" else ceil(PROTECTED_SHARE * config.capacity)
                victims = self.store.select_victims(pool, config.retire, excess, spared=spared)
                self.store.retire(victims, config.retire, f"memory.capacity = {config.capacity}", on=utc_now())

    def report(self, episodes: Sequence[Trajectory], *, once: str = "") -> None:
        """Count the readers of each tip, and their gains over members without it."""
        if readings := list(tip_stats.compute_exposures(episodes)):
            with self.store.transaction():
                if not once or self.store.mark_first_time(f"read/{once}"):
                    self.store.record_exposures(readings)

    def session(
        self, task: str, query: str, *, top_k: int | None = None, show_tips: bool = True, author: Author | None = None
    ) -> TipSession:
        """Open one attempt at `task` outside our loop; its report tells what the tips were worth.

        Args:
            task: the id under which attempts share their tips.
            query: the state that tips are retrieved for.
            top_k: tips at most; None: `config.top_k`.
            show_tips: False for an attempt without tips, which the others are compared with.
            author: writes a tip from the transcript of the report.
        """
        if not isinstance(task, str):
            raise TypeError(f"a task is named by a text, not by {task!r}: write session(str(...), ...)")
        if inspect.iscoroutinefunction(author):
            raise TypeError("author must be a plain function: wrap a coroutine function in asyncio.run")
        task = replace_surrogates(task)
        self.register_unknown_task(Task(task, "session"))
        limit = self.config.top_k if top_k is None else top_k
        tips = self.search(task, query, limit) if show_tips else []
        if "gain" in self.config.ranking:
            tips = self._leave_out(task, tips)
        return TipSession(self, task, query, self.record_attempt(task, tips), tuple(tips), author)

    def _leave_out(self, task: str, tips: Sequence[Tip]) -> list[Tip]:
        """Leave out each tip now and then, the more often the newer: tips that always come together share one gain.

        Leave out all of them as often as attempts without tips are likely to earn more (Thompson sampling): each of
        several bad tips looks harmless beside the others.
        """
        draw, kept = random.Random(derive_seed("leave out", task, self.store.count_events())), list[Tip]()
        for tip in tips:
            for readers in self.store.load_reader_stats(tip.id).values():  # none of one that was just deleted
                if readers.shown < SURE_READERS or draw.random() >= LEAVE_OUT / (1 + readers.compared / 16):
                    kept.append(tip)
        attempts = self.store.load_attempts(task, 2 * COMPARED_ATTEMPTS)
        earned = [[value for shown, value in attempts if bool(shown) == reads] for reads in (True, False)]
        if kept and all(earned):
            reading, plain = (draw.betavariate(1 + sum(e), 1 + len(e) - sum(e)) for e in earned)
            return kept if reading >= plain else []
        return kept

    def record_attempt(self, task: str, tips: Sequence[Tip]) -> str:
        """Record that an attempt reads `tips`; return its id."""
        name = secrets.token_urlsafe(12)
        with self.store.transaction():
            self.store.insert_attempt(name, task, [tip.id for tip in tips if tip.id is not None], KEPT_ATTEMPTS)
        return name

    def report_attempt(
        self, attempt: str, score: float, *,
        max_score: float = 1.0, success: bool | None = None, task: str | None = None,
    ) -> None:  # fmt: skip
        """Record what an attempt (at `task`, if given) earned, and its tips gained; see `TipSession.report`."""
        score, max_score = to_finite_float("score", score), to_finite_float("max_score", max_score)
        if max_score <= 0:
            raise ValueError(f"max_score must be above 0, is {max_score}")
        require_score_within(score, max_score)
        store, earned = self.store, tip_stats.compute_credit(score, max_score, success=bool(success))
        with store.transaction():
            if finished := store.finish_attempt(attempt, earned, task):
                task, tips = finished
                others = store.load_attempts(task, COMPARED_ATTEMPTS, without=attempt)
                store.record_exposures(tip_stats.compare_reader(tips, earned, others))
        if finished is None:  # refused here, since a transaction that is undone forgets the pages that were read
            raise MemoryStoreError(f"there is no session {attempt[:40]!r} that waits for its report")

    def record_effects(self, readings: Sequence[TipEffect]) -> None:
        """Record tip effects; with `config.distilled` a tip that no longer changes anything is retired."""
        config = self.config
        if not readings:
            return
        with self.store.transaction():
            self.store.record_effects(readings, config.distilled_readers)
            for tip_id in dict.fromkeys(reading.tip for reading in readings) if config.distilled else ():
                readers = self.store.load_reader_stats(tip_id).get(tip_id)
                if readers is None or readers.measured < config.distilled_readers:
                    continue
                if readers.tip_free_ratio >= config.distilled:
                    by = f"{readers.tip_free_ratio:.2f} as often without it, by {readers.measured} readers who did well"
                    self.store.retire([tip_id], DISTILLED, by, on=utc_now())

    def _store_tip(self, tip: Tip, vector: Floats, by_owner: bool) -> int:
        same = ["key"] if self.config.entries == "step" else []
        if self.config.duplicates == "exact":
            same += ["action", "score"]
        tip_id = self.store.find_duplicate(tip, same=same, among_own=by_owner)
        if tip_id is None:
            self.store.insert(tip, vector)
            return 1
        mark = self.store.load_retirements(tip_id).get(tip_id)
        comes_back = mark is not None and mark.rule != DISTILLED and tip.enabled
        if self.config.duplicates != "count" and not comes_back:
            return 0
        old = self.store.get_tip(tip_id)
        assert old is not None, "rows do not vanish within a transaction"
        best = max(old, tip, key=lambda each: each.score / each.max_score if each.max_score > 0 else each.score)
        merged = replace(
            old, key=tip.key, action=tip.action, support=old.support + tip.support,
            score=best.score, max_score=best.max_score, enabled=old.enabled or comes_back,
        )  # fmt: skip
        self.store.update(merged, vector, refresh=True)
        return 1

    def _resolve_place(self, namespace: str) -> str | TipFilter:
        """Return what a task searches."""
        namespace, config = replace_surrogates(namespace), self.config
        return self.store.tasks.get_search_filter(namespace, config.scope, config.shared_split) or namespace

    def _load_page(self, place: str | TipFilter) -> TipPage:
        return self.store.load_page(place, [name for name in self.config.ranking if name not in COMPUTED_KEYS])

    @property
    def _ranks_all(self) -> bool:
        """Say whether all tips of a place are candidates, in an order that does not depend on the query."""
        return self.config.threshold <= -1 and "similarity" not in self.config.ranking

    def _needs_vector(self, place: str | TipFilter) -> bool:
        """Return whether the result depends on the vector of the query, which is else not embedded."""
        return self.config.retrieval != "sparse" and not self._ranks_all and bool(self._load_page(place).ids)

    def _search_place(self, place: str | TipFilter, query: str, vector: Floats | None, top_k: int) -> list[Tip]:
        if top_k <= 0:
            return []
        page = self._load_page(place)
        if vector is None and self.config.retrieval != "sparse":  # if the query decides, the place was empty before
            return self._rank_candidates(page, np.arange(len(page.ids)), None, top_k) if self._ranks_all else []
        return self._rank_candidates(page, *self._find_candidates(page, query, vector), top_k)

    def _find_candidates(self, page: TipPage, query: str, vector: Floats | None) -> tuple[Ints, Numbers]:
        """Find rows (n,), ascending, and their similarities (n,): cosine, BM25, or the reciprocal ranks by both."""
        dense = None if vector is None else page.index.find_within(vector, self.config.threshold)
        if dense is not None and self.config.retrieval == "dense":
            return dense
        scores = self.store.score_words(page, _truncate_for_embedding(query))
        rows = np.flatnonzero(scores)
        if dense is not None:
            scores = fuse_reciprocal_ranks(len(page.ids), dense, (rows, scores[rows]))
            rows = np.flatnonzero(scores)
        return rows, scores[rows]

    def _rank_candidates(self, page: TipPage, rows: Ints, similarities: Numbers | None, top_k: int) -> list[Tip]:
        if not rows.size:
            return []
        order, columns = self.config.ranking, page.columns
        computed: dict[str, Numbers] = {} if similarities is None else {"similarity": similarities}
        if "ucb" in order:
            computed["ucb"] = tip_stats.compute_ucb_scores(columns["shown"], columns["earned"], self.config.ucb)[rows]
        if "worth" in order:
            computed["worth"] = tip_stats.mean_gain(columns["compared"], columns["gained"])[rows]
        if "gain" in order:
            computed["gain"] = tip_stats.compute_gain_bounds(columns["compared"], columns["gained"])[rows]
            kept = self._select_unharmful(page, rows, computed["gain"])
            rows, computed = rows[kept], {name: numbers[kept] for name, numbers in computed.items()}
        if COMPUTED_KEYS & set(order):  # else the store has sorted the page
            columns = {**columns, "oldest": -columns["recency"]}
            keys = [computed[name] if name in computed else columns[name][rows] for name in (*order, "recency")]
            rows = rows[np.lexsort([-key for key in reversed(keys)])]
        return self._fetch_distinct(page, rows.tolist(), top_k)

    def _fetch_distinct(self, page: TipPage, rows: Sequence[int], top_k: int) -> list[Tip]:
        """Fetch the first `top_k` tips, of equal texts (of several tasks or keys) the first alone."""
        if self.config.repeat_shown:
            return self.store.fetch(page, rows[:top_k])
        distinct = dict[str, Tip]()
        for start in range(0, len(rows), top_k):
            for tip in self.store.fetch(page, rows[start : start + top_k]):
                distinct.setdefault(tip.text, tip)
            if len(distinct) >= top_k:
                break
        return [*distinct.values()][:top_k]

    def _select_unharmful(self, page: TipPage, rows: Ints, bounds: Numbers) -> npt.NDArray[np.bool_]:
        """Select rows (n,) whose `bounds` (n,) are not below 0; another is tried again now and then."""
        kept: npt.NDArray[np.bool_] = bounds >= 0
        clock = 0 if kept.all() else self.store.count_events()
        for position in np.flatnonzero(~kept).tolist():
            readers = 1 + int(page.columns["compared"][rows[position]])
            kept[position] = not derive_seed("try again", page.ids[rows[position]], clock) % (RETRY_SPACING * readers)
        return kept

    def embed(self, texts: Sequence[str]) -> Floats:
        return self.embedder.embed([_truncate_for_embedding(text) for text in texts])


def _truncate_for_embedding(text: str) -> str:
    return replace_surrogates(text[:MAX_KEY_CHARS])


def open_memory(
    path: StrPath | None, config: MemoryConfig | None = None, *,
    clock: Callable[[], str] | None = None, embedder: Embedder | None = None,
) -> TipMemory:  # fmt: skip
    """Open the memory in the file `path`, which is made if it is missing; None keeps it in this process only.

    Without an `embedder` it is that of `config.embedder`, on the CPU.

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


def normalize_tip(tip: Tip, clock: Callable[[], str], max_words: int = MAX_TIP_WORDS) -> Tip | None:
    """Return `tip` with its text and action cleaned, as a store may hold it; None without usable text."""
    text = clean_tip(tip.text, max_words)
    if not text:
        return None
    names = ("namespace", "model", "run", "created")
    plain: dict[str, Any] = {name: replace_surrogates(getattr(tip, name)) for name in names}
    plain["created"] = plain["created"] or clock()
    key = replace_surrogates(tip.key[:MAX_KEY_CHARS])
    return replace(tip, text=text, key=key, action=clean_tip(tip.action, MAX_ACTION_WORDS), **plain)


def clean_tip(text: str, max_words: int = MAX_TIP_WORDS) -> str:
    """Return one line of at most `max_words` words that can only pass for data; '' if no letter or digit is left.

    Thinking goes, even if it is never closed. Lines are joined; control and format characters, markup, special tokens,
    bullets and quotes around the whole go; double quotes become single ones, so that a tip between double quotes cannot
    close them. Cleaning twice changes nothing.
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
    text = LEADING_MARKS.sub("", " ".join(text.split()))
    for kind in QUOTE_KINDS:  # quotes enclose the whole text where it has no other of their kind
        inner = text.strip(kind)
        if text[:1] in kind and text[-1:] in kind and not set(kind) & set(inner):
            text = inner.strip()
    return " ".join(text.translate(QUOTES).split()[:max_words])[:MAX_CHARS].strip()


def quoted(text: str) -> str:
    """Make one line of data fit to stand between double quotes in a prompt.

    It can neither end its quotation nor start a line, a turn or a segment: look-alikes are folded (NFKC), and words
    that announce a speaker lose their colon.
    """
    visible = "".join(" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    plain = unicodedata.normalize("NFKC", visible).translate(_ESCAPES)
    line = " ".join(plain.split())
    return _SPEAKERS.sub(r"\1 -", _HEADER.sub("(notes)", line))


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
