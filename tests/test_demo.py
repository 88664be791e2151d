from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from small import small_config
from trailnotes import demo as module
from trailnotes.configio import to_toml
from trailnotes.demo import Job, demo, unequal_steps
from trailnotes.errors import ConfigError, RunError
from trailnotes.evaluation import PanelResult
from trailnotes.jsonl import read_jsonl

SETTINGS = ["--eval.num_tasks", "2"]


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 0.02)


def config_file(start: Path, path: Path) -> Path:
    path.write_text(to_toml(small_config(model={"path": str(start)}, train={"max_env_steps": 24})))
    return path


@pytest.fixture(scope="module")
def finished_demo(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[PanelResult]]:
    """Config, directory and rows of a demo of one seed."""
    directory = tmp_path_factory.mktemp("demo")
    path = config_file(start_model, directory / "demo.toml")
    return path, directory / "out", demo(directory / "out", config_path=path, seeds=1, trials=1, settings=SETTINGS)


# -- from end to end


def test_the_table_is_as_promised(finished_demo: Any) -> None:
    _, out, _ = finished_demo
    rows = json.loads((out / "table.json").read_text())["rows"]
    assert [(row["algorithm"], row["memory"]) for row in rows] == [
        ("start", False),
        ("grpo", False),
        ("empo2", False),
        ("empo2", True),
    ]
    for row in rows:
        assert (row["panel"], row["metric"], row["seeds"], row["num_tasks"]) == ("test", "success", 1, 2)
        assert 0 <= row["ci_low"] <= row["mean"] <= row["ci_high"] <= 1
        assert row["interval"] == "bootstrap over seeds, then families, then games, 95%"
    for name in ("grpo", "empo2"):
        spent = list(read_jsonl(out / f"{name}-0" / "metrics.jsonl"))[-1]
        for row in rows:
            if row["algorithm"] == name:
                assert row["env_steps"] == spent["env_steps"] >= 24
                assert row["tokens_generated"] == spent["tokens_generated"] > 0
                assert row["seconds"] == spent["seconds"] > 0
    assert rows[0]["env_steps"] == rows[0]["tokens_generated"] == rows[0]["seconds"] == 0


def test_it_leaves_one_table_a_picture_and_a_story(finished_demo: Any) -> None:
    _, out, _ = finished_demo
    assert [path.relative_to(out).as_posix() for path in out.rglob("table.json")] == ["table.json"]
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "table.md").read_text().count("\n| ") == 4
    assert (out / "story.txt").read_text().strip()


def test_the_runs_differ_in_method_and_seed_alone(finished_demo: Any) -> None:
    _, out, _ = finished_demo
    runs = [(out / name / "config.toml").read_text().splitlines() for name in ("grpo-0", "empo2-0")]
    differing = {a.split(" = ")[0] for a, b in zip(*runs, strict=True) if a != b}
    assert differing == {"name"}  # of the method, and of the run
    panels = {path.name for path in (out / "panels").iterdir()}
    assert panels == {"start-0", "grpo-0", "empo2-0", "empo2-0-notes"}
    plain, noted = (list(read_jsonl(out / "panels" / name)) for name in
                    ("empo2-0/episodes.jsonl", "empo2-0-notes/trial-01.jsonl"))  # fmt: skip
    assert {record["mode"] for record in plain} == {"plain"}
    assert {record["mode"] for record in noted} == {"on_policy_tips"}
    assert [record["task"] for record in plain] == [record["task"] for record in noted]


def test_once_more_trains_and_plays_nothing(
    finished_demo: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out, rows = finished_demo

    def never(*_: object, **__: object) -> None:
        raise AssertionError("this was done already")

    monkeypatch.setattr(module, "_start", never)
    monkeypatch.setattr(module, "play_subject", never)
    monkeypatch.setattr("trailnotes.evaluation.play_panel", never)
    before = (out / "table.json").read_bytes()
    assert demo(out, config_path=path, seeds=1, trials=1, settings=SETTINGS) == rows
    assert (out / "table.json").read_bytes() == before
    said = capsys.readouterr().out
    assert "start model, without notes" in said
    assert "generated" in said
    assert max(len(line) for line in said.splitlines() if "─" in line) <= 100


def test_a_panel_that_was_cut_off_is_played_again(finished_demo: Any) -> None:
    path, out, rows = finished_demo
    file = out / "panels" / "grpo-0" / "episodes.jsonl"
    before = file.read_text()
    file.unlink()
    assert demo(out, config_path=path, seeds=1, trials=1, settings=SETTINGS) == rows
    assert file.read_text() == before


def test_a_demo_of_other_settings_is_refused(finished_demo: Any) -> None:
    path, out, _ = finished_demo
    before = (out / "table.json").read_bytes()
    with pytest.raises(RunError, match=r"holds a demo with another optim\.lr: remove it, or choose another --out"):
        demo(out, config_path=path, seeds=1, trials=1, settings=[*SETTINGS, "--optim.lr", "0.5"])
    assert (out / "table.json").read_bytes() == before


def test_without_a_number_of_environment_steps_there_is_nothing_to_compare(start_model: Path, tmp_path: Path) -> None:
    path = config_file(start_model, tmp_path / "demo.toml")
    with pytest.raises(ConfigError, match=r"set train\.max_env_steps"):
        demo(tmp_path / "out", config_path=path, settings=["--train.max_env_steps", "0"])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_interrupted_with_two_seeds_it_ends_as_if_left_alone(start_model: Path, tmp_path: Path) -> None:
    path = config_file(start_model, tmp_path / "demo.toml")
    code = (
        "import sys; from pathlib import Path; from trailnotes.demo import demo;"
        f"demo(Path(sys.argv[1]), config_path=Path({str(path)!r}), seeds=2, trials=1, settings={SETTINGS!r})"
    )
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run([sys.executable, "-c", code, str(whole)], check=True)
    process = subprocess.Popen([sys.executable, "-c", code, str(cut)], stdout=subprocess.PIPE, text=True)
    wait_for(lambda: any(cut.glob("*/metrics.jsonl")), 120)
    pids = [int(line) for line in children_of(process.pid)]
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert pids
    assert not any(alive(pid) for pid in pids)
    assert not (cut / "table.json").exists()
    assert "the same command goes on from here" in output
    subprocess.run([sys.executable, "-c", code, str(cut)], check=True)
    tables = [json.loads((directory / "table.json").read_text())["rows"] for directory in (whole, cut)]
    for row in (*tables[0], *tables[1]):
        row["seconds"] = 0
    assert tables[0] == tables[1]
    assert tables[0][1]["seeds"] == 2


# -- processes


def jobs_in(out: Path, *names: str) -> list[Job]:
    return [Job(name, 0, out / f"{name}-0") for name in names]


def script(code: str) -> Sequence[str]:
    return [sys.executable, "-c", code]


GOOD_SLEEPER = """
import os, pathlib, signal, sys, time
def save(*_):
    pathlib.Path(sys.argv[1], "saved").write_text("x")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, lambda *_: pathlib.Path(sys.argv[1], "interrupted").write_text("x"))
pathlib.Path(sys.argv[1], "pid").write_text(str(os.getpid()))
time.sleep(60)
"""
DEAF_SLEEPER = GOOD_SLEEPER.replace(
    "signal.signal(signal.SIGTERM, save)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
)


def wait_for(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pid_of(job: Job) -> int:
    return int((job.directory / "pid").read_text())


def run_jobs(jobs: list[Job], commands: dict[str, Sequence[str]], at_once: int = 2) -> None:
    module._train_all(small_config(), jobs, at_once, lambda job: [*commands[job.method], str(job.directory)])


def test_a_process_that_fails_is_named_with_its_last_line_and_the_others_are_ended(tmp_path: Path) -> None:
    fails, sleeps = jobs_in(tmp_path, "fails", "sleeps")
    other = str(sleeps.directory / "pid")
    code = (
        f"import os, time, sys\nwhile not os.path.exists({other!r}): time.sleep(.02)\nprint('a'); sys.exit('no disk')"
    )
    with pytest.raises(RunError, match=r"run fails-0 ended with status 1: no disk \(all of it: .*console\.log\)"):
        run_jobs([fails, sleeps], {"fails": script(code), "sleeps": script(GOOD_SLEEPER)})
    assert (fails.directory / "console.log").read_text().split() == ["a", "no", "disk"]
    assert (sleeps.directory / "saved").exists()
    assert not alive(pid_of(sleeps))


def test_an_interrupted_demo_asks_each_process_once_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = jobs_in(tmp_path, "one", "two")

    def show(*_: object) -> None:
        if all((job.directory / "pid").exists() for job in jobs):
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "_show", show)
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, dict.fromkeys(("one", "two"), script(GOOD_SLEEPER)))
    assert all((job.directory / "saved").exists() for job in jobs)
    assert not any(alive(pid_of(job)) for job in jobs)
    assert "the same command goes on from here" in capsys.readouterr().out


def test_a_process_that_will_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = jobs_in(tmp_path, "deaf")
    monkeypatch.setattr(module, "PATIENCE", 0.1)

    def show(*_: object) -> None:
        if (job.directory / "pid").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "_show", show)
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job], {"deaf": script(DEAF_SLEEPER)})
    assert not alive(pid_of(job))
    assert not (job.directory / "saved").exists()


def test_ctrl_c_of_the_terminal_does_not_reach_the_processes(tmp_path: Path) -> None:
    """It goes to the group in the foreground; a second signal would stop a run in mid-iteration."""
    (job,) = jobs_in(tmp_path, "one")
    process = module._start(job, [*script(GOOD_SLEEPER), str(job.directory)])
    try:
        wait_for((job.directory / "pid").exists)
        assert os.getpgid(process.pid) == process.pid != os.getpgrp()
    finally:
        module._end([process])
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_ends_the_demo_as_ctrl_c_does(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), module._ended_by_signals():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_no_more_than_so_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, most = jobs_in(tmp_path, "a", "b", "c"), []
    monkeypatch.setattr(module, "_show", lambda bar, config, jobs, running: most.append(len(running)))
    run_jobs(jobs, dict.fromkeys("abc", script("import time; time.sleep(.1)")), at_once=2)
    assert max(most) == 2
    assert all((job.directory / "console.log").exists() for job in jobs)


# -- rows


def a_row(algorithm: str, env_steps: int) -> PanelResult:
    return PanelResult(algorithm, False, "test", "success", 0.5, 0.4, 0.6, env_steps, 2, 80, 160, "bootstrap")


def test_unequal_environment_steps_are_said() -> None:
    assert unequal_steps([a_row("start", 0), a_row("grpo", 1000), a_row("empo2", 980)]) == []
    (line,) = unequal_steps([a_row("start", 0), a_row("grpo", 1000), a_row("empo2", 979)])
    assert "differ by more than 2%" in line
    assert "grpo 1,000, empo2 979" in line
    assert unequal_steps([a_row("start", 0)]) == []
