"""Demonstrations drawn from recorded episodes: of each game one that an expert plays, and some that wander."""

from __future__ import annotations

import random
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from trailnotes.envs.textworld.interpreter import cache_dir
from trailnotes.storage.files import encode_line, read_jsonl, write_bytes_atomic
from trailnotes.storage.records import trajectory_from_json, trajectory_to_json
from trailnotes.types import Tip, Trajectory
from trailnotes.warmstart.demonstrations.episodes import actions_of, conversations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from typing import Any

    from trailnotes.config.schema import Config
    from trailnotes.storage.demonstrations import Demonstration

WANDERINGS = 4  # recorded for each game


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded of one variation."""

    gold: Trajectory | None  # None where no short enough path reaches the full score
    wandered: tuple[Trajectory, ...]

    @property
    def everything(self) -> tuple[Trajectory, ...]:
        """All its episodes."""
        return (*self.wandered, self.gold) if self.gold else self.wandered


class RecordedDemonstrator:
    """Makes the demonstrations of recorded episodes; whoever inherits records and draws them.

    Args:
        config: prompts, memory, `env.options`, and the shares of `config.warmstart`.
        count_tokens: of the tokenizer, for the length caps.
        seed: of everything drawn here; what was recorded does not depend on it.
    """

    def __init__(self, config: Config, count_tokens: Callable[[str], int], seed: int) -> None:
        self.config, self.count_tokens = config, count_tokens
        self.rng = random.Random(seed)

    def episode(self, recorded: Recorded) -> list[Demonstration]:
        """One episode's demonstrations: a row to act, and where it acted on tips, a tip-free row to write."""
        warm = self.config.warmstart
        if self.rng.random() < warm.obey:
            trajectory = self.rng.choice(recorded.everything)
            tips = self.praising(trajectory, recorded)
        elif recorded.gold and self.rng.random() >= warm.read:
            trajectory = recorded.gold
            tips = self.failures(recorded, trajectory) if self.rng.random() < 0.3 else ()
        else:
            trajectory = self.rng.choice(recorded.wandered)
            tips = self.failures(recorded, trajectory) if self.rng.random() < 0.3 else ()
        return self.rows(trajectory, tips)

    def praising(self, trajectory: Trajectory, recorded: Recorded) -> tuple[Tip, ...]:
        """Tips of which the first has a full score and tells `trajectory`, whatever that was really worth."""
        right = self.tip(trajectory, trajectory.max_score)
        others = self.failures(recorded, trajectory) if self.rng.random() < 0.4 else ()
        return (right, *others)[: self.config.memory.top_k]

    def failures(self, recorded: Recorded, trajectory: Trajectory) -> tuple[Tip, ...]:
        """Tips that tell other endings than that of `trajectory`, with the bad scores they had."""
        others = [
            other
            for other in recorded.wandered
            if other.score < other.max_score and actions_of(other)[-1] != actions_of(trajectory)[-1]
        ]
        self.rng.shuffle(others)
        chosen = sorted(others[: self.rng.randint(1, 2)], key=lambda t: -t.score)
        return tuple(self.tip(t, t.score) for t in chosen)[: self.config.memory.top_k]

    def tip(self, trajectory: Trajectory, score: float) -> Tip:
        """What a memory would hold of an episode that ended with `score`."""
        return Tip(
            trajectory.task.id, self.note(trajectory, score), key="", score=score, max_score=trajectory.max_score
        )

    def note(self, trajectory: Trajectory, score: float) -> str:  # noqa: ARG002 (told in English alone)
        """What is written about an episode that ended with `score`."""
        return note_of(trajectory)

    def rows(self, trajectory: Trajectory, tips: tuple[Tip, ...]) -> list[Demonstration]:
        """The conversations of an episode that showed `tips` in its first turn."""
        note = self.note(trajectory, trajectory.score)
        act, *write = conversations(trajectory, tips, note, self.config, self.count_tokens)
        return [act, *write] if tips and self.rng.random() < 0.2 else [act]  # every row without tips writes, too


def note_of(trajectory: Trajectory) -> str:
    """The tip that a good writer writes: what was done, in order; the score is shown beside every tip."""
    return " ; ".join(actions_of(trajectory))


def read_or_record(
    name: str, wanted: Mapping[str, Any], record: Callable[[], Iterable[Trajectory]], folder: Path | None = None
) -> list[Recorded]:
    """What was recorded, game by game: from the cache, or recorded into it now.

    Args:
        name: what the file's name begins with.
        wanted: everything that decides what is recorded, as JSON values.
        record: the episodes; the expert's have `member` 0.
        folder: of the cache.
    """
    path = (folder or cache_dir()) / f"{name}-{sha256(encode_line(dict(wanted))).hexdigest()[:24]}.jsonl"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomic(path, b"".join(encode_line(trajectory_to_json(episode)) for episode in record()))
    groups: dict[str, list[Trajectory]] = {}
    for line in read_jsonl(path):
        trajectory = trajectory_from_json(line)
        groups.setdefault(trajectory.task.id, []).append(trajectory)
    return [
        Recorded(next((t for t in group if t.member == 0), None), tuple(t for t in group if t.member))
        for group in groups.values()
    ]
