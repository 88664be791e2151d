from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from small import small_config
from trailnotes.commands import main
from trailnotes.commands.eval import evaluate
from trailnotes.commands.rollout import rollout
from trailnotes.commands.train import train
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import tasks_of
from trailnotes.errors import ConfigError
from trailnotes.runs.panels import PanelResult
from trailnotes.storage.files import read_jsonl


@pytest.fixture(scope="module")
def run_dir(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations of EMPO2, with checkpoints and a memory."""
    path = tmp_path_factory.mktemp("runs") / "empo2"
    train(a_config(start_model, train={"iterations": 2}), path)
    return path


def a_config(start: Path, **sections: Any) -> Config:
    sections = {"model": {}, "eval": {}} | sections
    return small_config(**sections | {"model": {"path": str(start), "device": "cpu"} | sections["model"]})


def fingerprint(directory: Path) -> dict[str, str]:
    files = (file for file in sorted(directory.rglob("*")) if file.is_file())
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def lines(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path))


# -- the panel


def test_memory_is_refused_where_there_is_none(start_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no memory to act with"):
        evaluate(a_config(start_model), start_model, memory=True, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_panel_is_fixed_logged_and_repeats(start_model: Path, tmp_path: Path) -> None:
    config = a_config(start_model, eval={"num_samples": 2})
    first, again = (evaluate(config, start_model, out=tmp_path / name) for name in ("a", "b"))
    assert first == again
    episodes = lines(tmp_path / "a" / "episodes.jsonl")
    assert episodes == lines(tmp_path / "b" / "episodes.jsonl")
    wanted = [task.id for task in tasks_of(config, "test")][::10]
    assert [record["task"]["id"] for record in episodes] == [name for name in wanted for _ in range(2)]
    assert {record["mode"] for record in episodes} == {"plain"}
    said = [tuple(step["action"] for step in record["steps"]) for record in episodes]
    assert any(said[i] != said[i + 1] for i in range(0, 8, 2)), "each sample has a seed of its own"
    log = json.loads((tmp_path / "a" / "panel.json").read_text())
    assert log == {
        "model": str(start_model), "seed": 0, "env": "waymarks-simulator", "split": "test", "num_samples": 2,
        "temperature": 0.4, "tasks": wanted,
    }  # fmt: skip
    assert (first.num_tasks, first.num_episodes, first.seeds, first.env_steps) == (4, 8, 1, 0)
    assert first.algorithm == "start"


def test_another_seed_draws_other_episodes_of_the_same_tasks(start_model: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        evaluate(a_config(start_model, run={"seed": seed}), start_model, out=tmp_path / str(seed))
    a, b = (lines(tmp_path / name / "episodes.jsonl") for name in "01")
    assert [record["task"] for record in a] == [record["task"] for record in b]
    assert a != b


def test_the_runs_memory_is_read_when_asked_for_and_left_as_it_was(run_dir: Path, tmp_path: Path) -> None:
    config = a_config(run_dir, eval={"split": "train", "num_tasks": 0})
    before = fingerprint(run_dir)
    without, with_notes = (evaluate(config, run_dir, memory=m, out=tmp_path / str(m)) for m in (False, True))
    assert fingerprint(run_dir) == before
    assert (without.memory, with_notes.memory) == (False, True)
    shown = [step["tips"] for record in lines(tmp_path / "True" / "episodes.jsonl") for step in record["steps"]]
    assert any(shown)
    assert not any(step["tips"] for record in lines(tmp_path / "False" / "episodes.jsonl") for step in record["steps"])


def test_eval_on_the_command_line(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", str(run_dir), "--memory", "--out", str(tmp_path), "--eval.num_tasks", "2"]
    assert main(words) == 0
    assert "| empo2 | with | test (2) | success |" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert row["env_steps"] > 0
    assert row.keys() == {field.name for field in fields(PanelResult)}


def test_rollout_plays_training_games_to_be_read(start_model: Path, tmp_path: Path) -> None:
    episodes = rollout(a_config(start_model), out=tmp_path / "e.jsonl")
    assert [e.task.split for e in episodes] == ["train", "train"]
    assert len(lines(tmp_path / "e.jsonl")) == 2


def test_commands_may_run_one_after_another_in_one_process(start_model: Path) -> None:
    """Each has an event loop of its own, and leaves none behind."""
    evaluate(a_config(start_model), start_model)
    evaluate(a_config(start_model), start_model)
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()
