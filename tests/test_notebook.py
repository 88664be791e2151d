"""The example notebook: its cells run where an event loop runs already, and its outputs are those of a real kernel.

The cells are compiled and awaited by hand, as a kernel does it: ipykernel and nbclient would bring forty packages.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from trailnotes.config.builtin import BUILTIN

NOTEBOOK = BUILTIN / "project/notebook.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def compiled(cell: dict[str, Any]) -> CodeType:
    return compile("".join(cell["source"]), NOTEBOOK.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def run_cells(names: dict[str, Any]) -> None:
    for cell in CODE:
        pending = eval(compiled(cell), names)
        if inspect.isawaitable(pending):
            await pending
        await asyncio.sleep(0)  # the loop of the kernel goes on between cells


def test_its_cells_run_in_a_running_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    asyncio.run(run_cells(names))
    names["plt"].close("all")
    saved = "".join(text for cell in CODE for output in cell["outputs"] for text in output.get("text", ()))
    for text in (capsys.readouterr().out, saved):
        assert all(part in text for part in ("trial 3 ", "support", "2 return ", "unseen, without tips "))
    assert (tmp_path / "runs/notebook/empo2/eval/table.json").is_file()


def test_it_is_saved_as_it_ran_and_names_no_machine() -> None:
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    outputs = [output for cell in CODE for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} >= {"stream", "display_data"}
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not re.findall(r"/(?:home|root|tmp|work|usr|opt)/", NOTEBOOK.read_text(encoding="utf-8"))
