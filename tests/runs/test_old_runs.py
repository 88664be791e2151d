"""Runs of before the rooms load and resume: `data/old_runs.tar.xz` was written by the code of that time.

It holds a start model, `trained` (two iterations of EMPO2 as `tiny_config` has them) and `adapted` (trial 0 and one
trial of empo2-tips by that run), whose settings name each other by paths relative to the folder that they lie in.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import trailnotes
from tinyrun import episodes, metrics, tip_rows
from trailnotes.config.toml import load_config
from trailnotes.runs.load_policy import open_evaluated_model
from trailnotes.storage.files import read_jsonl

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def _old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.unpack_archive(DATA / "old_runs.tar.xz", tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)


def test_an_old_training_resumes_after_its_checkpoint() -> None:
    run = Path("trained")
    before, tips = metrics(run), len(tip_rows(run))
    config = load_config(run / "config.toml", ["--train.iterations", "3"])
    assert trailnotes.train(config, run, allow_change=["train.iterations"]).parent.name == "step-000003"
    after = metrics(run)
    assert after[:2] == before
    assert [line["iteration"] for line in after] == [0, 1, 2]
    assert after[2]["env_steps"] > after[1]["env_steps"]
    assert len(tip_rows(run)) > tips
    assert {episode["iteration"] for episode in episodes(run)} == {0, 1, 2}


def test_an_old_checkpoint_is_examined_with_its_memory() -> None:
    with open_evaluated_model("trained") as subject:
        assert (subject.name, subject.spent["iteration"]) == ("empo2", 2)
    config = load_config(Path("trained/config.toml"))
    result = trailnotes.evaluate(config, "trained", memory=True)
    assert (result.memory, result.num_tasks, result.env_steps) == (True, 2, subject.spent["env_steps"])


def test_an_old_adaptation_continues_with_one_more_trial() -> None:
    run = Path("adapted")
    before = episodes(run)
    rows = trailnotes.adapt(load_config(run / "config.toml"), "trained", out=run, trials=2)
    assert len(rows) == 3
    assert episodes(run)[: len(before)] == before
    assert [line["phase"] for line in read_jsonl(run / "metrics.jsonl")] == ["trial-0", "trial-1", "trial-2"]
