"""A whole run whose update is shared by two processes, against the run of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tinyrun import distance, episodes, metrics, tiny_config
from trailnotes.runs.train import train

TWO = {"world_size": 2}
LORA = {"lora": {"enabled": True, "rank": 4}}


def said(path: Path) -> list[list[str]]:
    """The actions of every episode."""
    return [[step["action"] for step in episode["steps"]] for episode in episodes(path)]


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("model", [{}, LORA], ids=["full", "lora"])
def test_two_processes_train_what_one_trains(
    start_model: Path, tmp_path: Path, model: dict[str, Any], ahead: int
) -> None:
    settings: dict[str, Any] = {
        "model": {"path": str(start_model), **model},
        "optim": {"lr": 1e-4, "epochs": 2},
        "rollout": {"num_tasks": 5, "max_async_iterations": ahead},
        "algorithm": {"anchor_tips": 0.25},
    }
    train(tiny_config(start_model, **settings), tmp_path / "one")
    train(tiny_config(start_model, learner=TWO, **settings), tmp_path / "two")
    assert said(tmp_path / "two") == said(tmp_path / "one")
    assert distance(tmp_path / "one", tmp_path / "two") < 1e-5
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert two["update/tokens_trained"] == one["update/tokens_trained"]
        assert two["update/loss"] == pytest.approx(one["update/loss"], abs=1e-5)
