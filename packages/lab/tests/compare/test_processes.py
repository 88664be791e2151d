"""Processes side by side: what they took, who waits for whom, and that none is left, however it ends."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from children import alive, wait_for
from trailnotes_lab.compare import processes as module
from trailnotes_lab.compare.processes import (
    LOG_FILE,
    Job,
    JobProcess,
    ProcessResult,
    describe_failure,
    read_tail,
    run_jobs,
    stop_processes,
)

GOOD_SLEEPER = """
import os, pathlib, signal, sys, time
def save(*_):
    pathlib.Path(sys.argv[1], "saved").write_text("x")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, lambda *_: pathlib.Path(sys.argv[1], "interrupted").write_text("x"))
begun = pathlib.Path(sys.argv[1], "begun")
begun.write_text(str(os.getpid()))
begun.rename(begun.with_name("pid"))
time.sleep(60)
"""
DEAF_SLEEPER = GOOD_SLEEPER.replace(
    "signal.signal(signal.SIGTERM, save)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
)


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)


def a_job(out: Path, name: str, code: str, needs: Sequence[str] = ()) -> Job:
    directory = out / name
    return Job(name, directory, (sys.executable, "-c", code, str(directory)), tuple(needs))


def ignore(_: Any) -> None:
    pass


def pid_of(job: Job) -> int:
    return int((job.directory / "pid").read_text())


def interrupt_when_begun(*jobs: Job) -> Any:
    def watch(_: Any) -> None:
        if all((job.directory / "pid").exists() for job in jobs):
            raise KeyboardInterrupt

    return watch


# -- failures


def test_a_failure_leaves_the_others_running_but_not_what_needs_it(tmp_path: Path) -> None:
    jobs = [
        a_job(tmp_path, "last", "", ["middle"]),
        a_job(tmp_path, "middle", "", ["fails"]),
        a_job(tmp_path, "fails", "import sys; sys.exit('no disk')"),
        a_job(tmp_path, "other", "print('fine')", ["done long ago"]),
    ]
    failures = run_jobs(jobs, 2, watch=ignore, on_end=describe_failure)
    assert failures == {
        "fails": "ended with status 1: no disk",
        "middle": "needs fails, which failed",
        "last": "needs middle, which failed",
    }
    assert (tmp_path / "other" / "console.log").read_text() == "fine\n"
    assert not (tmp_path / "middle").exists()


def test_the_signal_that_ended_a_process_is_named(tmp_path: Path) -> None:
    job = a_job(tmp_path, "killed", "import os; os.kill(os.getpid(), 9)")
    assert run_jobs([job], 1, watch=ignore, on_end=describe_failure) == {"killed": "was ended by signal 9: no output"}


def test_who_looks_at_the_end_says_what_a_failure_is(tmp_path: Path) -> None:
    jobs = [a_job(tmp_path, name, f"raise SystemExit({status})") for name, status in (("zero", 0), ("three", 3))]
    seen: dict[str, ProcessResult] = {}

    def on_end(job: Job, ended: ProcessResult) -> str:
        seen[job.name] = ended
        return "" if ended.status else "left nothing"

    assert run_jobs(jobs, 2, watch=ignore, on_end=on_end) == {"zero": "left nothing"}
    assert {name: ended.status for name, ended in seen.items()} == {"zero": 0, "three": 3}


# -- order and cost


def test_no_more_than_so_many_at_once_and_none_before_what_it_needs(tmp_path: Path) -> None:
    code = "import pathlib, sys, time; time.sleep(.1); pathlib.Path(sys.argv[1], 'ended').touch()"
    jobs = [a_job(tmp_path, "a", code, ["c"]), *(a_job(tmp_path, name, code) for name in "bcd")]
    most: list[int] = []
    run_jobs(jobs, 2, watch=lambda running: most.append(len(running)), on_end=describe_failure)
    assert max(most) == 2

    def time_of(name: str, file: str) -> int:
        return (tmp_path / name / file).stat().st_mtime_ns

    begun = {
        name: time_of(name, LOG_FILE) for name in "abcd"
    }  # opened by the starter, whenever the process gets its turn
    assert begun["a"] >= time_of("c", "ended")
    assert max(begun["b"], begun["c"]) < begun["d"], "otherwise in the order given"


def test_what_a_process_took_is_measured(tmp_path: Path) -> None:
    code = "import time; t = time.process_time(); b = bytearray(300 << 20)\nwhile time.process_time() - t < .3: pass"
    process = JobProcess(a_job(tmp_path, "busy", code))
    wait_for(process.poll)
    ended = process.ended
    assert ended is not None
    assert ended.status == 0
    assert ended.cpu_seconds >= 0.3
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # Linux counts what the child was before its exec
    assert 300 << 20 <= ended.peak_memory < max(500 << 20, 2 * own)


# -- stopping


def test_whoever_interrupts_has_each_process_asked_once_to_save(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [a_job(tmp_path, name, GOOD_SLEEPER) for name in ("one", "two")]
    ends: dict[str, int] = {}

    def on_end(job: Job, ended: ProcessResult) -> str:
        ends[job.name] = ended.status
        return ""

    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, 2, watch=interrupt_when_begun(*jobs), on_end=on_end)
    assert all((job.directory / "saved").exists() for job in jobs)
    assert not any(alive(pid_of(job)) for job in jobs)
    assert ends == {"one": 0, "two": 0}, "what an interrupted process took is not forgotten"
    assert "the same command resumes from here" in capsys.readouterr().out


def test_a_closed_terminal_keeps_nobody_from_being_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_job(tmp_path, "one", GOOD_SLEEPER)

    def gone(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("builtins.print", gone)
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job], 1, watch=interrupt_when_begun(job), on_end=describe_failure)
    assert (job.directory / "saved").exists()


def test_a_process_that_will_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_job(tmp_path, "deaf", DEAF_SLEEPER)
    monkeypatch.setattr(module, "STOP_TIMEOUT", 0.1)
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job], 1, watch=interrupt_when_begun(job), on_end=describe_failure)
    assert not alive(pid_of(job))
    assert not (job.directory / "saved").exists()


def test_ctrl_c_of_the_terminal_does_not_reach_the_processes(tmp_path: Path) -> None:
    """It goes to the group in the foreground; a second signal would stop a run in mid-iteration."""
    job = a_job(tmp_path, "one", GOOD_SLEEPER)
    process = JobProcess(job)
    try:
        wait_for((job.directory / "pid").exists)
        assert os.getpgid(process.pid) == process.pid != os.getpgrp()
    finally:
        stop_processes([process])
    assert process.ended is not None
    assert process.ended.status == 0


def test_the_tail_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert read_tail(file, 3) == b""
    file.write_bytes(b"12345")
    assert (read_tail(file, 3), read_tail(file, 9)) == (b"345", b"12345")
