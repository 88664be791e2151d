"""`trailnotes demo --small`: three steps, one table, curves and a tip; what the whole demo lacks is said at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trailnotes.commands.demo import LABELS, run_small_demo
from trailnotes.errors import RunError
from trailnotes.storage.files import read_jsonl

SETTINGS = ("--eval.num_tasks", "4", "--eval.trials", "1", "--train.max_env_steps", "100", "--rollout.num_tasks", "2")


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("demo") / "out"
    return out, run_small_demo(out, SETTINGS)


@pytest.mark.usefixtures("same_threads")
def test_both_methods_train_equally_long_and_play_the_games_of_the_initial_model(small_demo: Any) -> None:
    out, rows = small_demo
    assert [row.num_tasks for row in rows.values()] == [4] * 4
    assert [row.memory for row in rows.values()] == [False, True, False, False]
    assert (out / "table.md").read_text().count("\n") == 2 + len(rows)
    for name in LABELS:
        *_, last = read_jsonl(out / name / "metrics.jsonl")
        assert 100 <= last["env_steps"] < 200


@pytest.mark.usefixtures("same_threads")
def test_once_more_it_trains_nothing_and_says_the_same(small_demo: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out, rows = small_demo
    before = {path: path.stat().st_mtime_ns for path in out.rglob("checkpoints/*/model/*")}
    assert run_small_demo(out, SETTINGS) == rows
    assert {path: path.stat().st_mtime_ns for path in out.rglob("checkpoints/*/model/*")} == before
    said = capsys.readouterr().out
    assert all(name in said for name in rows)
    assert "A tip that the agent wrote about waymarks/" in said
    with pytest.raises(RunError, match="eval"):
        run_small_demo(out, [*SETTINGS[2:], "--eval.num_tasks", "3"])
