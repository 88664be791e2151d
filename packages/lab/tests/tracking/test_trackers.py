from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odd_trackers import calls, damage
from trailnotes.config.toml import load_config
from trailnotes.runs.directory import RunDir
from trailnotes.storage.files import append_jsonl, split_after, trajectory_to_json
from trailnotes_lab.tracking.base import REDACTED, About, LoggedRun, redact_secrets
from trailnotes_lab.tracking.reporter import TrackerReporter
from viewed import HOSTILE, episode, make_run


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "trailnotes_lab.tracking.reporter"]


def tracked(path: Path, *names: str, **more: Any) -> Path:
    return make_run(path, run={"trackers": names}, **more)


def again(path: Path, *names: str, iterations: int = 0) -> None:
    """The same command on the same directory, which plays some more, or nothing."""
    with RunDir.open(path, load_config(path / "config.toml", ["--run.trackers", json.dumps(names)])) as run:
        done = len(run.read_metrics())
        run.move_lines_after(done)
        for iteration in range(done, done + iterations):
            run.append_metrics({"iteration": iteration, "rollout/success": 0.5})


def test_a_tracker_that_fails_harms_neither_the_run_nor_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_TOKEN", "sesame-0123456789")
    (tmp_path / "wandb.py").write_text("raise ModuleNotFoundError('gone', name='wandb')")
    monkeypatch.syspath_prepend(tmp_path)
    damage(tmp_path / "trackers" / "odd_trackers.Recorder.json")
    names = [f"odd_trackers:{name}" for name in ("Forgetful", "FailsAtOnce", "FailsLater", "Exits", "Recorder")]
    run = tracked(tmp_path, *names, "wandb")
    assert len(calls(run, "curves", "Forgetful")) == 3
    assert calls(run, "close", "Forgetful") == [[True]]
    assert [iteration for iteration, _ in calls(run, "curves", "FailsLater")] == [0]
    assert not calls(run, "curves", "Exits"), "it failed at the episodes of iteration 0, whose curves come again"
    said = warnings_of(caplog)
    assert len(said) == 5
    by_name = {text.split()[1].removeprefix("odd_trackers:"): text for text in said}
    assert "ValueError: no key in the environment: log in first" in by_name["FailsAtOnce"]
    assert "ConnectionError: no route to https://***@tracker.example" in by_name["FailsLater"]
    assert "SystemExit: gone" in by_name["Exits"]
    assert "Recorder.json is damaged: delete it, and the run is reported from its beginning" in by_name["Recorder"]
    assert "it needs the package wandb: " in by_name["wandb"]
    assert "[wandb]'" in by_name["wandb"]
    assert all("The run continues, and its own files are complete" in text for text in said)


PACKAGES = {"wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic"), "trackio": ("trackio",)}


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the packages keep what they keep."""
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "TRACKIO_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def twice(local: Path, name: str, caplog: pytest.LogCaptureFixture) -> Path:
    """A run with texts that no page may take for its own, resumed once."""
    if lacking := [package for package in PACKAGES[name] if find_spec(package) is None]:
        pytest.skip(f"needs {', '.join(lacking)}: pip install '.[{name}]'")
    run = tracked(local / "run", name, words=HOSTILE)
    again(run, name, iterations=2)
    assert not warnings_of(caplog)
    return run


def test_weights_and_biases_offline(local: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = twice(local, "wandb", caplog)
    offline = sorted((run / "trackers" / "wandb").glob("offline-run-*"))
    known = json.loads((run / "trackers" / "wandb.json").read_text())["id"]
    assert len(offline) == 2
    assert all(folder.name.endswith(f"-{known}") for folder in offline)
    files = [next(folder.glob("*.wandb")).read_bytes() for folder in offline]
    assert all(b"memory.order" in data and b"rollout/success" in data for data in files)
    assert b"rollout/success/plain" in files[0]
    assert b"rollout/success/plain" not in files[1]  # those iterations were shown before
    (tips, *_) = offline[0].glob("files/media/table/tips*.json")
    assert "shown" in json.loads(tips.read_text())["columns"]
    pages = [page.read_text() for page in offline[0].glob("files/media/html/episode/*.html")]
    assert pages
    assert not any("<script>" in page or "<svg" in page or "<img" in page for page in pages)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own packages
def test_mlflow_in_its_local_store(local: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = twice(local, "mlflow", caplog)
    with closing(sqlite3.connect(local / "mlflow.db")) as store:
        ((known, status),) = store.execute("SELECT run_uuid, status FROM runs").fetchall()
        points = store.execute("SELECT step, value FROM metrics WHERE key = 'rollout/success' ORDER BY step").fetchall()
        params = dict(store.execute("SELECT key, value FROM params").fetchall())
    assert json.loads((run / "trackers" / "mlflow.json").read_text()) == {"id": known, "iterations": 5, "episodes": 4}
    assert status == "FINISHED"
    assert points == [(i, 0.5) for i in range(5)]
    assert params["algorithm.name"] == "empo2"
    (kept,) = local.glob(f"mlruns/*/{known}/artifacts")
    assert "shown" in json.loads((kept / "tips.json").read_text())["columns"]
    assert (kept / "episode" / "best" / "000002.txt").is_file()


def test_trackio_in_its_local_store(local: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = twice(local, "trackio", caplog)
    known = json.loads((run / "trackers" / "trackio.json").read_text())["id"]
    with closing(sqlite3.connect(local / "trackio" / "trailnotes.db")) as store:
        found = store.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
        ((config,),) = store.execute("SELECT config FROM configs").fetchall()
    assert {name for name, _, _ in found} == {known}
    logged = [(step, json.loads(metrics)) for _, step, metrics in found]
    assert [step for step, metrics in logged if "rollout/success" in metrics] == [*range(5)]
    assert json.loads(config)["algorithm.name"] == "empo2"
    texts = [metrics["episode/best"]["_value"] for _, metrics in logged if "episode/best" in metrics]
    assert texts
    assert all(line.startswith("    ") for text in texts for line in text.splitlines())
    assert any("tips" in metrics for _, metrics in logged)


def show(run: Path, tracker: str = "Recorder") -> None:
    TrackerReporter(f"odd_trackers:{tracker}", run).finish(finished=True)


def test_a_run_is_shown_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path / "maze", iterations=6)
    show(run)
    ((known, name, config),) = calls(run, "made")
    assert (known, name) == ("", "maze")
    assert config["memory.order"] == ["ucb"]
    curves = calls(run, "curves")
    assert [iteration for iteration, _ in curves] == [*range(6)]
    assert curves[2][1]["rollout/success/plain"] == 1.0
    assert "mode" not in curves[2][1]
    texts = calls(run, "text")
    assert [(i, what) for i, what, _ in texts] == [
        (i, what) for i in (0, 1, 2, 4, 5) for what in ("episode/best", "episode/worst")
    ]  # the powers of two, and the last
    assert "turn left at the well" in texts[-1][2] + texts[-2][2]
    ((name, columns, rows),) = calls(run, "table")
    assert name == "tips"
    (tip,) = [dict(zip(columns, row, strict=True)) for row in rows]
    assert (tip["task"], tip["tip"], tip["shown"], tip["earned"]) == ("maze/1", "turn left at the well", 5, 1.0)
    assert calls(run, "close") == [[True]]


def test_a_run_that_was_killed_before_its_end_is_ended_once(tmp_path: Path) -> None:
    run = make_run(tmp_path / "maze", iterations=6)
    TrackerReporter("odd_trackers:Recorder", run)
    TrackerReporter("odd_trackers:Recorder", run).catch_up()
    assert [known for known, *_ in calls(run, "made")] == ["", "known"], "the first start reported nothing, but its id"
    shown = len(calls(run, "text"))
    for _ in range(2):
        show(run)
    assert [(i, what) for i, what, _ in calls(run, "text")[shown:]] == [(5, "episode/best"), (5, "episode/worst")]
    assert LoggedRun(About(run, "maze", {}, "known", 6))._last == 5, "where its tables belong"


@settings(deadline=None, max_examples=10)
@given(starts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), min_size=1, max_size=5))
def test_each_iteration_is_reported_once(
    tmp_path_factory: pytest.TempPathFactory, starts: list[tuple[int, int, bool]]
) -> None:
    """Each start goes back by some iterations, plays some, and ends well or is killed before it shows anything."""
    path, done = tmp_path_factory.mktemp("run"), 0
    (path / "config.toml").write_text("")
    files = path / "trajectories.jsonl", path / "metrics.jsonl"
    for back, forth, shows in [*starts, (0, 1, True)]:
        done = max(0, done - back)
        for file in files:
            split_after(file, done)
        for iteration in range(done, done + forth):
            played = trajectory_to_json(episode(task=f"maze/{iteration}"))
            for file, record in zip(files, (played, {"value": float(iteration)}), strict=True):
                append_jsonl(file, [{"iteration": iteration, **record}])
        done += forth
        if shows:
            show(path)
            show(path, "Forgetful")
    shown = calls(path, "curves")
    assert [iteration for iteration, _ in shown] == [*range(len(shown))]
    assert all(values["value"] == iteration for iteration, values in shown)
    assert all(f"maze/{iteration} " in text for iteration, _, text in calls(path, "text"))
    last = [call["value"] for _, call in calls(path, "curves", "Forgetful")][-done:]
    assert last == [float(iteration) for iteration in range(done)]  # what keeps nothing is shown all, each time


def test_what_looks_like_a_secret_is_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sesame-0123456789")
    monkeypatch.setenv("SHORT_TOKEN", "a")
    assert redact_secrets("it said sesame-0123456789, and a") == "it said [SOME_API_KEY], and a"
    assert redact_secrets("half \ud800 a pair") == "half ? a pair"
    assert redact_secrets("http://me:pass@host/a b@c") == f"http://{REDACTED}@host/a b@c"
    options = {"url": "tcp://x:y@z:1", "token": "abc", "max_tokens": 7, "api_key_env": "SOME_API_KEY",
               "deep": [{"a.key": 1}]}  # fmt: skip
    assert redact_secrets(options) == {
        "url": f"tcp://{REDACTED}@z:1", "token": REDACTED, "max_tokens": 7, "api_key_env": "SOME_API_KEY",
        "deep": [{"a.key": REDACTED}],
    }  # fmt: skip
    run = make_run(
        tmp_path, env={"name": "my:Env", "options": {"token": "abcabcabc"}}, words=("sesame-0123456789",) * 5
    )
    show(run)
    assert not any(secret in (run / "Recorder.jsonl").read_text() for secret in ("abcabcabc", "sesame"))
