"""All that computes, on a device that is as strict as a GPU about what lies where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("pretend_cases.py")


@pytest.mark.long
def test_on_a_strict_device_everything_computes_what_it_computes_on_the_cpu() -> None:
    """In a process of its own: a device that is registered stays, and must be there before the first backward pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, cwd=CASES.parents[1], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
