"""An agent behind the gateway is trained as an environment of ours with the same turns is, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_functions import OPTIONS, write_tasks

from tinyrun import equal_weights, metrics, record, tiny_config, tip_rows, train_in_process
from trailnotes.learner.learner import Learner


@pytest.mark.parametrize("algorithm", [{"mode_unit": "iteration", "p_memory": 0.75}, {"anchor_tips": 0.5}])
def test_an_agent_of_the_openai_client_gives_the_rows_of_our_own_environment(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: dict[str, Any]
) -> None:
    own = {"name": "paying:Paid", "options": dict(OPTIONS)}
    agent = {
        "name": "gateway",
        "options": {"tasks": str(write_tasks(tmp_path / "tasks.jsonl")), "agent": "agent_functions:play"},
    }
    updates = record(monkeypatch, Learner, "update")
    for place, env in (("own", own), ("agent", agent)):
        config = tiny_config(start_model, env=env, algorithm=algorithm, run={"name": "same"})
        train_in_process(config, tmp_path / place)
    rows = [[*arguments[1]] for arguments, _ in updates]
    half = len(rows) // 2
    assert half == 3
    assert rows[:half] == rows[half:]
    assert {sample.off_policy for update in rows for sample in update} == {False, True}
    assert equal_weights(tmp_path / "own", tmp_path / "agent")
    assert metrics(tmp_path / "own") == metrics(tmp_path / "agent")
    assert tip_rows(tmp_path / "own") == tip_rows(tmp_path / "agent") != []
