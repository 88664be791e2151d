"""`trailnotes init`: what it writes runs at once, and nothing is overwritten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trailnotes.commands import main
from trailnotes.config.toml import diff_configs, load_config


def test_a_new_project_is_tested_played_and_ready_to_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "new" / "first"
    assert main(["init", str(folder)]) == 0
    said = capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.schema.json", "notebook.ipynb", "own.toml", "own_env.py", "test_own_env.py",
    ]  # fmt: skip
    assert all(str(path) in said for path in folder.iterdir())
    monkeypatch.chdir(folder)
    for file in ("own_env.py", "test_own_env.py"):  # without pytest
        subprocess.run([sys.executable, file], check=True, stdout=subprocess.PIPE)
    for line in (line for line in said.splitlines() if line.startswith("trailnotes rollout")):
        assert main([*line.partition("  ")[0].split()[1:], "--env.num_workers", "0"]) == 0
    assert "lock-" in capsys.readouterr().out
    assert "WARNING" not in caplog.text
    assert diff_configs(load_config("own-model"), load_config("own.toml")) == ["run.name", "env.name"]
    assert "own-model" not in (folder / "own.toml").read_text()
