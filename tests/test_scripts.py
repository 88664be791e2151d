"""The scripts of examples/, benchmarks/ and docs/results/: what they leave alone, and what they say."""

from __future__ import annotations

from pathlib import Path

import right_tips

from trailnotes.config.toml import load_config
from trailnotes.memory import open_memory


def test_right_tips_leaves_checkpoints_as_they_are(tmp_path: Path) -> None:
    config, snapshot = load_config("demo-small"), tmp_path / "memory.db"
    with open_memory(None, config.memory) as memory:
        memory.snapshot(snapshot)
    before = snapshot.read_bytes()
    assert not right_tips.in_memory(snapshot, config)
    assert snapshot.read_bytes() == before
    assert [*tmp_path.iterdir()] == [snapshot]
