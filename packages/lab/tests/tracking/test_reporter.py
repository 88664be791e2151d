from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odd_trackers import calls
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.errors import ConfigError
from trailnotes.memory import open_memory
from trailnotes.runs.directory import RunDir
from trailnotes.storage.files import append_jsonl, split_after
from trailnotes.storage.records import trajectory_to_json
from trailnotes_lab.tracking.base import REDACTED, Table, redact_secrets, render_plain_text, render_table_markdown
from trailnotes_lab.tracking.reporter import TrackerReporter
from viewed import episode, make_run, tip


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


def test_the_best_and_the_worst_episode_are_shown_and_no_failed_one(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, Config()) as run:
        run.append_trajectories(0, [episode(won=False), episode(), episode("off_policy", won=False)])
        run.append_trajectories(1, [episode()])
        run.append_trajectories(2, [])
        for iteration in range(3):
            run.append_metrics({"iteration": iteration})
    append_jsonl(run.trajectories_path, [{"iteration": 3, "outcome": "error"}])
    append_jsonl(run.metrics_path, [{"iteration": 3}])
    show(tmp_path)
    found = [(i, what, "== success" in text) for i, what, text in calls(tmp_path, "text")]
    assert found == [(0, "episode/best", True), (0, "episode/worst", False), (1, "episode/best", True)]


def test_the_figures_of_an_adaptation_are_a_table(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "table.json").write_text('{"rows": [{"figure": "trial 0", "mean": 0.5, "ci_low": null}]}')
    show(run)
    assert calls(run, "table")[0] == ["table", ["figure", "mean", "ci_low"], [["trial 0", 0.5, None]]]


@settings(deadline=None, max_examples=10)
@given(starts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), min_size=1, max_size=5))
def test_each_iteration_is_shown_once_however_often_a_run_is_resumed(
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


def test_the_newest_tips_are_shown_however_often_they_were_read_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    with open_memory(run / "memory.db", Config(memory={"capacity": 2}).memory) as memory:
        memory.add([tip(text, namespace="maze/2") for text in ("run", "hide", "seek")])
        for _ in range(5):
            memory.report([episode("off_policy", tuple(memory.search("maze/2", "hide", 3)))])
    monkeypatch.setattr("trailnotes_lab.tracking.reporter.MAX_TIPS", 3)
    show(run)
    ((_, columns, rows),) = calls(run, "table")
    tips = [dict(zip(columns, row, strict=True)) for row in rows]
    assert [(each["tip"], each["retired"]) for each in tips] == [("seek", ""), ("hide", ""), ("run", "oldest")]


def test_what_looks_like_a_secret_is_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sesame-0123456789")
    monkeypatch.setenv("SHORT_TOKEN", "a")
    assert redact_secrets("it said sesame-0123456789, and a") == f"it said {REDACTED}, and a"
    assert redact_secrets("half \ud800 a pair") == "half ? a pair"
    assert redact_secrets("http://me:pass@host/a b@c") == f"http://{REDACTED}@host/a b@c"
    options = {
        "url": "tcp://x:y@z:1",
        "token": "abc",
        "max_tokens": 7,
        "api_key_env": "SOME_API_KEY",
        "deep": [{"a.key": 1}],
    }
    assert redact_secrets(options) == {
        "url": f"tcp://{REDACTED}@z:1", "token": REDACTED, "max_tokens": 7, "api_key_env": "SOME_API_KEY",
        "deep": [{"a.key": REDACTED}],
    }  # fmt: skip
    run = make_run(
        tmp_path, env={"name": "my:Env", "options": {"token": "abcabcabc"}}, words=("sesame-0123456789",) * 5
    )
    show(run)
    assert not any(secret in (run / "Recorder.jsonl").read_text() for secret in ("abcabcabc", "sesame"))


@settings(deadline=None, max_examples=30)
@given(st.text("a |`*<\\\n\r\x0b\x85\u2028", max_size=20))
def test_no_text_gets_out_of_its_block(text: str) -> None:
    assert all(line.startswith("    ") for line in render_plain_text(text).splitlines())
    assert [line[4:] for line in render_plain_text(text).splitlines()] == text.splitlines()
    lines = render_table_markdown(Table(["a", "b"], [[text, 1.0], [text, None]])).splitlines()
    assert len(lines) == 4
    assert all(line.count("|") == 3 for line in lines)


@pytest.mark.parametrize(("value", "said"), [('["wandbb"]', "'wandbb' is no tracker: choose of tensorboard, wandb"),
                                             ('["mlflow", "mlflow"]', "name each once")])  # fmt: skip
def test_trackers_that_there_are_not_are_refused(value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(None, ["--run.trackers", value])
