from __future__ import annotations

from trailnotes.reporting.episodes import render_episode
from trailnotes.types import Completion, Observation, Step, Task, Tip, Trajectory


def test_an_episode_reads_like_a_play() -> None:
    message = Completion((1,), (2,), (-0.1,), "go left")
    tip = Tip("maze/1", "left, then right", "key", score=1.0)
    first = Observation("A hall.\n\nExits: left.", instruction="find the coin")
    episode = Trajectory(
        Task("maze/1", "maze"),
        (Step(first, (tip,), message, (1,), "go left", 0.0), Step(Observation(""), (), message, (1,), "", 1.0, 0.5)),
        Observation("You have won."),
        "terminated",
        success=True,
        score=1.0,
        mode="off_policy",
    )
    assert render_episode(episode).splitlines() == [
        "== maze/1  [off_policy]",
        "   goal: find the coin",
        "  1 sees: A hall.",
        "",
        "          Exits: left.",
        "    tip: left, then right  (1/1)",
        "   does: go left",
        "  2 sees:",
        "   does: [reward +1, novelty +0.5]",
        "    end: You have won.",
        "== success, score 1/1, return 1, terminated",
    ]


def test_failed_episode_and_long_text() -> None:
    words = [f"word{i}" for i in range(300)]
    failed = Trajectory(Task("a", "b"), (), Observation(" ".join(words)), "error", False, 0.0, error="worker died")
    text = render_episode(failed)
    assert text.endswith("== no success, score 0/1, return 0, worker died\n")
    assert [word for word in text.split() if word.startswith("word")] == words
    assert max(map(len, text.splitlines())) <= 100
