"""Run directories as the real writers write them, for pages that show them; and what a browser makes of a page."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from small import merge_sections
from trailnotes.config.schema import Config
from trailnotes.memory import open_memory
from trailnotes.runs.directory import RunDir
from trailnotes.types import Completion, Observation, Step, Task, Tip, Trajectory

SETTINGS: dict[str, dict[str, Any]] = {
    "algorithm": {"name": "empo2"},
    "memory": {"threshold": -1.0, "order": ("ucb",)},
    "rollout": {"style": "full"},
    "train": {"iterations": 4},
}
WORDS = ("a dim hall", "the lamp goes out", "turn left at the well", "find the way out", "go north")
# Each ends whatever it might stand in: an element, an attribute, a script, a style, a comment.
HOSTILE = (
    '"><script>window.owned=1</script>', "</pre></textarea></title><img src=x onerror=window.owned=1>",
    "well '-->]]></style><svg onload=window.owned=1>", "{{ 7 * 7 }}{% raw %}<b>bold</b>",
    "javascript:window.owned=1//\u202e\ud800</script>",
)  # fmt: skip


def tip(text: str = WORDS[2], **fields: Any) -> Tip:
    return Tip(**{"namespace": "maze/1", "text": text, "key": WORDS[0], "score": 1.0, "action": WORDS[4],
                  "model": "start", "run": "run", **fields})  # fmt: skip


def episode(
    mode: Any = "plain", tips: tuple[Tip, ...] = (), *, won: bool = True, words: tuple[str, ...] = WORDS,
    task: str = "maze/1", steps: int = 2,
) -> Trajectory:  # fmt: skip
    hall, dark, _, goal, action = words
    played = [
        Step(
            Observation(hall if n == 0 else dark, instruction=goal if n == 0 else None), tips if n == 0 else (),
            Completion((1, 2, 3), (4, 5), (-0.5, -1.25), action), (1, 2), action, float(won and n == steps - 1),
            policy_version=3,
        )
        for n in range(steps)
    ]  # fmt: skip
    end = Observation("you are out", terminated=True, success=won, score=float(won))
    return Trajectory(Task(task, "maze"), tuple(played), end, "terminated", won, float(won), mode=mode)


def make_run(path: Path, *, words: tuple[str, ...] = WORDS, iterations: int = 3, **sections: dict[str, Any]) -> Path:
    """A run of EMPO2 in three iterations: one tip, written in the first, and read from the second on."""
    config = Config(**merge_sections(SETTINGS, sections))
    task = f"maze/{words[0]}" if words is not WORDS else "maze/1"
    with (
        RunDir.open(path, config) as run,
        open_memory(run.memory_path, config.memory, clock=lambda: "2026-01-01T00:00:00") as memory,
    ):
        stored: tuple[Tip, ...] = ()
        for iteration in range(iterations):
            with_tips = episode("off_policy", stored, words=words, task=task)
            group = [episode(words=words, task=task, won=iteration > 1), with_tips]
            run.append_trajectories(iteration, group)
            memory.report([with_tips])
            if not stored:
                memory.add([tip(words[2], namespace=task, key=words[0], action=words[4])])
                stored = tuple(memory.search(task, words[0], 1))
            line = {"env_steps": 4 * iteration + 4, "tokens_generated": 9, "tokens_trained": 18, "seconds": 61.5}
            shares = {"rollout/success/plain": float(iteration > 1), "rollout/success": 0.5, "memory/tips": 1.0}
            run.append_metrics({"iteration": iteration, "mode": "off_policy+plain", **line, **shares})
        if words is not WORDS:  # past the store's own cleaning, as another program might write it
            memory.close()
            with closing(sqlite3.connect(run.memory_path)) as connection, connection:
                connection.execute("UPDATE tips SET text = ?, key = ?, model = ?", [words[2], words[1], words[0]])
    return path


@dataclass
class Seen(HTMLParser):
    """The tags and texts of a page."""

    html: str
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def values(self, tag: str, name: str) -> list[str]:
        return [values[name] or "" for found, values in self.tags if found == tag and name in values]
