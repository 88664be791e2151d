"""Whole runs whose model plays, or learns, in several processes, against runs of one process.

The engines draw as the embedded one does (`causal.py`), in place of vLLM.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from children import alive, children_of, wait_for
from tinyrun import distance, list_actions, metrics, tiny_config
from trailnotes.config.toml import to_toml
from trailnotes.errors import RunError
from trailnotes.policies.vllm import server
from trailnotes.runs.train import train

pytestmark = pytest.mark.usefixtures("engine_faults")

ENGINE = {"name": "vllm", "python": sys.executable}
LORA = {"lora": {"enabled": True, "rank": 4}}


def settings_of(start: Path, model: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    """Such that rounding cannot change a token."""
    own = {"model": {"path": str(start), **model}, "optim": {"lr": 1e-4, "epochs": 2}, "run": {"deterministic": False}}
    return own | {name: own.get(name, {}) | section for name, section in sections.items()}


@pytest.mark.parametrize(
    ("model", "sections"),
    [
        ({}, {"algorithm": {"name": "grpo"}}),
        # seed 0 draws at a boundary
        (LORA, {"rollout": {"num_tasks": 5, "max_async_iterations": 1}, "run": {"seed": 1}}),
        (LORA, {"algorithm": {"author": "start"}, "learner": {"world_size": 2}}),
    ],
    ids=["grpo-full", "empo2-lora-ahead", "empo2-lora-start-author-two"],
)
@pytest.mark.long
def test_engine_processes_equal_the_embedded_engine(
    start_model: Path, tmp_path: Path, model: dict[str, Any], sections: dict[str, Any]
) -> None:
    settings = settings_of(start_model, model, **sections)
    train(tiny_config(start_model, **settings), tmp_path / "one")
    train(tiny_config(start_model, **settings, engine=ENGINE), tmp_path / "two")
    assert list_actions(tmp_path / "two") == list_actions(tmp_path / "one")
    assert distance(tmp_path / "one", tmp_path / "two") < 1e-5
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert two["update/loss"] == pytest.approx(one["update/loss"], abs=1e-5)
        assert two["engine/sync"] < 1e-5
        if not two.get("stale/versions"):
            assert two["engine/difference"] < 1e-5
            assert two["engine/ratio"] == pytest.approx(1, abs=1e-5)
        assert two["engine/rebuilds"] == 0


@pytest.mark.long
def test_engine_sleeps_on_the_learners_device_while_it_updates(
    start_model: Path, tmp_path: Path, engine_faults: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(start_model, {}, algorithm={"name": "grpo"}, train={"iterations": 2})
    (engine_faults / "die-in-sleep-once").touch()  # before the first update
    train(tiny_config(start_model, **settings, engine=ENGINE | {"shared_card": True}), tmp_path / "two")
    (engine_faults / "calls").rename(tmp_path / "calls")
    train(tiny_config(start_model, **settings), tmp_path / "one")
    assert list_actions(tmp_path / "two") == list_actions(tmp_path / "one")
    assert distance(tmp_path / "one", tmp_path / "two") < 1e-5
    assert all(line["engine/sync"] < 1e-5 for line in metrics(tmp_path / "two"))
    assert caplog.text.count("engine 0 died of SIGKILL: it is started anew") == 1
    order = [call for call, _ in groupby((tmp_path / "calls").read_text().splitlines())]
    start, load = ["/v1/completions"], ["/pause", "replace_weights", "/resume", "/v1/completions"]
    assert order == [*start, "/wake_up", *load, "/sleep?level=2", *load, "/sleep?level=2"]


@pytest.mark.long
def test_engine_killed_in_mid_iteration(start_model: Path, tmp_path: Path, engine_faults: Path) -> None:
    settings = settings_of(start_model, {}, algorithm={"author": "start"})
    train(tiny_config(start_model, **settings), tmp_path / "one")
    for step in (2, 9):
        (engine_faults / f"die-{step}").touch()
    train(tiny_config(start_model, **settings, engine=ENGINE), tmp_path / "two")
    assert list_actions(tmp_path / "two") == list_actions(tmp_path / "one")
    assert distance(tmp_path / "one", tmp_path / "two") < 1e-5
    lines = metrics(tmp_path / "two")
    assert sum(line["engine/rebuilds"] for line in lines) == 2
    assert all(0.4 < line["engine/cached"] <= 0.5 for line in lines)  # half of each prompt, by that program


@pytest.mark.long
def test_engine_drift_stops_the_run(start_model: Path, tmp_path: Path, engine_faults: Path) -> None:
    (engine_faults / "shift-2").touch()  # from the second load on, what it says of sampled tokens is .2 nats off
    config = tiny_config(start_model, **settings_of(start_model, {}), engine=ENGINE)
    with pytest.raises(RunError, match=r"differ by 0.2 nats .* engine.max_logprob_mismatch = 0.05"):
        train(config, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run/checkpoints").glob("step-*")] == ["step-000001"]
    assert [line["iteration"] for line in metrics(tmp_path / "run")] == [0]


CHILD = """
import sys
from pathlib import Path
from trailnotes.runs.train import train
from trailnotes.config.toml import load_config
from trailnotes.policies.vllm import server
server.PROGRAM = Path(sys.argv[1])
train(load_config(Path(sys.argv[2])), sys.argv[3])
"""


@pytest.mark.long
def test_killed_run_ends_its_engine_and_resumes(start_model: Path, tmp_path: Path) -> None:
    config = tiny_config(start_model, **settings_of(start_model, LORA), engine=ENGINE)
    train(config, tmp_path / "one")
    (tmp_path / "config.toml").write_text(to_toml(config))
    command = [sys.executable, "-c", CHILD, str(server.PROGRAM), str(tmp_path / "config.toml"), str(tmp_path / "two")]
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]  # the environment is of tinyrun
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as run:
        lines = tmp_path / "two/metrics.jsonl"
        wait_for(lambda: run.poll() is not None or (lines.exists() and lines.stat().st_size), 300)
        assert run.poll() is None, "the run ended on its own"
        engines = children_of(run.pid)
        run.kill()
    assert engines
    wait_for(lambda: not any(map(alive, engines)))
    train(config, tmp_path / "two")
    assert list_actions(tmp_path / "two") == list_actions(tmp_path / "one")
    assert 0 <= distance(tmp_path / "one", tmp_path / "two") < 1e-5
    assert [line["iteration"] for line in metrics(tmp_path / "two")] == [0, 1, 2]


@pytest.mark.long
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
    train(tiny_config(start_model, learner={"world_size": 2}, **settings), tmp_path / "two")
    assert list_actions(tmp_path / "two") == list_actions(tmp_path / "one")
    assert distance(tmp_path / "one", tmp_path / "two") < 1e-5
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert two["update/tokens_trained"] == one["update/tokens_trained"]
        assert two["update/loss"] == pytest.approx(one["update/loss"], abs=1e-5)
