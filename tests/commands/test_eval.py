from __future__ import annotations

import hashlib
import json
import logging
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from small import lines, small_config
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import load_tasks
from trailnotes.errors import ConfigError
from trailnotes.learner.states import STATE
from trailnotes.runs import evaluate as evaluation
from trailnotes.runs.evaluate import evaluate
from trailnotes.runs.load_policy import EvaluatedModel
from trailnotes.runs.panels import JOURNAL_FILE
from trailnotes.storage import checkpoint
from trailnotes.types import Trajectory


def a_config(start: Path, **sections: Any) -> Config:
    sections = {"model": {}, "eval": {}} | sections
    return small_config(**sections | {"model": {"path": str(start), "device": "cpu"} | sections["model"]})


def fingerprint(directory: Path) -> dict[str, str]:
    files = (file for file in sorted(directory.rglob("*")) if file.is_file())
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


# -- the panel


def test_rollout_samples_as_training_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "evaluate_model", lambda config, _, progress: ([config.eval], ""))
    config = a_config(tmp_path, rollout={"temperature": 0.7})
    (panel,) = (vars(panel) for panel in evaluation.rollout(config))
    assert (panel["split"], panel["temperature"]) == ("train", 0.7)
    with pytest.raises(ConfigError, match="is a directory: name a file"):
        evaluation.rollout(config, out=tmp_path)


def test_a_panel_is_fixed_recorded_and_repeatable(start_model: Path, tmp_path: Path) -> None:
    config = a_config(start_model, eval={"num_samples": 2})
    first, again = (evaluate(config, start_model, out=tmp_path / name) for name in ("a", "b"))
    assert first == again
    episodes = lines(tmp_path / "a" / "episodes.jsonl")
    assert episodes == lines(tmp_path / "b" / "episodes.jsonl")
    wanted = [task.id for task in load_tasks(config, "test")][::10]
    assert [record["task"]["id"] for record in episodes] == [name for name in wanted for _ in range(2)]
    actions = [tuple(step["action"] for step in record["steps"]) for record in episodes]
    assert any(actions[i] != actions[i + 1] for i in range(0, 8, 2)), "each sample has a seed of its own"
    assert json.loads((tmp_path / "a" / "panel.json").read_text()) == {
        "model": str(start_model), "seed": 0, "env": "waymarks-simulator", "split": "test", "num_samples": 2,
        "temperature": 0.4, "tasks": wanted,
    }  # fmt: skip
    assert (first.num_tasks, first.num_episodes, first.seeds, first.env_steps) == (4, 8, 1, 0)


def test_an_evaluation_is_not_put_into_the_run_of_another_model(run_dir: Path, start_model: Path) -> None:
    with pytest.raises(ConfigError, match="lies in a run of another model"):
        evaluate(a_config(start_model), start_model, out=run_dir / "eval")


def test_the_memory_of_a_run_is_read_on_request_and_never_written(run_dir: Path, tmp_path: Path) -> None:
    config = a_config(run_dir, eval={"split": "train", "num_tasks": 0})
    before = fingerprint(run_dir)
    without, with_notes = (evaluate(config, run_dir, memory=m, out=tmp_path / str(m)) for m in (False, True))
    assert fingerprint(run_dir) == before
    assert (without.memory, with_notes.memory, without.episodes_with_tips) == (False, True, 0)
    for name, result in (("True", with_notes), ("False", without)):
        records = lines(tmp_path / name / "episodes.jsonl")
        displayed = sum(any(step["tips"] for step in record["steps"]) for record in records)
        assert result.episodes_with_tips == displayed
    assert with_notes.episodes_with_tips > 0


# -- stopped and resumed


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``stop_after(n)``: Ctrl-C comes when n episodes have ended in this start; 0 never stops. Gives what ended.

    With one environment at a time, so that none ends in the same moment.
    """
    kept: list[Trajectory] = []
    keep = evaluation.EpisodeJournal.append_episode

    def after(number: int) -> list[Trajectory]:
        kept.clear()

        def stopping(journal: evaluation.EpisodeJournal, episode: Trajectory) -> None:
            keep(journal, episode)
            kept.append(episode)
            if len(kept) == number:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(evaluation.EpisodeJournal, "append_episode", stopping)
        return kept

    return after


def one_by_one(start: Path, **sections: Any) -> Config:
    return a_config(start, env={"max_envs": 1}, **sections)


@pytest.mark.parametrize("torn", [b"", b'{"task": {"id": "waym'])
def test_resume_of_a_stopped_evaluation(run_dir: Path, tmp_path: Path, stop_after: Any, torn: bytes) -> None:
    config = one_by_one(run_dir, eval={"num_samples": 2})
    step = shutil.copytree(run_dir / "checkpoints/step-000002", tmp_path / "step")
    whole = evaluate(config, step, out=tmp_path / "whole")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / JOURNAL_FILE).touch()  # as a full disk leaves it
    for number in (3, 2):
        stop_after(number)
        with pytest.raises(KeyboardInterrupt):
            evaluate(config, step, out=tmp_path / "out")
        with (tmp_path / "out" / JOURNAL_FILE).open("ab") as part:
            part.write(torn)
        checkpoint.strip(step, STATE)  # as a training does at its end
    assert not (tmp_path / "out" / "table.json").exists()
    ended = stop_after(0)
    assert evaluate(config, step, out=tmp_path / "out") == whole
    assert len(ended) == 8 - 3 - 2
    resumed, alone = ([*fingerprint(tmp_path / name).values()] for name in ("out", "whole"))
    assert resumed == alone


@pytest.mark.parametrize("change", ["eval.temperature", "model", "eval.memory", "environment"])
def test_episodes_of_other_settings_weights_or_data_are_played_again(
    run_dir: Path, tmp_path: Path, stop_after: Any, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, change: str,
) -> None:  # fmt: skip
    config, steps = one_by_one(run_dir), sorted((run_dir / "checkpoints").iterdir())
    stop_after(2)
    with pytest.raises(KeyboardInterrupt):
        evaluate(config, steps[0] if change == "model" else steps[1], out=tmp_path)
    ended = stop_after(0)
    if change == "eval.temperature":
        config = one_by_one(run_dir, eval={"temperature": 0.7})
    if change == "environment":
        monkeypatch.setattr(evaluation, "load_identity", lambda config: {"data": "another version"})
    with caplog.at_level(logging.WARNING):
        evaluate(config, steps[1], out=tmp_path, memory=change == "eval.memory")
    assert len(ended) == 4, "all are played again"
    backup = tmp_path / "episodes.part.1.jsonl"
    assert f"set aside {backup}: its 2 episodes were played with another {change}\n" in caplog.text
    assert len(lines(backup)) == 3


def test_checkpoints_whose_weights_a_server_keeps_are_told_apart(tmp_path: Path) -> None:
    steps = [checkpoint.save(tmp_path, n, lambda path: (path / "learner.json").write_text(path.name)) for n in (1, 2)]
    for path in steps:
        (path / "model").mkdir()  # with the same files at each step
    config, models = small_config(learner={"name": "tinker"}), [EvaluatedModel(str(s / "model"), "m") for s in steps]
    one, other = (evaluation._build_fingerprint(config, model, False) for model in models)
    assert [name for name in one if one[name] != other[name]] == ["model"]
