"""`trailnotes doctor` sees what is there, names what mends the rest, and keeps the user's name to itself."""

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

ROOT = Path(__file__).parents[2]
CARD = "Some Card, 81559 MiB, 550.54.15"


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to ask in a child process, which takes seconds."""
    monkeypatch.setitem(sys.modules, "torch", None)


def test_the_report_of_this_installation(tmp_path: Path) -> None:
    """Home is where the clone is, so that the commands that mend would name it."""
    driver = tmp_path / "nvidia-smi"
    driver.write_text(f"#!/bin/sh\necho '{CARD}'\n")
    driver.chmod(0o755)
    env = os.environ | {"HOME": str(ROOT.parent), "USER": ROOT.name, "CUDA_VISIBLE_DEVICES": ""}
    env |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "JAVA_HOME": str(tmp_path)}
    # However long a busy machine takes to load torch.
    waits = "import sys; from trailnotes.commands import doctor, main; doctor.TIME_LIMIT = 1e6; sys.exit(main())"
    command = [sys.executable, "-c", waits, "doctor", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["versions"]["trailnotes"] == trailnotes.__version__
    assert report["versions"]["torch"] == version("torch")
    assert {*report["extras"]} == {*list_extras()}
    ours = EXTRAS.keys() - {"vllm"}  # another test may have put one on this process's path
    assert {extra: report["extras"][extra] for extra in ours} == {each: find_missing_module(each) for each in ours}
    assert report["facts"]["directory"].endswith("GiB free; locks and SQLite work")
    assert report["facts"]["GPU"] == f"driver: {CARD}"
    problems = [fails for fails, _ in report["problems"]]
    assert [fails for fails in problems if "does not see the GPU" in fails]
    assert "scienceworld, textworld-express: no Java runs" in problems
    assert report["core_works"]
    assert ROOT.parent == Path("/") or f"{ROOT.parent}/" not in done.stdout
    assert f"/{ROOT.name}" not in done.stdout


def test_a_shell_takes_a_hidden_home_for_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setenv("USER", "alice")
    for command in ("pip install -e '/home/alice/a clone[train]'", "/scratch/alice/bin/pip /home/alice"):
        hidden = doctor.hide_user(command)
        assert "alice" not in hidden
        shells = [
            subprocess.run(["bash", "-c", f"printf '%s|' {each}"], capture_output=True, text=True, check=True).stdout
            for each in (command, hidden)
        ]
        assert shells[0] == shells[1]
    assert doctor.hide_user("/home/alice-2/malice/alice.txt") == "/home/alice-2/malice/alice.txt"


@pytest.mark.usefixtures("without_torch")
def test_a_missing_extra_comes_with_what_fails_and_what_mends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    openai, webshop = format_install_command("openai"), format_install_command("webshop")
    assert doctor.hide_user(f'  model.path = "openai:NAME": needs openai: {openai}') in lines
    assert doctor.hide_user(f"  the extra webshop: needs rapidfuzz: {webshop}") in lines
    (installed,) = (line.split() for line in lines if line.startswith("extras "))
    assert not {"openai,", "webshop,"} & {*installed}


@pytest.mark.usefixtures("without_torch")
def test_a_core_that_cannot_run_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking(name: str) -> str:
        if name in {"scipy", "trailnotes-lab"}:
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(doctor, "version", lacking)
    assert main(["doctor"]) == 2
    said = capsys.readouterr()
    assert "  trailnotes needs scipy: " in said.out
    assert "  compare, the whole demo, view and trackers need the package trailnotes-lab: " in said.out
    assert said.err.startswith("trailnotes: the core cannot run here")


def test_a_damaged_torch_and_a_directory_that_takes_no_runs(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('no libcudart')")
    heavy = "assert not {'torch', 'numpy'} & {*sys.modules}"
    code = f"import sys; from trailnotes.commands import main; main(['doctor']); {heavy}"
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/proc", env=env, capture_output=True, text=True, check=True
    )
    assert "  torch cannot be loaded (ImportError: no libcudart): " in done.stdout
    assert "  runs and memories in this directory: " in done.stdout
