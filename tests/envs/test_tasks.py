"""Task lists, batches and panels are pure functions of their arguments."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.config.methods_schema import AlgorithmConfig
from trailnotes.config.schema import Config, EnvConfig, TrainConfig
from trailnotes.envs.tasks import (
    describe_tip_overlap,
    describe_training_overlap,
    find_shared_tasks,
    load_panel,
    load_tasks,
    panel,
    select_batch,
    validate_splits,
)
from trailnotes.errors import ConfigError
from trailnotes.runs.panels import build_panel_record
from trailnotes.types import Task

TASKS = [Task(f"task-{index}", "x") for index in range(5)]


def ids(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]


def config(folder: Path, patch: pytest.MonkeyPatch, expression: str) -> Config:
    """A config whose environment lists what `expression` says."""
    name = f"listing_{abs(hash(expression))}"
    (folder / f"{name}.py").write_text(
        "from trailnotes.types import Task\n"
        "class Env:\n    @staticmethod\n    def tasks(split, num=2):\n"
        f"        return {expression}\n"
    )
    patch.syspath_prepend(folder)
    return Config(env=EnvConfig(name=f"{name}:Env", options={"num": 3}))


def test_a_repeated_id_and_an_empty_split_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"split 'test' .* has task id 'same' twice"):
        load_tasks(config(tmp_path, monkeypatch, "[Task('same', 'x')] * num"), "test")
    with pytest.raises(ConfigError, match=r"split 'dev' .* has no tasks"):
        load_tasks(config(tmp_path, monkeypatch, "[]"), "dev")


def test_batches_are_known() -> None:
    """Written down once: another order would break the resumption of every run."""
    assert ids(select_batch(TASKS, 3, seed=0, iteration=0)) == ["task-2", "task-1", "task-0"]
    assert ids(select_batch(TASKS, 3, seed=0, iteration=1)) == ["task-4", "task-3", "task-2"]


@given(st.integers(1, 12), st.integers(0, 5), st.integers(0, 20))
def test_batches_are_consecutive_pieces_of_shuffled_epochs(num: int, seed: int, num_batches: int) -> None:
    row = [task for iteration in range(num_batches) for task in ids(select_batch(TASKS, num, seed, iteration))]
    assert len(row) == num * num_batches
    for start in range(0, len(row) - 4, 5):
        assert Counter(row[start : start + 5]) == Counter(ids(TASKS))
    assert row == [task for place in range(len(row)) for task in ids(select_batch(TASKS, 1, seed, place))]


def test_a_panel_is_spread_evenly() -> None:
    games = [Task(f"{family}-{index}", "x") for family in "abcd" for index in range(4)]
    assert ids(panel(games, 4)) == ["a-0", "b-0", "c-0", "d-0"]
    assert ids(panel(games, 8)) == ["a-0", "a-2", "b-0", "b-2", "c-0", "c-2", "d-0", "d-2"]
    assert ids(panel(TASKS, 3)) == ["task-0", "task-1", "task-3"]


@given(st.integers(0, 9))
def test_a_panel_never_repeats_a_task(num: int) -> None:
    chosen = ids(panel(TASKS, num))
    assert len(set(chosen)) == len(chosen) == (min(num, 5) or 5)
    assert chosen == sorted(chosen)


# -- no game is both trained on and evaluated

DISJOINT = "[Task(f'{split}-{i}', 'x', i + 9 * len(split), split) for i in range(num)]"


def test_one_game_under_two_names_is_one_game() -> None:
    mine = [Task("train-1", "x", 1, "train"), Task("train-2", "x", 2, "train", {"level": 3})]
    others = [
        Task("test-1", "x", 1, "test"),  # train-1 under the name of another split
        Task("test-2", "x", 2, "test", {"level": 4}),
        Task("test-3", "y", 1, "test"),
        Task("train-2", "x", 5, "test"),  # an id is a game, too
    ]
    assert ids(find_shared_tasks(mine, others)) == ["test-1", "train-2"]
    one, other = Task("a", "x", options={"b": 1, "c": 2}), Task("d", "x", split="test", options={"c": 2, "b": 1})
    assert find_shared_tasks([one], [other]) == [other]


def test_games_that_differ_by_id_alone_are_different() -> None:
    cities = [Task(name, "x") for name in ("paris", "rome")]
    assert find_shared_tasks(cities[:1], cities[1:]) == []
    assert find_shared_tasks(cities[:1], cities) == cities[:1]
    hard = [Task(name, "x", 7, options={"hard": True}) for name in ("paris", "rome", "oslo")]
    assert find_shared_tasks(hard[:2], hard[2:]) == []
    assert find_shared_tasks(hard[:1], hard[1:]) == []


def learning(folder: Path, patch: pytest.MonkeyPatch, expression: str, **train: Any) -> Config:
    """`config`, of a method that trains."""
    return Config(
        env=config(folder, patch, expression).env, algorithm=AlgorithmConfig(name="grpo"), train=TrainConfig(**train)
    )


def test_training_on_games_of_the_panel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = learning(tmp_path, monkeypatch, "[Task(f'{split}-{i}', 'x', 5 + i, split) for i in range(num)]")
    with pytest.raises(ConfigError, match=r"train\.split = 'train': 3 of the 3 games of the panel .*test-0 for one"):
        validate_splits(same)
    validate_splits(learning(tmp_path, monkeypatch, DISJOINT))
    both = learning(tmp_path, monkeypatch, DISJOINT, split="test")
    with pytest.raises(ConfigError, match=r"train\.split = 'test'"):
        validate_splits(both)
    unexamined = both.model_copy(update={"eval": both.eval.model_copy(update={"split": ""})})
    validate_splits(unexamined)
    with pytest.raises(ConfigError, match="no panel to play: name the split"):
        load_panel(unexamined)


def test_validation_games_are_in_no_other_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"validation_split = 'test'.*of the panel"):
        validate_splits(learning(tmp_path, monkeypatch, DISJOINT, eval_every=1, validation_split="test"))
    shared = "[Task(f'{split}-{i}', 'x', i + 9 * (split == 'test') + 1, split) for i in range(num)]"
    with pytest.raises(ConfigError, match=r"train\.split = 'train': 3 of the 3 games of the validation"):
        validate_splits(learning(tmp_path, monkeypatch, shared, eval_every=1))
    validate_splits(learning(tmp_path, monkeypatch, shared))


def test_evaluation_on_training_games_is_pointed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = learning(tmp_path, monkeypatch, DISJOINT)
    known = trained.model_copy(update={"eval": trained.eval.model_copy(update={"split": "train"})})
    assert describe_training_overlap(trained, trained) == ""
    overlap = "3 of the 3 games of this panel, train-0 for one: they are not unseen"
    assert describe_training_overlap(trained, known) == f"the model was trained on {overlap}"
    assert describe_training_overlap(None, known) == ""
    assert describe_tip_overlap(["train-1", "elsewhere"], trained) == ""
    assert "1 of the 3 games of this panel, train-1" in describe_tip_overlap(["train-1", "elsewhere"], known)
    gone = trained.model_copy(update={"env": trained.env.model_copy(update={"name": "nowhere:Env"})})
    assert describe_training_overlap(gone, known) == ""


def test_no_module_is_imported_that_only_an_evaluated_run_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = learning(tmp_path, monkeypatch, DISJOINT)
    (tmp_path / "stranger.py").write_text("import pathlib; pathlib.Path(__file__).with_name('imported').touch()")
    monkeypatch.syspath_prepend(tmp_path)
    theirs = known.model_dump()
    theirs["env"]["name"], theirs["algorithm"]["name"] = "stranger:Env", "stranger:METHOD"
    assert describe_training_overlap(Config(**theirs), known) == ""
    assert "trained_environment" not in build_panel_record(known, "model", Config(**theirs))
    theirs["env"]["name"] = known.env.name
    assert describe_training_overlap(Config(**theirs), known) == ""
    assert not (tmp_path / "imported").exists()
