"""Reflexion's memory: the plans of each task, all kept, the newest few shown (arXiv 2303.11366, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from trailnotes.memory.controls import TipSource, blank_tips, pick_other_namespace
from trailnotes.memory.retrieval import HashingEmbedder
from trailnotes.memory.schema import EmbedderIdentity, replace_surrogates
from trailnotes.memory.store import StoreBackedMemory, TipStore
from trailnotes.memory.tips import normalize_tip, utc_now
from trailnotes.types import Tip

MAX_PLAN_WORDS: Final = 300  # of a plan: the released run's longest has 231


class ReflectionMemory(StoreBackedMemory):
    """Plans by task, in a memory file like any other. Nothing is retrieved by similarity, and nothing is ever removed.

    Args:
        path: the file; None keeps everything in this process.
        window: plans shown at most, the newest.
        clock: gives `created`; information only.
    """

    def __init__(self, path: Path | None, window: int, *, clock: Callable[[], str] | None = None) -> None:
        self.embedder = HashingEmbedder()  # `trailnotes memory search` finds plans by their words
        self.store = TipStore(path, EmbedderIdentity(self.embedder.name, self.embedder.dim))
        self.window = window
        self._clock = clock or utc_now

    def get_prompt_plans(self, namespace: str, show: TipSource = "own") -> list[Tip]:
        """The plans that the task's next attempt begins with: its window, or a control in the place of it.

        "other" takes the newest plans of another task (`pick_other_namespace`), as many as there are own ones or fewer;
        "empty" the own ones without words.
        """
        own = self.search(namespace, "", self.window)
        if show == "empty":
            return blank_tips(own)
        if show == "own" or not own:
            return own
        other = pick_other_namespace(self.store, replace_surrogates(namespace))
        return [] if other is None else self.search(other, "", len(own))

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:  # noqa: ARG002 (a task has one window)
        """The newest `window` enabled plans of the task, `top_k` at most, the oldest of them first."""
        plans = [plan for plan in self.store.load_tips(replace_surrogates(namespace)) if plan.enabled]
        return plans[max(0, len(plans) - min(self.window, top_k)) :]

    def add(self, tips: Sequence[Tip], *, once: str = "") -> int:
        """Store plans in the order given, in one transaction; a repeated text is stored as another plan.

        Texts are cleaned, and plans of which nothing is left are skipped. `once` as in `TipMemory.add`.
        """
        usable = [plan for tip in tips if (plan := normalize_tip(tip, self._clock, MAX_PLAN_WORDS))]
        vectors = self.embedder.embed([tip.text for tip in usable])
        with self.store.transaction():
            if once and not self.store.mark_first_time(once):
                return 0
            for tip, vector in zip(usable, vectors, strict=True):
                self.store.insert(tip, vector)
        return len(usable)
