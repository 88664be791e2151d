"""A run whose environments and memory are actors on two nodes: it trains what a process alone trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodes import TwoNodes
from tinyrun import SAME, differences, tiny_config
from trailnotes.commands.train import train

PAID = {"num_workers": 2, "name": "tinyrun:Paid", "options": {"families": ["keys/granite"], "max_steps": 2}}


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_cluster_trains_what_one_process_trains(
    two_nodes: TwoNodes, start_model: Path, tmp_path: Path, ahead: int
) -> None:
    settings: dict[str, Any] = {"rollout": {"num_tasks": 5, "ahead": ahead}, "env": PAID}
    train(tiny_config(start_model, **settings), tmp_path / "alone")
    train(tiny_config(start_model, cluster={"address": two_nodes.address}, **settings), tmp_path / "cluster")
    assert differences(tmp_path / "alone", tmp_path / "cluster") == SAME
