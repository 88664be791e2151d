"""Simulators that are killed or stopped under running episodes, as `benchmarks/soak_scienceworld.py` does it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "soak_scienceworld.py"


def soaked(tmp_path: Path, *arguments: str, limit: float) -> dict[str, Any]:
    """The script's result, from a process of its own: what is left over is counted there."""
    file = tmp_path / "soak.json"
    command = [sys.executable, str(SCRIPT), "--json", str(file), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    assert done.stderr == ""
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert [check for check in result["checks"] if not check["ok"]] == []
    assert (done.returncode, result["errors"]) == (0, [])
    return result


def test_one_killed_and_one_stopped(tmp_path: Path) -> None:
    options = ["--episodes", "12", "--every", "6", "--simulators", "2", "--steps", "5", "--timeout", "8"]
    result = soaked(tmp_path, *options, limit=280)
    assert result["faults"] == {"SIGKILL": 1, "SIGSTOP": 1}
    assert len(result["checks"]) == 10


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_five_hundred_episodes(tmp_path: Path) -> None:
    result = soaked(tmp_path, limit=7000)
    assert result["faults"] == {"SIGKILL": 13, "SIGSTOP": 12}
    assert len(result["checks"]) == 13  # with those of memory over time
