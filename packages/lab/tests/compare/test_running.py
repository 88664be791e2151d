"""The loop over the stages of a comparison: order, failures, and that no process is left, however it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from children import alive, wait_for
from trailnotes.config.schema import Config
from trailnotes_lab.compare import running
from trailnotes_lab.compare.cost import load_costs
from trailnotes_lab.compare.expand import PlannedRun
from trailnotes_lab.compare.running import RunStage, StageProcess, run_stages, stop_processes

SLEEPER = """
import os, pathlib, signal, sys, time
def save(*_):
    pathlib.Path(sys.argv[1], "saved").write_text("x")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
begun = pathlib.Path(sys.argv[1], "begun")
begun.write_text(str(os.getpid()))
begun.rename(begun.with_name("pid"))
time.sleep(60)
"""
DEAF_SLEEPER = SLEEPER.replace("signal.signal(signal.SIGTERM, save)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
DONE = """
import pathlib, sys, time
time.sleep(.1)
(pathlib.Path(sys.argv[1]) / "eval").mkdir()
for name in ("table.json", "eval/table.json"):
    pathlib.Path(sys.argv[1], name).touch()
"""


@pytest.fixture(autouse=True)
def python_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of these tests run their first word as Python code, in place of a command of trailnotes."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "$3" "$4"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(running, "POLL_SECONDS", 0.02)


def make_stage(out: Path, name: str, code: str, needs: tuple[str, ...] = ()) -> RunStage:
    directory = out / "runs" / name
    run = PlannedRun(name, 0, directory, Config(algorithm={"name": "naive"}))
    return RunStage(run, "adapt", (code, str(directory)), needs)


def test_a_failed_stage_stops_only_those_that_need_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = [
        make_stage(tmp_path, "last", "", ("middle adapt",)),
        make_stage(tmp_path, "middle", "", ("fails adapt",)),
        make_stage(tmp_path, "fails", "import sys; sys.exit('no disk')"),
        make_stage(tmp_path, "killed", "import os; os.kill(os.getpid(), 9)"),
        make_stage(tmp_path, "blocked", ""),
        make_stage(tmp_path, "short", "print('fine')"),
        make_stage(tmp_path, "other", DONE, ("done long ago",)),
    ]
    (tmp_path / "runs/other/cost.json").mkdir(parents=True)
    (tmp_path / "runs/blocked").touch()
    assert run_stages(stages, 2) == {
        "fails adapt": "ended with status 1: no disk",
        "killed adapt": "was ended by signal 9: no output",
        "middle adapt": "needs fails adapt, which failed",
        "last adapt": "needs middle adapt, which failed",
        "blocked adapt": f"cannot be started: [Errno 17] File exists: '{tmp_path}/runs/blocked'",
        "short adapt": f"stopped before its end, and {tmp_path}/runs/short/console.log says why",
    }
    assert (tmp_path / "runs/short/console.log").read_text() == "fine\n"
    assert not (tmp_path / "runs/middle").exists()
    err = capsys.readouterr().err
    assert err.index("other  adapt  its costs were not recorded: ") < err.index("other  adapt  done")


def test_order_and_number_of_stages_at_once(tmp_path: Path) -> None:
    stages = [make_stage(tmp_path, "a", DONE, ("c adapt",)), *(make_stage(tmp_path, name, DONE) for name in "bcd")]
    assert run_stages(stages, 2) == {}
    begun, ended = (
        {name: (tmp_path / "runs" / name / file).stat().st_mtime_ns for name in "abcd"}
        for file in ("console.log", "eval/table.json")
    )
    assert ended["c"] < begun["a"]
    assert all(sum(begun[each] <= moment < ended[each] for each in "abcd") <= 2 for moment in begun.values())


def test_an_interrupt_asks_each_process_once_to_save(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = [make_stage(tmp_path, name, SLEEPER) for name in ("one", "two")]
    pids = [tmp_path / "runs" / name / "pid" for name in ("one", "two")]

    def sleep(_: float) -> None:
        if all(pid.exists() for pid in pids):
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(running.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        run_stages(stages, 2)
    assert all((pid.parent / "saved").exists() for pid in pids)
    assert not any(alive(int(pid.read_text())) for pid in pids)
    assert all("seconds" in load_costs(pid.parent) for pid in pids), "an interrupted process has its costs, too"
    assert "the same command resumes from here" in capsys.readouterr().err


def test_a_process_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "runs/deaf/pid"
    monkeypatch.setattr(running, "STOP_TIMEOUT", 0.0)
    process = StageProcess(make_stage(tmp_path, "deaf", DEAF_SLEEPER))
    wait_for(pid.exists)
    assert os.getpgid(int(pid.read_text())) != os.getpgrp(), "Ctrl-C of the terminal reaches this process alone"
    stop_processes([process])
    assert process.ended
    assert not alive(int(pid.read_text()))
    assert not (pid.parent / "saved").exists()
