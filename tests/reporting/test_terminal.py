"""Output of commands: hostile text is escaped, progress is a bar or lines."""

from __future__ import annotations

import errno
import io
import json
import re
import time
from pathlib import Path

import pytest

from trailnotes.config.toml import load_config
from trailnotes.reporting import terminal
from trailnotes.reporting.terminal import PrintableStream, ProgressBar, escape_unprintable, open_console
from trailnotes.runs import progress as runs_progress
from trailnotes.runs.progress import TrainingProgress

HOSTILE = "\x1b[2J\x9b31m\u202eabc\u2066\r\x07\x7f\U000e0041\ud800"
SHOWN = r"\x1b[2J\u009b31m\u202eabc\u2066\r\x07\u007f\udb40\udc41\ud800"


def test_escape_unprintable() -> None:
    assert escape_unprintable(HOSTILE) == SHOWN
    assert escape_unprintable("caf\u00e9 \u958b\u9580 \U0001f6aa") == "caf\u00e9 \u958b\u9580 \U0001f6aa"
    assert escape_unprintable("a\nb") == r"a\nb"
    assert json.loads(escape_unprintable(json.dumps(HOSTILE, ensure_ascii=False))) == HOSTILE, "JSON stays JSON"


def test_printable_stream_and_console() -> None:
    plain, coloured = io.StringIO(), io.StringIO()
    coloured.isatty = lambda: True
    print(f"one\n{HOSTILE}", file=PrintableStream(plain))
    assert plain.getvalue() == f"one\n{SHOWN}\n"
    open_console(PrintableStream(coloured), 200).print(f"[bold]{HOSTILE}", highlight=False)
    text = coloured.getvalue()
    assert "\x1b[2J" not in text
    assert "\u202e" not in text


# -- progress


class Clock:
    """Stands in for `time` in the modules under test."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(terminal, "time", fake)
    monkeypatch.setattr(runs_progress, "time", fake)
    return fake


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_lines_off_a_terminal(fake_time: Clock) -> None:
    stream = io.StringIO()
    with ProgressBar(100, "warmstart", stream=stream, interval=10) as bar:
        for done in range(1, 41):
            fake_time.now += 1
            bar.update(done, {"loss": 0.5})
        for seconds, done in ((10, 1), (10, 11), (1, 12)):  # another phase
            fake_time.now += seconds
            bar.update(done)
    assert stream.getvalue().splitlines() == [
        "warmstart  1/100  loss 0.5",
        "warmstart  11/100  loss 0.5  1:29 left",
        "warmstart  21/100  loss 0.5  1:19 left",
        "warmstart  31/100  loss 0.5  1:09 left",
        "warmstart  1/100",
        "warmstart  11/100  1:29 left",
        "warmstart  12/100  1:28 left",
    ]


def test_a_terminal_gets_a_bar_with_the_facts() -> None:
    stream = Terminal()
    with ProgressBar(10, "train", stream=stream) as bar:
        bar.update(5, {"return": 0.25, "mode": "plain"}, "iteration 5/10")
        bar.note("a [bracket] stays")
    printed = stream.getvalue()
    for part in ("train", "50%", "iteration 5/10", "return 0.25", "mode plain", "a [bracket] stays"):
        assert part in printed


def test_a_run_that_passes_its_limit_of_steps_ends_at_100_percent(fake_time: Clock) -> None:
    config = load_config(None, ["--train.iterations", "1000", "--train.max_env_steps", "1500"])
    stream = Terminal()
    with TrainingProgress(config, Path("runs/a"), stream=stream) as progress:
        progress.update_metrics({"iteration": 2, "env_steps": 1734})
    assert "100%" in stream.getvalue()
    assert "1,500/1,500 steps" in stream.getvalue()


def test_heartbeat_names_the_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "HEARTBEAT", 0.02)
    stream = io.StringIO()
    with ProgressBar(1, "train", stream=stream) as bar, bar.activity("iteration 1: rollout", 4, "episodes") as activity:
        activity.count_step(tokens=100)
        activity.end_unit()
        while (printed := stream.getvalue()).count("\n") < 2:
            time.sleep(0.01)
    assert re.match(r"train  iteration 1: rollout  1/4 episodes  1 steps  \d+ tokens/s  0:\d\d left\n", printed)
    assert not bar.describe_activities()


def test_closed_terminal_is_ignored() -> None:
    """Every write to it fails with EIO; the run behind the bar finishes its iteration."""

    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "Input/output error")

        flush = close = lambda self: self.write("")

    for is_terminal in (True, False):
        stream = Gone()
        stream.isatty = lambda value=is_terminal: value
        with ProgressBar(2, "train", stream=stream) as bar:
            bar.update(1)
            bar.note("stopping after this iteration")
            bar.update(2)


def test_training_line(fake_time: Clock) -> None:
    line = {"return": 0.125, "success": 0.5, "return/plain": 0.1, "return/off_policy": 1}
    line = {f"rollout/{name}": value for name, value in line.items()}
    stream, config = io.StringIO(), load_config(None, ["--train.iterations", "4", "--algorithm.name", "grpo"])
    with TrainingProgress(config, Path("runs/a"), stream=stream) as progress:
        for iteration, steps, tokens in ((0, 300, 1000), (1, 600, 4000)):
            fake_time.now += 20
            progress.update_metrics({"iteration": iteration, "env_steps": steps, "tokens_generated": tokens, **line})
        progress.note("done")
    assert stream.getvalue().splitlines() == [
        "grpo a  iteration 1/4  return 0.125  success 0.5  mode plain+off_policy",
        "grpo a  iteration 2/4  return 0.125  success 0.5  steps/s 15  tokens/s 150  mode plain+off_policy  0:40 left",
        "done",
    ]
