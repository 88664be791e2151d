"""The configs `scienceworld/*`: the paper's eighteen tasks at its settings, and a smoke run that really plays."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import trailnotes
from tinyrun import metrics
from trailnotes.config.builtin import BUILTIN
from trailnotes.config.toml import load_config
from trailnotes.envs.tasks import select_batch, tasks_of
from trailnotes_worlds.scienceworld.tasks import (
    PAPER_PANEL,
    get_simulator_split,
    resolve_simplifications,
)

FOLDER = BUILTIN / "configs/scienceworld"
# Variations to train on and to test on: 5 and 20, or what a task has.
FEWER = {
    "chemistry-mix": (5, 8),
    "chemistry-mix-paint-secondary-color": (5, 9),
    "chemistry-mix-paint-tertiary-color": (5, 9),
    "identify-life-stages-1": (5, 5),
    "identify-life-stages-2": (4, 4),
    "power-component": (5, 5),
    "power-component-renewable-vs-nonrenewable-energy": (5, 5),
}


@pytest.mark.parametrize("name", PAPER_PANEL)
def test_a_config_plays_its_task_by_the_papers_protocol(name: str) -> None:
    config = load_config(FOLDER / f"{name}.toml").validate_training()
    tasks = {split: tasks_of(config, split) for split in ("train", "validation", "test")}
    num_train, num_test = FEWER.get(name, (5, 20))
    assert (len(tasks[config.train.split]), len(tasks[config.eval.split])) == (num_train, num_test)
    assert {task.options["task"] for listed in tasks.values() for task in listed} == {name}
    for split, whole in get_simulator_split(name).items():
        assert [task.options["variation"] for task in tasks[split]] == list(whole[: len(tasks[split])])
    assert (
        len(select_batch(tasks["train"], config.rollout.num_tasks, 0, 0)) == 16
    )  # variations come again, as published
    assert resolve_simplifications(name, config.env.options.get("simplification", "easy"))


@pytest.mark.parametrize("name", PAPER_PANEL)
def test_a_config_has_the_papers_settings(name: str) -> None:
    config = load_config(FOLDER / f"{name}.toml")
    rollout, algorithm, optim = config.rollout, config.algorithm, config.optim
    assert (config.preset, config.model.path) == ("paper-scienceworld", "Qwen/Qwen2.5-7B-Instruct")
    assert (config.model.dtype, config.model.lora.enabled) == ("bfloat16", False)
    assert (rollout.num_tasks, rollout.group_size, rollout.max_steps, rollout.style) == (16, 8, 30, "full")
    assert (rollout.max_context_tokens, rollout.max_action_tokens, rollout.temperature) == (4500, 32, 1.0)
    assert (algorithm.name, algorithm.p_memory, algorithm.q_off_policy) == ("empo2", 0.25, 2 / 3)
    assert algorithm.mode_unit == "iteration"
    assert (optim.lr, optim.minibatch, optim.epochs, config.loss.kl) == (1e-6, 16, 1, 0.0)
    assert (config.memory.top_k, config.memory.threshold, config.memory.capacity) == (10, 0.5, 1000)
    assert (config.eval.temperature, config.eval.split, config.eval.memory) == (0.4, "test", False)
    assert (config.eval.metric, config.eval.num_tasks) == ("return", 0)
    assert config.train.validation_split not in (config.train.split, config.eval.split)


def test_configs_of_the_panel_differ_in_nothing_but_the_task() -> None:
    texts = set()
    for name in PAPER_PANEL:
        text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
        settings = tomllib.loads(text)
        assert settings["run"].pop("name") == settings["env"]["options"].pop("task") == name
        assert f"# {name}, task" in text
        texts.add(str(settings))
    assert len(texts) == 1


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
def test_a_tiny_model_can_be_trained(tmp_path: Path) -> None:
    settings = (
        "--env.name scienceworld --env.num_workers 1 --env.max_envs 2 --env.options.num_train 2 "
        "--model.path builtin:waymarks-start --model.device cpu --rollout.style terse "
        "--rollout.num_tasks 2 --rollout.group_size 4 --rollout.max_steps 3 --rollout.max_action_tokens 8 "
        "--rollout.max_observation_tokens 48 --rollout.max_context_tokens 512 --memory.max_write_tokens 8 "
        "--train.iterations 1"
    )
    trailnotes.train(load_config(None, settings.split()), tmp_path / "run")
    (line,) = metrics(tmp_path / "run")
    assert (line["rollout/errors"], line["episodes"], line["rollout/env_steps"]) == (0.0, 8, 24.0)
    assert line["tips/written"]
