"""The section of the settings that belongs to the memory of tips."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from trailnotes.config.section import PAPER, RELEASE, Section, key, require_secret_free_url

EMBEDDER_KEY_VARIABLE = "TRAILNOTES_EMBEDDER_KEY"  # the variable for an address that `embedder` names itself
MAX_REQUESTED_WORDS = 100  # of a tip, by the paper's request
TOKENS_PER_WORD = 1.5  # English prose takes 1.2 to 1.4 in a vocabulary of a hundred thousand; names take more


def validate_embedder_name(embedder: str) -> None:
    """Refuse an embedder's address with a password; the error does not repeat it."""
    require_secret_free_url("memory.embedder", embedder, EMBEDDER_KEY_VARIABLE)


class MemoryConfig(Section):
    """The store of tips."""

    distilled_readers: ClassVar[int] = 4  # successful readers that a tip needs for `distilled`
    shared_split: ClassVar[str] = "train"  # wider scopes: games of all splits may read its tips
    exact_below: ClassVar[int] = 5000  # tips of a task or scope from which searches use the index
    candidates: ClassVar[int] = 128  # nearest tips that the index returns, for `order` to sort

    embedder: str = key(
        "hashing", "hashing (no dependency), minilm (extra embed), a sentence-transformers name, or openai:NAME, the "
        "model NAME of the [endpoint]; openai:NAME@URL is that of another server")  # fmt: skip
    capacity: int = key(1000, "most enabled tips of a task, or of a wider scope, in each split", PAPER, ge=1)
    retire: Literal["oldest", "least_used", "least_worth"] = key(
        "oldest", "tips evicted above the capacity: the oldest (paper), those with the fewest readers, or those of the "
        "least worth")  # fmt: skip
    distilled: float = key(
        0.0, "retire a tip once the policy repeats its readers' actions without it with at least this relative "
        "probability; 0 = never (empo2). With rollout.max_async_iterations, timing decides which tips the next batch "
        "still finds", ge=0, le=1)  # fmt: skip
    scope: Literal["task", "family", "env", "all"] = key(
        "task", "tasks whose tips an episode reads: its own (paper) or more"
    )
    retrieval: Literal["dense", "sparse", "hybrid"] = key("dense", "cosine of vectors (paper), BM25, or ranks by both")
    top_k: int = key(10, "tips shown at most", PAPER, ge=0)
    threshold: float = key(0.5, "cosine similarity below which a tip is not a candidate; -1 = none", PAPER, ge=-1, le=1)
    query: Literal["state", "conversation"] = key(
        "state", "text searched for: task and newest observation, or all (paper)"
    )
    entries: Literal["episode", "step"] = key("episode", "entries for each tip: one, or one per step (release)")
    duplicates: Literal["reject", "count"] = key(
        "count", "a tip written again: rejected (paper), or raises its support"
    )
    order: tuple[Literal["gain", "score", "support", "recency", "similarity", "ucb", "worth"], ...] = key(
        ("gain", "score", "support", "recency"), "order of the candidates (paper: the score); ucb: by the return of "
        "their readers; worth: by that return less that of group members who did not read them; gain: by the most that "
        "this is likely to be, and a tip is withheld where that is below 0")  # fmt: skip
    ucb: float = key(
        1.0, "order by ucb: weight of the bonus for tips with few readers",
        "arXiv 2603.08561", ge=0, needs="memory.order = ucb")  # fmt: skip
    max_tip_tokens: int = key(160, "a shown tip is cut here; less than 150 asks for tips of fewer words", ge=4)
    max_write_tokens: int = key(192, "decoding limit when a tip is written (release: 512)", RELEASE, ge=1)
    write_temperature: float = key(1.0, "sampling temperature when a tip is written", ge=0)
    show_score: bool = key(True, "show each tip with the score of its episode")
    leave_room: bool = key(True, "show only tips that leave room for the turns left, each as long as those so far")
    repeat_shown: bool = key(False, "show a tip again that an earlier turn of the episode already holds")

    @model_validator(mode="after")
    def validate_embedder(self) -> Self:
        """Refuse an address that holds a secret."""
        validate_embedder_name(self.embedder)
        return self

    def with_embedder(self, embedder: str = "") -> Self:
        """Return the settings of a possibly untrusted run, with the embedder that its reader names.

        A run directory may come from a stranger: it decides eviction and order of tips, but never which model is
        loaded, which server is asked, or with which key.
        """
        return self.model_copy(update={"embedder": embedder or MemoryConfig().embedder})

    @property
    def ranking(self) -> tuple[str, ...]:
        """Return the order of candidates; beyond the task similarity comes first, unless it is placed already."""
        if self.scope == "task" or "similarity" in self.order:
            return self.order
        return ("similarity", *self.order)

    @property
    def is_ranked_by_feedback(self) -> bool:
        """Tell whether readers' results decide which tips are shown or kept."""
        return not {"ucb", "worth"}.isdisjoint(self.ranking) or self.retire in {"least_used", "least_worth"}

    @property
    def requested_words(self) -> int:
        """Return the word limit of a tip: 100 (paper), or fewer if fewer can be written and shown in full."""
        return max(1, min(MAX_REQUESTED_WORDS, int(min(self.max_tip_tokens, self.max_write_tokens) / TOKENS_PER_WORD)))
