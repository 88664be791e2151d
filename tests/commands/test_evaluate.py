from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from small import small_config
from trailnotes.commands import evaluation as module
from trailnotes.commands import main
from trailnotes.commands.evaluation import evaluate, resolve, rollout
from trailnotes.commands.training import train
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import tasks_of
from trailnotes.errors import ConfigError, RunError
from trailnotes.runs.panels import (
    PanelResult,
    Subject,
    family_of,
    interval_of,
    markdown_table,
    panel_result,
    write_episodes,
    write_table,
)
from trailnotes.runs.spent import BY_ROW, row_costs
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Observation, Task, Trajectory

LORA = {"enabled": True, "rank": 2, "alpha": 4.0}


@pytest.fixture(scope="module")
def run_dir(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations of EMPO2, with checkpoints and a memory."""
    path = tmp_path_factory.mktemp("runs") / "empo2"
    train(a_config(start_model, train={"iterations": 2}), path)
    return path


def a_config(start: Path, **sections: Any) -> Config:
    sections = {"model": {}, "eval": {}} | sections
    return small_config(**sections | {"model": {"path": str(start), "device": "cpu"} | sections["model"]})


def episode(task: str, success: bool, value: float = 0.0) -> Trajectory:
    return Trajectory(
        Task(task, "waymarks"), (), Observation("end", reward=value), "terminated", success, float(success)
    )


def fingerprint(directory: Path) -> dict[str, str]:
    files = (file for file in sorted(directory.rglob("*")) if file.is_file())
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def lines(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path))


# -- intervals and tables


def test_one_family_of_single_episodes_gets_wilsons_interval() -> None:
    episodes = [episode(f"w/route/amber/test-{i}", i < 5) for i in range(10)]
    interval, name = interval_of(episodes, small_config())
    assert name == "Wilson 95%"
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.5, 0.2366, 0.7634), abs=1e-4)


@pytest.mark.parametrize("clustered", ["families", "samples", "return"])
def test_clusters_and_returns_get_a_bootstrap(clustered: str) -> None:
    family = ["amber", "birch"] if clustered == "families" else ["amber", "amber"]
    games = range(2) if clustered == "samples" else range(4)
    episodes = [episode(f"w/route/{name}/test-{i}", n == 0) for n, name in enumerate(family) for i in games]
    config = small_config(eval={"metric": "return" if clustered == "return" else "success", "confidence": 0.9})
    interval, name = interval_of(episodes, config)
    assert name == "bootstrap over families, then games, 90%"
    if clustered == "families":  # one family all won, one all lost: the families decide how wide it is
        assert (interval.mean, interval.low, interval.high) == (0.5, 0.0, 1.0)


def test_a_family_is_the_task_without_its_last_part() -> None:
    assert family_of(Task("waymarks/route/amber/test-3", "waymarks")) == "waymarks/route/amber"
    assert family_of(Task("coin", "textworld")) == "textworld"


def test_a_panel_that_nobody_played_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no episode of split 'test' could be played"):
        panel_result([], small_config(), Subject("m", "grpo"), memory=False)


def test_tables_hold_every_field_and_the_name_of_the_interval(tmp_path: Path) -> None:
    row = PanelResult("empo2", True, "test", "success", 0.5, 0.25, 0.75, 38400, 2, 80, 160, "Wilson 95%")
    write_table([row], tmp_path)
    assert json.loads((tmp_path / "table.json").read_text()) == {"rows": [asdict(row)]}
    text = (tmp_path / "table.md").read_text()
    assert text == markdown_table([row])
    assert "| empo2 | with | test (80) | success | 0.500 | [0.250, 0.750] | 38,400 | 2 |" in text
    assert text.endswith("\nIntervals: Wilson 95%.\n")
    head, rule, first = text.splitlines()[:3]
    assert head.count("|") == rule.count("|") == first.count("|")


def test_the_figures_of_one_run_go_by_their_names(tmp_path: Path) -> None:
    row = PanelResult("empo2-tips", True, "test", "success", 0.5, 0.25, 0.75, 38400, 1, 80, 160, "Wilson 95%")
    write_table([row], tmp_path, ["trial 3"])
    (record,) = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert next(iter(record)) == "figure"
    assert record == {"figure": "trial 3", **asdict(row)}
    assert (tmp_path / "table.md").read_text().splitlines() == [
        "| figure | memory | panel | metric | mean | interval | env steps |",
        "|---|---|---|---|---|---|---|",
        "| trial 3 | with | test (80) | success | 0.500 | [0.250, 0.750] | 38,400 |",
        "",
        "Intervals: Wilson 95%.",
    ]
    assert markdown_table([], []).startswith("| figure |"), "before the first figure"


# -- who is examined


def test_a_run_is_its_last_checkpoint_with_memory_and_spending(run_dir: Path) -> None:
    last = run_dir / "checkpoints" / "step-000002"
    of_run = resolve(run_dir)
    assert of_run == resolve(last)
    assert (of_run.model, of_run.memory, of_run.name) == (str(last / "model"), last / "memory.db", "empo2")
    last_line = lines(run_dir / "metrics.jsonl")[-1]
    assert of_run.spent["env_steps"] == last_line["env_steps"] > 0
    assert row_costs(of_run.spent) == {name: last_line[name] for name in BY_ROW}
    earlier = resolve(str(run_dir / "checkpoints" / "step-000001"))
    assert 0 < earlier.spent["env_steps"] < of_run.spent["env_steps"]
    assert resolve(last / "model").name == "start"
    assert resolve("some/hub-name").model == "some/hub-name"


def test_a_run_without_a_checkpoint_and_a_damaged_one_are_named(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(RunError, match="holds no finished checkpoint yet"):
        resolve(tmp_path)
    (tmp_path / "checkpoints").rmdir()
    step = tmp_path / "step-000001"
    (step / "model").mkdir(parents=True)
    (step / "meta.json").write_text("{}")
    with pytest.raises(RunError, match="step-000001 is damaged"):
        resolve(step)


def test_memory_is_refused_where_there_is_none(start_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no memory to act with"):
        evaluate(a_config(start_model), start_model, memory=True, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- the panel


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


def test_a_lora_run_is_examined_with_its_adapters(start_model: Path, tmp_path: Path) -> None:
    config = a_config(start_model, model={"lora": LORA}, train={"iterations": 1}, algorithm={"name": "grpo"})
    train(config, tmp_path / "lora")
    result = evaluate(config, tmp_path / "lora")
    assert (result.algorithm, result.num_episodes) == ("grpo", 4)
    policy = module.load_policy(config, resolve(tmp_path / "lora"))
    assert not any("lora" in name for name, _ in policy.model.named_parameters())


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


# -- files


def test_episodes_keep_text_that_is_no_unicode(tmp_path: Path) -> None:
    odd = Trajectory(Task("a/0", "own"), (), Observation("half \ud800"), "terminated", False, 0.0)
    write_episodes([odd], tmp_path / "episodes.jsonl")
    assert lines(tmp_path / "episodes.jsonl")[0]["final_observation"]["text"] == "half \ud800"


def test_commands_may_run_one_after_another_in_one_process(start_model: Path) -> None:
    """Each has an event loop of its own, and leaves none behind."""
    evaluate(a_config(start_model), start_model)
    evaluate(a_config(start_model), start_model)
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()
