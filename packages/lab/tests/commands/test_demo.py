from __future__ import annotations

import json
from pathlib import Path

import pytest

from small import SETTINGS as SMALL
from small import small_config
from trailnotes.config.toml import to_toml
from trailnotes.storage.files import read_jsonl
from trailnotes_lab.commands.demo import run_demo
from trailnotes_lab.compare import recompute

SETTINGS = ["--eval.num_tasks", "2"]
pytestmark = pytest.mark.long


def test_the_table_and_the_panels_are_as_promised(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trailnotes_lab.compare.running.POLL_SECONDS", 0.02)
    options = SMALL["env"]["options"] | {"new_families": ["route/birch", "keys/hazel"]}
    own = small_config(model={"path": str(start_model)}, train={"max_env_steps": 24}, env={"options": options})
    (tmp_path / "demo.toml").write_text(to_toml(own))
    out = tmp_path / "out"
    summary = run_demo(out, config_path=tmp_path / "demo.toml", seeds=[0], trials=1, new_trials=1, settings=SETTINGS)
    assert recompute(out) == summary
    played = list(read_jsonl(out / "runs/empo2-0/panels/new/trajectories.jsonl"))
    assert {record["task"]["id"].split("/")[2] for record in played} == {"birch", "hazel"}
    assert [record["mode"] for record in played] == ["plain", "plain", "on_policy_tips", "on_policy_tips"]
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
