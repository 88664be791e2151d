"""Demonstrations from recorded episodes: one of an expert for each game, and some wanderings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from trailnotes.storage.demonstrations import Demonstration
from trailnotes.storage.files import (
    encode_line,
    get_cache_dir,
    read_jsonl,
    trajectory_from_json,
    trajectory_to_json,
    write_bytes_atomic,
)
from trailnotes.types import Tip, Trajectory
from trailnotes.warmstart.demonstrations.episodes import Demonstrator, build_demonstrations, get_actions

NUM_WANDERINGS = 4  # recorded for each game


@dataclass(frozen=True, slots=True)
class RecordedGame:
    """Recorded episodes of one variation."""

    gold: Trajectory | None  # None where no short enough path reaches the full score
    wandered: tuple[Trajectory, ...]

    @property
    def all_episodes(self) -> tuple[Trajectory, ...]:
        return (*self.wandered, self.gold) if self.gold else self.wandered


class RecordedDemonstrator(Demonstrator):
    """Base of demonstrators that draw from recorded episodes, which subclasses record; no draw changes a recording."""

    def demonstrate_episode(self, recorded: RecordedGame) -> list[Demonstration]:
        """Draw an episode's demonstrations: a row to act, and after tips a tip-free row to write."""
        warm = self.config.warmstart
        if self.rng.random() < warm.p_follow_tip and self.max_tips:
            trajectory = self.rng.choice(recorded.all_episodes)
            praise = self.build_tip(trajectory, trajectory.max_score)
            others = self.build_failure_tips(recorded, trajectory) if self.rng.random() < 0.4 else ()
            tips = (praise, *others)[: self.max_tips]
        else:
            plays_gold = recorded.gold and self.rng.random() >= warm.p_explore
            trajectory = recorded.gold if recorded.gold and plays_gold else self.rng.choice(recorded.wandered)
            tips = self.build_failure_tips(recorded, trajectory) if self.rng.random() < 0.3 else ()
        return self.build_rows(trajectory, tips)

    def build_failure_tips(self, recorded: RecordedGame, trajectory: Trajectory) -> tuple[Tip, ...]:
        """Build tips of other endings than that of `trajectory`, with their bad scores."""
        others = [
            other
            for other in recorded.wandered
            if other.score < other.max_score and get_actions(other)[-1] != get_actions(trajectory)[-1]
        ]
        self.rng.shuffle(others)
        chosen = sorted(others[: self.rng.randint(1, 2)], key=lambda t: -t.score)
        return tuple(self.build_tip(t, t.score) for t in chosen)[: self.max_tips]

    def build_tip(self, trajectory: Trajectory, score: float) -> Tip:
        return Tip(
            trajectory.task.id, self.write_note(trajectory, score), key="", score=score, max_score=trajectory.max_score
        )

    def write_note(self, trajectory: Trajectory, score: float) -> str:  # noqa: ARG002 (subclasses use it)
        """Write the note about an episode that ended with `score`: the actions; the score stands next to it."""
        return " ; ".join(get_actions(trajectory))

    def build_rows(self, trajectory: Trajectory, tips: tuple[Tip, ...]) -> list[Demonstration]:
        """Build the conversations of an episode that showed `tips` in its first turn."""
        note = self.write_note(trajectory, trajectory.score)
        act, *write = build_demonstrations(trajectory, tips, note, self.config, self.count_tokens)
        return [act, *write] if tips and self.rng.random() < 0.2 else [act]  # every row without tips writes, too


def load_or_record(
    name: str, wanted: Mapping[str, Any], record: Callable[[], Iterable[Trajectory]]
) -> list[RecordedGame]:
    """Load recorded games from the cache, or record them into it.

    `wanted` has everything that decides the recording, as JSON values; the expert's episodes have `member` 0.
    """
    path = get_cache_dir("games") / f"{name}-{sha256(encode_line(dict(wanted))).hexdigest()[:24]}.jsonl"
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
