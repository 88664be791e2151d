"""Progress of long commands: a bar on a terminal, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, Self, cast

from trailnotes.reporting.terminal import escape_unprintable_lines, open_console
from trailnotes.types import MODES

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from trailnotes.config.schema import Config


class ProgressBar:
    """Progress bar of a task with an end, as a context manager.

    Off a terminal it prints a line at the first update, then at most one every `interval` seconds, and one at the end.
    """

    def __init__(self, total: float, title: str, *, stream: IO[str] | None = None, interval: float = 10.0) -> None:
        self.total, self.title, self.interval = total, title, interval
        self.stream = ignore_write_errors(sys.stderr if stream is None else stream)
        self._first: tuple[float, float] | None = None  # (time, completed) at the first update, for the time left
        self._printed = float("-inf")
        self._pending = ""
        self._rich: RichProgress | None = None

    def __enter__(self) -> Self:
        self._entered = time.monotonic()
        if self.stream.isatty():
            self._rich = _build_rich_bar(self.stream)
            self._rich.start()
            self._rich.add_task(self.title, total=self.total, facts="", left="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._pending:
            self._print(self._pending)
        if self._rich is not None:
            self._rich.stop()

    def update(self, completed: float, facts: Mapping[str, float | str] | None = None, label: str = "") -> None:
        """Show the progress in the unit of `total`, with `facts`, and a `label` in place of the count."""
        now = time.monotonic()
        left = self._estimate_time_left(now, completed)
        text = "  ".join(f"{name} {_format_number(value)}" for name, value in (facts or {}).items())
        count = label or f"{completed:g}/{self.total:g}"
        if self._rich is not None:
            self._rich.update(self._rich.task_ids[0], completed=completed, facts=f"{count}  {text}", left=left)
            return
        line = "  ".join(part for part in (self.title, count, text, left) if part)
        if now - self._printed >= self.interval or completed >= self.total:
            self._print(line)
        else:
            self._pending = line

    def note(self, text: str) -> None:
        """Print one line above the bar."""
        if self._rich is not None:
            self._rich.console.print(text, markup=False, highlight=False)
        else:
            print(escape_unprintable_lines(text), file=self.stream, flush=True)

    def _print(self, line: str) -> None:
        self._printed, self._pending = time.monotonic(), ""
        print(escape_unprintable_lines(line), file=self.stream, flush=True)

    def _estimate_time_left(self, now: float, completed: float) -> str:
        if self._first is None:
            self._first = (now, completed)
            return ""
        done = completed - self._first[1]
        return f"{format_duration((self.total - completed) * (now - self._first[0]) / done)} left" if done > 0 else ""


class _HasPath(Protocol):
    path: Path


class TrainingProgress:
    """Progress bar of a training, fed with the lines of metrics.jsonl, as a context manager."""

    def __init__(self, config: Config, directory: _HasPath, *, stream: IO[str] | None = None) -> None:
        self._train, self._metric = config.train, config.eval.metric
        title = " ".join(dict.fromkeys((config.algorithm.name, directory.path.name)))  # not "grpo grpo"
        self._bar = ProgressBar(1.0, title, stream=stream)
        self._previous: tuple[float, Mapping[str, Any]] | None = None

    def __enter__(self) -> Self:
        self._bar.__enter__()
        self._previous = None
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def update(self, line: Mapping[str, Any]) -> None:
        """Show the metrics of one iteration."""
        iterations, steps = self._train.iterations, self._train.max_env_steps
        done = line["iteration"] + 1
        taken = line.get("env_steps", 0)
        share, count = done / iterations, f"iteration {done}/{iterations}"
        if steps and taken / steps > share:  # the steps end the run first
            share, count = taken / steps, f"iteration {done}, {taken:,}/{steps:,} steps"
        modes = [mode for mode in MODES if f"rollout/return/{mode}" in line]
        names = {"return": "rollout/return", "success": "rollout/success"}
        plain = f"rollout/{self._metric}/plain"
        if plain in line and modes != ["plain"]:  # the mean mixes those that read tips with those that do not
            names = {f"{self._metric} without tips": plain, self._metric: names[self._metric]} | names
        facts: dict[str, float | str] = {name: line[key] for name, key in names.items() if key in line}
        facts |= self._compute_rates(line) | ({"mode": "+".join(modes)} if modes else {})
        self._bar.update(min(share, 1.0), facts, count)

    def note(self, text: str) -> None:
        """Print one line above the bar."""
        self._bar.note(text)

    def _compute_rates(self, line: Mapping[str, Any]) -> dict[str, float]:
        now, previous = time.monotonic(), self._previous
        self._previous = (now, line)
        if previous is None or now <= previous[0]:
            return {}
        names = {"steps/s": "env_steps", "tokens/s": "tokens_generated"}
        return {
            shown: (line[name] - previous[1][name]) / (now - previous[0])
            for shown, name in names.items()
            if name in line and name in previous[1]
        }


class _BestEffortStream:
    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def ignore_write_errors(stream: IO[str]) -> IO[str]:
    """Wrap `stream` so that failed writes, as of a closed terminal, are lost in silence."""
    return cast("IO[str]", _BestEffortStream(stream))


def format_duration(seconds: float) -> str:
    """Format seconds as minutes or hours: ``75`` -> ``1:15``; ``3700`` -> ``1:01:40``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_megabytes(size: float, decimals: int = 0) -> str:
    """Format bytes in units of 2^20, without the unit: ``2097152`` -> ``2``."""
    return f"{size / (1 << 20):,.{decimals}f}"


def _format_number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _build_rich_bar(stream: IO[str]) -> RichProgress:
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    # The time left comes before the facts: what does not fit is cut at the end.
    cut = partial(Column, no_wrap=True, overflow="ellipsis")
    columns = (
        TextColumn("{task.description}", style="bold", markup=False, table_column=cut(max_width=20)),
        BarColumn(bar_width=12),
        TextColumn("{task.percentage:3.0f}%"),
        TextColumn("{task.fields[left]}", markup=False, table_column=cut()),
        TextColumn("{task.fields[facts]}", markup=False, table_column=cut(ratio=1)),
    )
    return Progress(*columns, console=open_console(stream), expand=True)
