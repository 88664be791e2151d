"""`trailnotes demo --real`: before, training, after; a table, a curve, one game in two columns. With a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trailnotes.commands.demo import real
from trailnotes.commands.demo.real import WIDTH, run_real_demo
from trailnotes.errors import RunError
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Completion, Observation, Step, Task, Trajectory

SETTINGS = (
    *("--eval.num_tasks", "4", "--train.iterations", "2", "--train.max_env_steps", "0"),
    *("--rollout.num_tasks", "2", "--algorithm.name", "grpo"),
)


@pytest.fixture(scope="module")
def real_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Trajectory]]]:
    out = tmp_path_factory.mktemp("demo") / "out"
    return out, run_real_demo(out, SETTINGS, "demo-small")


@pytest.mark.usefixtures("same_threads")
def test_it_evaluates_before_and_after_training_on_the_same_games(real_demo: Any) -> None:
    out, episodes = real_demo
    before, after = ([episode.task.id for episode in played] for played in episodes.values())
    assert before == after
    assert len(before) == 4
    assert len(list(read_jsonl(out / "run" / "metrics.jsonl"))) == 2
    table = (out / "table.md").read_text().splitlines()
    assert [line.split("|")[1].strip() for line in table] == ["agent", "---", "initial model", "trained"]
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("same_threads")
def test_the_same_call_plays_nothing_again(real_demo: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out, episodes = real_demo
    files = [*out.glob("*/episodes.jsonl"), *out.glob("run/checkpoints/*/model/*")]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert run_real_demo(out, SETTINGS, "demo-small") == episodes
    assert {path: path.stat().st_mtime_ns for path in files} == before
    printed = capsys.readouterr().out
    assert "one game before and after training: waymarks/" in printed
    assert "4 episodes each. Intervals: on this panel" in printed
    with pytest.raises(RunError, match=r"rollout\.num_tasks"):
        run_real_demo(out, [*SETTINGS, "--rollout.num_tasks", "3"], "demo-small")


def play(game: str, *steps: tuple[str, float]) -> Trajectory:
    seen, end = Observation("A hall.\nA door.", instruction="Leave."), Observation("x" * 100, terminated=True)
    completion = Completion((1,), (2,), (-1.0,), "", "stop")
    done = tuple(Step(seen, (), completion, (1,), action, reward) for action, reward in steps)
    return Trajectory(Task(game, "maze"), done, end, "terminated", success=False, score=0.0, mode="plain")


def test_the_game_whose_return_grew_most_is_told_in_two_columns() -> None:
    before = [play("maze/0", ("wait", 1.0)), play("maze/1", ("wait", 0.0), ("sing", 0.0))]
    after = [play("maze/0", ("leave", 1.5)), play("maze/1", ("leave", 1.0))]
    one, other = real.find_largest_gain(before, after)
    assert (one.task.id, one.episode_return, other.episode_return) == ("maze/1", 0.0, 1.0)
    lines = real.render_side_by_side(one, other).splitlines()
    assert lines[:2] == ["one game before and after training: maze/1", "Leave."]
    left = [line[:WIDTH].rstrip() for line in lines[5:]]
    assert left == ["> wait", "  A hall.", "> sing", f"  {'x' * 53}...", "return 0"]
    assert [line[WIDTH + 3 :] for line in lines[5:8]] == ["> leave   [+1]", f"  {'x' * 53}...", "return 1"]
