"""Wherever the public API takes a path, it takes a str, a Path, or anything else that says its path."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trailnotes
from small import small_config
from trailnotes.commands.export import export
from trailnotes.config.toml import to_toml
from trailnotes.memory import TipMemory, reembed
from trailnotes.memory.exchange import export_tips, import_tips, open_store
from trailnotes.memory.store import TipStore
from trailnotes.memory.tipfile import read_tips
from trailnotes.runs.diagnose import diagnose
from trailnotes.runs.directory import RunDir
from trailnotes.runs.evaluate import rollout
from trailnotes.types import Tip
from trailnotes.warmstart.training import warmstart
from trailnotes_lab.compare import compare_evaluations, compare_table, run_comparison

PUBLIC: list[Callable[..., Any]] = [
    *(getattr(trailnotes, name) for name in trailnotes.__all__ if name != "Config"),
    *(rollout, diagnose, compare_evaluations, run_comparison, compare_table, warmstart, export),
    *(reembed, open_store, export_tips, import_tips, read_tips),
    *(TipMemory.snapshot, TipMemory.restore, TipStore, RunDir.open),
]


class Place(os.PathLike[str]):
    """A path that is neither a str nor a Path."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __fspath__(self) -> str:
        return self._path


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__qualname__)
def test_no_parameter_asks_for_a_path_alone(function: Callable[..., Any]) -> None:
    asked = {name: str(p.annotation) for name, p in inspect.signature(function).parameters.items()}
    assert not {name: kind for name, kind in asked.items() if re.search(r"\bPath\b", kind)}


@pytest.fixture(params=[str, Place])
def place(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_runs_and_evaluations(start_model: Path, tmp_path: Path, place: Any) -> None:
    start, run, out = place(start_model), place(tmp_path / "run"), place(tmp_path / "out")
    config = small_config(model={"path": str(start_model)}, train={"iterations": 1}, eval={"num_tasks": 1, "trials": 0})
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert trailnotes.load_config(place(tmp_path / "config.toml")) == config
    assert trailnotes.train(config, run) == tmp_path / "run/checkpoints/step-000001/model"
    trailnotes.evaluate(config, run, out=out)
    assert (tmp_path / "out/table.json").exists()
    assert len(trailnotes.adapt(config, start, out=place(tmp_path / "adapt"))) == 1
    assert (tmp_path / "adapt/table.json").exists()
    assert rollout(config, start, out=place(tmp_path / "episodes.jsonl"))
    assert diagnose(run).startswith(str(tmp_path / "run"))
    compare_evaluations([str(tmp_path / "out")], out=place(tmp_path / "compared"))
    assert (tmp_path / "compared/table.json").exists()


def test_memories(tmp_path: Path, place: Any) -> None:
    config = trailnotes.Config().memory
    file, copy, lines = place(tmp_path / "memory.db"), place(tmp_path / "copy.db"), place(tmp_path / "tips.jsonl")
    with trailnotes.open_memory(file, config) as memory:
        memory.add([Tip("maze/1", "go left", key="a hall", score=1.0)])
        memory.snapshot(copy)
        memory.restore(copy)
        assert export_tips(memory.store, lines) == 1
    assert reembed(file, "hashing") == 1
    with open_store(file) as store:
        assert import_tips(store, lines).known == 1  # a tip of its own
    assert [tip.text for tip in read_tips(lines)] == ["go left"]


def test_a_start_model(tmp_path: Path, place: Any) -> None:
    config = small_config(warmstart={"steps": 1})
    assert warmstart(config, place(tmp_path / "start")) == tmp_path / "start"
