from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from small import SETTINGS as SMALL
from small import small_config
from trailnotes.config.toml import to_toml
from trailnotes.storage.files import read_jsonl
from trailnotes_lab.commands.demo import run_demo
from trailnotes_lab.compare.summary import Summary

SETTINGS = ["--eval.num_tasks", "2"]
pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trailnotes_lab.compare.running.POLL_SECONDS", 0.02)


def config_file(start: Path, path: Path) -> Path:
    new = {"new_families": ["route/birch", "keys/hazel"]}
    options = SMALL["env"]["options"] | new
    own = small_config(model={"path": str(start)}, train={"max_env_steps": 24}, env={"options": options})
    path.write_text(to_toml(own))
    return path


@pytest.fixture(scope="module")
def finished_demo(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Summary]:
    """Config, directory and summary of a demo of one seed."""
    directory = tmp_path_factory.mktemp("demo")
    path = config_file(start_model, directory / "demo.toml")
    return path, directory / "out", play(path, directory / "out")


def play(path: Path, out: Path) -> Summary:
    """A demo of one seed, and of one trial where the whole one has more."""
    return run_demo(out, config_path=path, seeds=[0], trials=1, new_trials=1, settings=SETTINGS)


def test_the_table_is_as_promised(finished_demo: Any) -> None:
    _, out, _ = finished_demo
    lines = {line["label"]: line for line in json.loads((out / "table.json").read_text())["lines"]}
    assert list(lines) == ["start model", "GRPO", "EMPO²"]
    for line in lines.values():
        assert (line["seeds"], line["num_games"], line["missing"]) == ([0], 2, {})
        assert line["costs"]["seconds"] > 0
    for name, label in (("grpo", "GRPO"), ("empo2", "EMPO²")):
        spent = list(read_jsonl(out / "runs" / f"{name}-0" / "metrics.jsonl"))[-1]
        assert lines[label]["costs"]["env_steps"] == spent["env_steps"] >= 24
        assert lines[label]["costs"]["tokens_generated"] == spent["tokens_generated"] > 0
    assert [line["num_attempts"] for line in lines.values()] == [1, 1, 1]
    assert [line["trains"] for line in lines.values()] == [False, True, True]
