"""`make gpu` without a GPU: the same lines on a toy, all cases but those whose kernels a CPU does not have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_table_of_a_gpu_is_made_on_a_cpu_too(tmp_path: Path) -> None:
    page, figures = tmp_path / "gpu.md", tmp_path / "gpu.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--markdown", str(page), "--json", str(figures)]
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--seconds", "1e6"], env=hidden, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = {row.pop("case"): row for row in json.loads(figures.read_text())["rows"]}
    left_out = {name: row["not"] for name, row in rows.items() if "not" in row}
    assert {*left_out.values()} == {"for GPUs"}, left_out
    assert not any("hf" in name for name in left_out), "the embedded engine plays on a CPU too"
    padded, joined = (rows[f"learn, adapters, checkpointing{how}"]["tokens"] for how in ("", ", joined rows"))
    assert joined < padded
    lines = page.read_text().splitlines()
    assert lines[0] == "# On a GPU"
    states = [line for line in lines if line.endswith((" tested |", " never run: for GPUs |"))]
    assert [line.split(" | ")[0].removeprefix("| ") for line in states] == list(rows)
    assert sum(line.endswith(" tested |") for line in states) == len(rows) - len(left_out)
