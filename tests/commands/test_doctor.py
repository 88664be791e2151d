"""`trailnotes doctor` sees what is there, and names what mends the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import trailnotes
from trailnotes.commands import doctor, main
from trailnotes.errors import EXTRAS, find_missing_module, format_install_command, list_extras


def test_the_report_of_this_installation(tmp_path: Path) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'Some Card, 81559 MiB, 550.54.15'\n")
    driver.chmod(0o755)
    env = os.environ | {"HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "JAVA_HOME": str(tmp_path)}
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    command = [sys.executable, "-m", "trailnotes", "doctor", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["versions"]["trailnotes"] == trailnotes.__version__
    assert report["versions"]["torch"] == version("torch")
    assert {*report["extras"]} == {*list_extras()}
    ours = EXTRAS.keys() - {"vllm"}  # another test may have put one on this process's path
    assert {extra: report["extras"][extra] for extra in ours} == {each: find_missing_module(each) for each in ours}
    assert report["facts"]["directory"].endswith("GiB free")
    assert report["facts"]["GPU"] == "driver: Some Card, 81559 MiB, 550.54.15"
    assert "engine.graphs" in report["facts"]["untested"]
    problems = [fails for fails, _ in report["problems"]]
    assert [fails for fails in problems if "does not see the GPU" in fails]
    assert "scienceworld, textworld-express: no Java runs" in problems
    assert str(tmp_path) not in done.stdout


def test_what_is_missing_comes_with_what_mends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking(name: str) -> str:
        if name in {"scipy", "torch", "trailnotes-lab"}:
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setenv("HOME", "/")
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.setattr(doctor, "version", lacking)
    assert main(["doctor"]) == 2
    shown = capsys.readouterr()
    assert f"  the extra openai: needs openai: {format_install_command('openai')}" in shown.out.splitlines()
    assert "  trailnotes needs scipy: " in shown.out
    assert (
        "  compare, critic, the whole demo, view, trackers, REMEMBERER and Retrospex need the package trailnotes-lab: "
        in shown.out
    )
    assert shown.err.startswith("trailnotes: the core cannot run here")


def test_the_core_runs_without_what_a_sibling_requires(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [("trailnotes-lab needs starlette", "pip install starlette")]
    monkeypatch.setattr(doctor, "examine", lambda: {"facts": {}, "versions": {}, "extras": {}, "problems": problems})
    assert main(["doctor"]) == 0
