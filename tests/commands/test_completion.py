"""Completion, asked of a real bash as it asks on Tab."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from trailnotes.commands import main

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_trailnotes
printf '%s\\n' "${COMPREPLY[@]}"
"""
COMPLETED = {
    "trailnotes tr": {"train"},
    "trailnotes memory s": {"search", "serve", "show", "stats"},
    "trailnotes train --dr": {"--dry-run"},
    "trailnotes train --optim.lr": {"--optim.lr", "--optim.lr_decay"},
    "trailnotes memory list --optim.lr": {""},  # it takes no settings
    "trailnotes rehearsal record --run.det": {"--run.deterministic"},
    "trailnotes train ow": {"own.toml"},
    "trailnotes view ru": {"runs"},
    "trailnotes completion b": {"bash"},
}


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "own.toml").touch()
    (tmp_path / "runs").mkdir()
    (tmp_path / "rubble").touch()  # no directory
    for line, words in COMPLETED.items():
        command = ["bash", "-c", ASK, "bash", str(script), *shlex.split(line)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert {*done.stdout.splitlines()} == words, line
