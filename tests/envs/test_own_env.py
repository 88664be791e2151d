"""The example of an environment of one's own: it keeps the contract, runs, and is found by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trailnotes.commands import main
from trailnotes.config.builtin import BUILTIN
from trailnotes.runs.directory import load_run_config
from trailnotes.storage.files import read_jsonl

PROJECT = BUILTIN / "project"

SMALL = """--rollout.style terse --rollout.max_context_tokens 256 --rollout.num_tasks 2 --rollout.group_size 2
--rollout.max_action_tokens 4 --memory.max_write_tokens 4 --empo2.p_memory 0.5 --train.iterations 1
--env.num_workers 1"""


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(PROJECT)


@pytest.mark.usefixtures("same_threads")
def test_its_name_and_a_model_are_enough_to_train_it(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As a first user would: a folder with one file and no config; the settings only make it small."""
    monkeypatch.chdir(tmp_path)
    Path("lamp.py").write_text((PROJECT / "own_env.py").read_text().replace("own_env:", "lamp:"))
    assert main(["train", "--env.name", "lamp:Lock", "--model.path", str(start_model), *SMALL.split()]) == 0
    assert capfd.readouterr().out == "last model: runs/lamp-Lock/checkpoints/step-000001/model\n"
    assert load_run_config(Path("runs/lamp-Lock")).env.name == "lamp:Lock"
    assert {record["task"]["env"] for record in read_jsonl(Path("runs/lamp-Lock/trajectories.jsonl"))} == {"lamp:Lock"}
