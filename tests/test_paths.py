"""Wherever the public API takes a path, it takes a str, a Path, or anything else that says its path."""

from __future__ import annotations

import os
from pathlib import Path

import trailnotes
from small import small_config
from trailnotes.config.toml import to_toml
from trailnotes.memory import reembed
from trailnotes.memory.exchange import export_tips, import_tips, open_store
from trailnotes.memory.tipfile import read_tips
from trailnotes.runs.diagnose import diagnose
from trailnotes.runs.evaluate import rollout
from trailnotes.types import Tip
from trailnotes_lab.compare import compare_evaluations


class Place(os.PathLike[str]):
    """A path that is neither a str nor a Path."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __fspath__(self) -> str:
        return self._path


def test_runs_and_evaluations(start_model: Path, tmp_path: Path) -> None:
    start, run, out = Place(start_model), Place(tmp_path / "run"), Place(tmp_path / "out")
    config = small_config(model={"path": str(start_model)}, train={"iterations": 1}, eval={"num_tasks": 1, "trials": 0})
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert trailnotes.load_config(Place(tmp_path / "config.toml")) == config
    assert trailnotes.train(config, run) == tmp_path / "run/checkpoints/step-000001/model"
    trailnotes.evaluate(config, run, out=out)
    assert (tmp_path / "out/table.json").exists()
    assert len(trailnotes.adapt(config, start, out=Place(tmp_path / "adapt"))) == 1
    assert (tmp_path / "adapt/table.json").exists()
    assert rollout(config, start, out=Place(tmp_path / "episodes.jsonl"))
    assert diagnose(run).startswith(str(tmp_path / "run"))
    compare_evaluations([str(tmp_path / "out")], out=Place(tmp_path / "compared"))
    assert (tmp_path / "compared/table.json").exists()


def test_memories(tmp_path: Path) -> None:
    config = trailnotes.Config().memory
    file, copy, lines = Place(tmp_path / "memory.db"), Place(tmp_path / "copy.db"), Place(tmp_path / "tips.jsonl")
    with trailnotes.open_memory(file, config) as memory:
        memory.add([Tip("maze/1", "go left", key="a hall", score=1.0)])
        memory.snapshot(copy)
        memory.restore(copy)
        assert export_tips(memory.store, lines) == 1
    assert reembed(file, "hashing") == 1
    with open_store(file) as store:
        assert import_tips(store, lines).known == 1  # a tip of its own
    assert [tip.text for tip in read_tips(lines)] == ["go left"]
