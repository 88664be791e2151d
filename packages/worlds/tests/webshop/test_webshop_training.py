"""WebShop is played by all that the comparison names: a tiny model, a step or two, from one configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import trailnotes
from tinyrun import metrics
from trailnotes.commands import main
from trailnotes.config.toml import load_config

ROOT = Path(__file__).parents[4]
SETTINGS = (
    "--model.path builtin:waymarks-start --model.device cpu --rollout.num_tasks 2 "
    "--rollout.max_steps 3 --rollout.max_action_tokens 8 --rollout.max_observation_tokens 48 "
    "--rollout.max_context_tokens 512 --memory.max_write_tokens 8 --train.iterations 1 --train.eval_every 0"
)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", ["grpo", "gigpo", "empo2"])
def test_a_tiny_model_can_be_trained(method: str, tmp_path: Path) -> None:
    words = [*SETTINGS.split(), "--algorithm.name", method]
    trailnotes.train(load_config("webshop/small", words), tmp_path / "run")
    (line,) = metrics(tmp_path / "run")
    assert (line["rollout/errors"], line["episodes"], line["rollout/env_steps"]) == (0.0, 8, 24.0)
    assert ("tips/written" in line) == (method == "empo2")


@pytest.mark.parametrize("method", ["reflexion", "rememberer"])
def test_methods_that_change_no_weights_play_the_panel(method: str, tmp_path: Path) -> None:
    config, out = "webshop/small", str(tmp_path / "out")
    few = "--eval.num_tasks 2 --eval.trials 1 --rememberer.num_tasks 2 --rememberer.epochs 1"
    short = "--rememberer.max_write_tokens 12 --reflexion.max_write_tokens 8"
    model, *settings = SETTINGS.split()[1:]
    words = [*settings, *few.split(), *short.split()]
    assert main(["adapt", model, "--config", config, "--method", method, "--out", out, *words]) == 0
    assert (tmp_path / "out" / "table.json").is_file()
