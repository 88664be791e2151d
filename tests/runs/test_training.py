"""What a run counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinyrun import Paid, episodes, metrics, tiny_config
from trailnotes.commands.train import train
from trailnotes.config.schema import Config
from trailnotes.errors import EnvError
from trailnotes.runs.training import Counters, TrainingRun
from trailnotes.types import Observation


class Brittle(Paid):
    """Fails at the second step of every other episode."""

    episodes = 0

    def step(self, action: str) -> Observation:
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 2:
            Brittle.episodes += 1
            if Brittle.episodes % 2:
                raise EnvError("brittle")
        return super().step(action)


def test_what_failed_episodes_cost_is_counted(start_model: Path, tmp_path: Path) -> None:
    env = {"name": "test_training:Brittle", "num_workers": 0}
    train(tiny_config(start_model, env=env, train={"iterations": 1}), tmp_path)
    (line,), played = metrics(tmp_path), episodes(tmp_path)
    assert any(episode["steps"] for episode in played if episode["outcome"] == "error")
    acted = sum(step["tokens"] for episode in played for step in episode["steps"])
    assert line["tokens_generated"] == acted + line["tips/tokens"]
    assert line["env_steps"] == sum(len(episode["steps"]) for episode in played)


def test_the_learning_rate_falls_over_the_last_part_of_the_run() -> None:
    def scale(iteration: int, env_steps: int = 0, *, max_env_steps: int = 0, decay: float = 0.5) -> float:
        settings = {"train": {"iterations": 10, "max_env_steps": max_env_steps}, "optim": {"lr_decay": decay}}
        run = TrainingRun.__new__(TrainingRun)
        run.config, run.count = Config.model_validate(settings), Counters(iteration=iteration, env_steps=env_steps)
        return run.lr_scale

    assert [scale(i) for i in (0, 5, 6, 9)] == pytest.approx([1.0, 1.0, 0.8, 0.2])
    assert scale(1, 750, max_env_steps=1000) == pytest.approx(0.5)  # the nearer limit counts
    assert scale(9, decay=0.0) == 1.0
