"""Examples of README and of pages run, and print what the pages show."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trailnotes.envs import check_env

ROOT = Path(__file__).parents[1]


def read_blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_environment_of_readme_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = read_blocks("README.md", "python")
    (tmp_path / "lock.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    from lock import Lock

    try:
        assert check_env(Lock) == ()
    finally:
        del sys.modules["lock"]


@pytest.mark.usefixtures("same_threads")
def test_the_first_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example = next(block for block in read_blocks("docs/api.md", "python") if "import trailnotes\n" in block)
    exec(compile(example, "api.md", "exec"), {})
    (shown,) = read_blocks("docs/api.md", "text")

    def shape(text: str) -> list[str]:  # rounding differs from machine to machine, and with it what is sampled
        return [re.sub(r"[\d.]+", "#", line)[:8] for line in text.splitlines()]

    printed = capsys.readouterr().out
    assert shape(printed) == shape(shown)
    assert "trial 0 0.00 [" in printed
    assert len((tmp_path / "runs/readme/empo2/metrics.jsonl").read_text().splitlines()) > 2


@pytest.mark.usefixtures("same_threads", "methods_as_before")
def test_the_method_of_the_guide_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    method, script = read_blocks("docs/guides/add-a-method.md", "python")
    assert len([line for line in method.splitlines() if line]) <= 40
    Path("own_method.py").write_text(method)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_method", raising=False)
    assert importlib.import_module("own_method").compute_advantages([1.0, 0.0, 0.0], 1 / 3, 0.0) == [1.0, -0.5, -0.5]
    exec(compile(script, "add-a-method.md", "exec"), {})
    (line,) = Path("runs/own/metrics.jsonl").read_text().splitlines()
    assert 0 <= json.loads(line)["own/wins"] <= 1


def test_the_tour_names_the_lines_as_they_are() -> None:
    subprocess.run([sys.executable, ROOT / "docs/tour.py", "--check"], check=True)
