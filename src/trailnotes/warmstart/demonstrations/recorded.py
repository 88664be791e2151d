"""Demonstrations drawn from recorded episodes: of each game one that an expert plays, and some that wander."""

from __future__ import annotations

import random
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from trailnotes.envs.textworld.interpreter import get_games_dir
from trailnotes.storage.files import encode_line, read_jsonl, write_bytes_atomic
from trailnotes.storage.records import trajectory_from_json, trajectory_to_json
from trailnotes.types import Tip, Trajectory
from trailnotes.warmstart.demonstrations.episodes import build_demonstrations, get_actions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from typing import Any

    from trailnotes.config.schema import Config
    from trailnotes.storage.demonstrations import Demonstration

NUM_WANDERINGS = 4  # recorded for each game


@dataclass(frozen=True, slots=True)
class RecordedGame:
    """What was recorded of one variation."""

    gold: Trajectory | None  # None where no short enough path reaches the full score
    wandered: tuple[Trajectory, ...]

    @property
    def all_episodes(self) -> tuple[Trajectory, ...]:
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

    def demonstrate_episode(self, recorded: RecordedGame) -> list[Demonstration]:
        """One episode's demonstrations: a row to act, and where it acted on tips, a tip-free row to write."""
        warm = self.config.warmstart
        if self.rng.random() < warm.p_follow_tip:
            trajectory = self.rng.choice(recorded.all_episodes)
            tips = self.build_praising_tips(trajectory, recorded)
        elif recorded.gold and self.rng.random() >= warm.p_explore:
            trajectory = recorded.gold
            tips = self.build_failure_tips(recorded, trajectory) if self.rng.random() < 0.3 else ()
        else:
            trajectory = self.rng.choice(recorded.wandered)
            tips = self.build_failure_tips(recorded, trajectory) if self.rng.random() < 0.3 else ()
        return self.build_rows(trajectory, tips)

    def build_praising_tips(self, trajectory: Trajectory, recorded: RecordedGame) -> tuple[Tip, ...]:
        """Tips of which the first has a full score and tells `trajectory`, whatever that was really worth."""
        right = self.build_tip(trajectory, trajectory.max_score)
        others = self.build_failure_tips(recorded, trajectory) if self.rng.random() < 0.4 else ()
        return (right, *others)[: self.config.memory.top_k]

    def build_failure_tips(self, recorded: RecordedGame, trajectory: Trajectory) -> tuple[Tip, ...]:
        """Tips that tell other endings than that of `trajectory`, with the bad scores they had."""
        others = [
            other
            for other in recorded.wandered
            if other.score < other.max_score and get_actions(other)[-1] != get_actions(trajectory)[-1]
        ]
        self.rng.shuffle(others)
        chosen = sorted(others[: self.rng.randint(1, 2)], key=lambda t: -t.score)
        return tuple(self.build_tip(t, t.score) for t in chosen)[: self.config.memory.top_k]

    def build_tip(self, trajectory: Trajectory, score: float) -> Tip:
        """What a memory would hold of an episode that ended with `score`."""
        return Tip(
            trajectory.task.id, self.write_note(trajectory, score), key="", score=score, max_score=trajectory.max_score
        )

    def write_note(self, trajectory: Trajectory, score: float) -> str:  # noqa: ARG002 (told in English alone)
        """What is written about an episode that ended with `score`."""
        return format_action_note(trajectory)

    def build_rows(self, trajectory: Trajectory, tips: tuple[Tip, ...]) -> list[Demonstration]:
        """The conversations of an episode that showed `tips` in its first turn."""
        note = self.write_note(trajectory, trajectory.score)
        act, *write = build_demonstrations(trajectory, tips, note, self.config, self.count_tokens)
        return [act, *write] if tips and self.rng.random() < 0.2 else [act]  # every row without tips writes, too


def format_action_note(trajectory: Trajectory) -> str:
    """The tip that a good writer writes: what was done, in order; the score is shown beside every tip."""
    return " ; ".join(get_actions(trajectory))


def load_or_record(
    name: str, wanted: Mapping[str, Any], record: Callable[[], Iterable[Trajectory]], folder: Path | None = None
) -> list[RecordedGame]:
    """What was recorded, game by game: from the cache, or recorded into it now.

    Args:
        name: what the file's name begins with.
        wanted: everything that decides what is recorded, as JSON values.
        record: the episodes; the expert's have `member` 0.
        folder: of the cache.
    """
    path = (folder or get_games_dir()) / f"{name}-{sha256(encode_line(dict(wanted))).hexdigest()[:24]}.jsonl"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomic(path, b"".join(encode_line(trajectory_to_json(episode)) for episode in record()))
    groups: dict[str, list[Trajectory]] = {}
    for line in read_jsonl(path):
        trajectory = trajectory_from_json(line)
        groups.setdefault(trajectory.task.id, []).append(trajectory)
    return [
        RecordedGame(next((t for t in group if t.member == 0), None), tuple(t for t in group if t.member))
        for group in groups.values()
    ]
