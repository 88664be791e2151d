"""The examples of README and of the page of the Python API run, and print what the pages show."""

from __future__ import annotations

import re
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
