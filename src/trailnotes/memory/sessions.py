"""Attempts outside our loop: a session hands out tips, and its report teaches the memory what they were worth.

A reader's gain is what it earned less the mean of the task's newest attempts that were not shown the tip. So let some
sessions go without tips (`show_tips=False`): the gateway and MCP do it by a share.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from trailnotes.errors import MemoryStoreError
from trailnotes.memory.base import Memory
from trailnotes.memory.tip_stats import compare_reader, compute_credit
from trailnotes.types import Tip, to_finite_float

if TYPE_CHECKING:
    from trailnotes.memory.store import TipStore

COMPARED: Final = 32  # newest attempts at the task that one is compared with
KEPT: Final = 100_000  # attempts in the file
MAX_TRANSCRIPT_CHARS: Final = 32_768  # the end of a transcript that an author reads
_REQUEST: Final = (
    "{transcript}\n\nThe attempt above has ended with a score of {score:g} of {max_score:g}. Write one note for the "
    "next attempt at this task: what was tried, what was learned, and what to do instead. One line, under 60 words; "
    "name places, objects and actions, so that the note can be used from a fresh start."
)
Author = Callable[[str], str]
"""Answers a request for one tip: for instance a call of any model."""


class StoredMemory(Memory, Protocol):
    """A memory in one store, such as `TipMemory`."""

    store: TipStore


@dataclass
class TipSession:
    """One attempt at a task, by an agent of any kind."""

    memory: StoredMemory
    task: str
    query: str
    id: str
    tips: tuple[Tip, ...]
    author: Author | None = None
    written: Tip | None = field(default=None, init=False)  # by the author, after the report

    @property
    def text(self) -> str:
        """Return the tips as lines for a prompt, "" for none: quoted, since they are data."""
        lines = [json.dumps(tip.text, ensure_ascii=False) for tip in self.tips]
        return "\n".join(["Notes from earlier attempts at this task (they may be wrong):", *lines]) if lines else ""

    def report(
        self, score: float, *, max_score: float = 1.0, success: bool | None = None, transcript: str = ""
    ) -> None:
        """Report the outcome, once; with a transcript the session's author then writes a tip.

        Args:
            score: at most `max_score`.
            max_score: above 0.
            success: whether the goal is reached; None: whether the score is the highest.
            transcript: what happened, in words.

        Raises:
            MemoryStoreError: it has been reported before.
            ValueError: the score is none.
        """
        report_attempt(self.memory, self.id, score, max_score=max_score, success=success)
        if self.author is not None and transcript:
            end = transcript[-MAX_TRANSCRIPT_CHARS:]
            text = self.author(_REQUEST.format(transcript=end, score=score, max_score=max_score))
            if text.strip():
                self.written = Tip(self.task, text, self.query, score, max_score, model="author of a session")
                self.memory.add([self.written])


def record_attempt(memory: StoredMemory, task: str, tips: Sequence[Tip]) -> str:
    """Record that an attempt is shown `tips`; return its id."""
    name = secrets.token_urlsafe(12)
    with memory.store.transaction():
        memory.store.insert_attempt(name, task, [tip.id for tip in tips if tip.id is not None], KEPT)
    return name


def report_attempt(
    memory: StoredMemory, attempt: str, score: float, *, max_score: float = 1.0, success: bool | None = None
) -> None:
    """Record what an attempt earned, and what each of its tips gained; see `TipSession.report`."""
    score, max_score = to_finite_float("score", score), to_finite_float("max_score", max_score)
    if max_score <= 0:
        raise ValueError(f"max_score must be above 0, is {max_score}")
    earned = compute_credit(score, max_score, success=bool(success))
    store = memory.store
    with store.transaction():
        finished = store.finish_attempt(attempt, earned)
        if finished is None:
            raise MemoryStoreError(f"there is no session {attempt[:40]!r} that waits for its report")
        task, tips = finished
        store.record_exposures(compare_reader(tips, earned, store.load_attempts(task, COMPARED, without=attempt)))
