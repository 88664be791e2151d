"""Learning curves with tips during training: they say what an adaptation would, and leave the training alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from small import small_config
from tinyrun import SAME, differences, metrics, tiny_config, train_in_process
from trailnotes.commands.adapt import adapt
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import (
    select_unused,
    tasks_of,
    validate_learning_tasks,
    validate_rehearsal_tasks,
    validate_splits,
)
from trailnotes.errors import ConfigError
from trailnotes.runs.dependencies import require_dependencies
from trailnotes.storage.files import read_jsonl

pytestmark = pytest.mark.usefixtures("same_threads")
OPTIONS = {"families": ["keys/granite"], "new_validation": ["keys/hazel"], "max_steps": 2}
CURVES = [f"validation_{name}/trial_{trial}" for name in ("tips", "new") for trial in range(2)]


def watched(start: Path, method: str = "empo2", **train: Any) -> Config:
    """Two iterations, each followed by both panels, a trial without tips and one with."""
    on = {"eval_tips_every": 1, "eval_notes_trials": 1, "new_split": "new-validation"}
    return tiny_config(
        start,
        env={"options": OPTIONS},
        algorithm={"name": method},
        train={"iterations": 2, "save_every": 1, **on, **train},
        eval={"num_tasks": 3, "metric": "return"},
    )


@pytest.mark.parametrize("method", ["empo2", "grpo"])
def test_training_is_the_same_bit_for_bit_with_and_without(method: str, start_model: Path, tmp_path: Path) -> None:
    plain = watched(start_model, method, eval_tips_every=0)
    train_in_process(plain, tmp_path / "plain")
    train_in_process(watched(start_model, method), tmp_path / "watched")
    assert metrics(tmp_path / "watched", leave_out=CURVES) == metrics(tmp_path / "plain")
    assert [set(CURVES) <= line.keys() for line in metrics(tmp_path / "watched")] == [True, True]
    if method == "empo2":
        found = differences(tmp_path / "watched", tmp_path / "plain")
        assert found == SAME | {"metrics": True}
    assert "seconds/watch" in next(read_jsonl(tmp_path / "watched/metrics.jsonl"))


def test_a_point_is_what_an_adaptation_of_the_same_weights_says(start_model: Path, tmp_path: Path) -> None:
    config = watched(start_model)
    train_in_process(config, tmp_path / "run")
    *_, last = metrics(tmp_path / "run")
    for name, split in (("tips", "validation"), ("new", "new-validation")):
        panel = config.model_copy(update={"eval": config.eval.model_copy(update={"split": split})})
        rows = adapt(panel, tmp_path / "run", method="empo2-tips", out=tmp_path / name, trials=1)
        assert [last[f"validation_{name}/trial_{trial}"] for trial in range(2)] == [
            pytest.approx(row.mean) for row in rows
        ]
    assert len({last[name] for name in CURVES}) > 1, "the numbers say nothing"


def test_a_resumed_run_has_the_same_points(start_model: Path, tmp_path: Path) -> None:
    config = watched(start_model, eval_tips_every=2, iterations=3, keep_last=3)
    train_in_process(config, tmp_path)
    whole = metrics(tmp_path)
    assert [CURVES[0] in line for line in whole] == [False, True, False]
    for step in (2, 3):
        shutil.rmtree(tmp_path / f"checkpoints/step-00000{step}")
    train_in_process(config, tmp_path)
    assert metrics(tmp_path) == whole


def test_games_that_are_trained_or_examined_are_not_watched_as_new() -> None:
    def config(**train: Any) -> Config:
        on = {"eval_tips_every": 1, **train}
        return small_config(env={"options": {"families": 2, "new_families": 2}}, train=on, eval={"num_tasks": 0})

    validate_splits(config(new_split="new"))
    validate_splits(config(new_split=""))
    validate_splits(config(new_split="train", eval_tips_every=0))
    with pytest.raises(ConfigError, match=r"train\.split = 'train': 10 of .* the new families .*'train'.* cannot be"):
        validate_splits(config(new_split="train"))
    with pytest.raises(ConfigError, match=r"train\.new_split = 'test': 40 of the 40 games of the panel"):
        validate_splits(config(new_split="test"))
    with pytest.raises(ConfigError, match=r"what is read: .* the new families"):
        validate_learning_tasks(tasks_of(config(), "new"), "what is read", config(new_split="new"))
    with pytest.raises(ConfigError, match=r"new-validation"):
        validate_splits(config(new_split="new-validation"))
    with pytest.raises(ValueError, match=r"validation_split must differ"):
        config(validation_split="train")


def test_games_that_are_watched_are_not_rehearsed() -> None:
    on = {"eval_tips_every": 1, "new_split": "new"}
    options = {"families": 2, "new_families": 2}
    config = small_config(env={"options": options}, train=on, eval={"num_tasks": 0})
    for split in ("validation", "new"):
        games = tasks_of(config, split)
        with pytest.raises(ConfigError, match=rf"what is held: .*{split}"):
            validate_rehearsal_tasks(games, "what is held", config)
        assert select_unused(games, config) == []
    spare = tasks_of(config, "spare")
    assert select_unused(spare, config) == spare


def test_a_curve_with_tips_needs_the_embedder_whatever_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trailnotes.runs.dependencies.find_missing_module", lambda extra: extra)
    grpo: dict[str, Any] = {"algorithm": {"name": "grpo"}, "memory": {"embedder": "minilm"}}
    with pytest.raises(ImportError, match=r"memory\.embedder"):
        require_dependencies(small_config(train={"eval_tips_every": 1}, **grpo))
    with pytest.raises(ImportError) as other:
        require_dependencies(small_config(**grpo))
    assert "memory.embedder" not in str(other.value)
