"""The config `smoke` as people run it: killed at random moments, it ends as if it had been left alone."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tinyrun import SAME, differences, metrics
from trailnotes.config.builtin import find_config
from trailnotes.config.toml import load_config
from trailnotes.envs.tasks import tasks_of
from trailnotes.policies.hf.policy import get_context_length

ROOT = Path(__file__).parents[2]
CONFIG = find_config("smoke")


def start(directory: Path, iterations: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trailnotes", "train", str(CONFIG), "--run-dir", str(directory)]
    words = [*command, "--train.iterations", str(iterations)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_the_config_fits_its_model_and_its_games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = load_config(CONFIG).validate_training()
    assert config.run.deterministic
    assert config.train.save_every == 1
    assert config.empo2.p_memory > 0
    assert len(tasks_of(config, "train")) == 10
    assert get_context_length(config.model) >= config.rollout.max_context_tokens


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
def test_killed_or_left_alone_the_run_ends_the_same(tmp_path: Path, seed: int) -> None:
    iterations = 8
    assert start(tmp_path / "alone", iterations).wait() == 0
    assert any(line["update/optimizer_steps"] for line in metrics(tmp_path / "alone")), "nothing was learned"
    rng = random.Random(seed)
    kills = 0
    while kills < 4:
        process = start(tmp_path / "killed", iterations)
        try:
            process.wait(rng.uniform(1, 14))
            break  # it was faster than the killer
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
    assert start(tmp_path / "killed", iterations).wait() == 0
    assert kills > 0
    assert differences(tmp_path / "alone", tmp_path / "killed") == SAME
