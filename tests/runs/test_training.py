"""What a run counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from paying import Paid
from tinyrun import episodes, metrics, tiny_config
from trailnotes.config.schema import Config
from trailnotes.errors import EnvError, RunError
from trailnotes.runs.diagnose import diagnose
from trailnotes.runs.train import train
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


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("env", ["WrongType", "Raising"])
def test_environment_that_always_fails_stops_the_run_and_is_located(
    start_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    workers: int, env: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("trailnotes.reporting.episodes._logged", set())
    config = tiny_config(start_model, env={"name": f"paying:{env}", "num_workers": workers})
    with pytest.raises(RunError, match=r"no episode of iteration 1 .*\(paying\.py:\d+\)"):
        train(config, tmp_path)
    assert diagnose(tmp_path).startswith("all ")
    assert "paying.py:" in diagnose(tmp_path).splitlines()[0]
    assert caplog.text.count("# the line of the traceback") == (env == "Raising"), "once in the terminal"
    assert ("# the line of the traceback" in (tmp_path / "trajectories.jsonl").read_text()) == (env == "Raising")


@pytest.mark.parametrize(("threshold", "warns"), [(1.0, True), (-1.0, False)])
def test_warning_of_tips_that_reach_no_reader(
    start_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], threshold: float, warns: bool
) -> None:
    memory = {"threshold": threshold, "query": "conversation"}
    train(tiny_config(start_model, memory=memory, empo2={"p_memory": 1.0}), tmp_path)
    assert capsys.readouterr().err.count("lower memory.threshold") == warns


def test_what_failed_episodes_cost_is_counted(start_model: Path, tmp_path: Path) -> None:
    env = {"name": "test_training:Brittle", "num_workers": 0}
    train(tiny_config(start_model, env=env, train={"iterations": 1}), tmp_path)
    (line,), played = metrics(tmp_path), episodes(tmp_path)
    assert any(episode["steps"] for episode in played if episode["outcome"] == "error")
    acted = sum(step["tokens"] for episode in played for step in episode["steps"])
    assert line["tokens_generated"] == acted + line["tips/tokens"]
    assert line["env_steps"] == sum(len(episode["steps"]) for episode in played)


def test_learning_rate_decay() -> None:
    def scale(iteration: int, env_steps: int = 0, *, tokens: int = 0, decay: float = 0.5, **limits: int) -> float:
        settings = {"train": {"iterations": 10, **limits}, "optim": {"lr_decay": decay}}
        run = TrainingRun.__new__(TrainingRun)
        run.config = Config.model_validate(settings)
        run.count = Counters(iteration=iteration, env_steps=env_steps, tokens_generated=tokens)
        return run.lr_scale

    assert [scale(i) for i in (0, 5, 6, 9)] == pytest.approx([1.0, 1.0, 0.8, 0.2])
    assert scale(1, 750, max_env_steps=1000) == pytest.approx(0.5)  # the nearer limit counts
    assert scale(9, decay=0.0) == 1.0
    assert scale(1, tokens=110, max_tokens=100) == 0.0, "tips of the last iteration passed the limit"
