"""Output of commands: progress, and untrusted text, in which characters that move the cursor are escaped."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.progress import Progress
    from rich.segment import Segment

CONSOLE_HEIGHT = 24  # whatever a terminal has: rich takes no width without a height from one that can do little


def escape_unprintable(text: str) -> str:
    """Escape everything unprintable of a line, as JSON does: controls, bidi marks, invisible characters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape_char(char) for char in text)


def escape_unprintable_lines(text: str) -> str:
    """Escape as `escape_unprintable` does, keeping line breaks."""
    return "\n".join(map(escape_unprintable, text.split("\n")))


def _escape_char(char: str) -> str:
    if char < " ":
        return ascii(char)[1:-1]
    return "\\u" + char.encode("utf-16-be", "surrogatepass").hex("-", 2).replace("-", "\\u")


class PrintableStream:
    """A stream that escapes unprintable text; all else is as the inner stream has it."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write escaped text; returns its original length, as streams do."""
        self.stream.write(escape_unprintable_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))


def open_console(stream: IO[str], width: int | None = None) -> Console:
    """Open a console of rich on `stream` that escapes texts, but not rich's own sequences."""
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(escape_unprintable_lines(segment.text), segment.style)

    height = None if width is None else CONSOLE_HEIGHT  # without it rich asks the terminal for both
    file = stream.stream if isinstance(stream, PrintableStream) else stream
    return PrintableConsole(file=file, width=width, height=height)


# -- progress


HEARTBEAT = 30.0  # seconds without a line after which one says what a command does


class Activity:
    """A part of a task that takes long, of `total` units (0: unknown), such as episodes with their steps."""

    def __init__(self, name: str, total: int, unit: str) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.done = self.steps = self.tokens = 0
        self._started = time.monotonic()

    def end_unit(self) -> None:
        self.done += 1

    def count_step(self, tokens: int) -> None:
        """Count a step within a unit: many units may be under way for long before the first ends."""
        self.steps, self.tokens = self.steps + 1, self.tokens + tokens

    def __str__(self) -> str:
        seconds, parts = time.monotonic() - self._started, [self.name]
        if self.total:
            parts.append(f"{self.done:,}/{self.total:,} {self.unit}")
        if self.steps:
            parts.append(f"{self.steps:,} steps")
        if self.tokens and seconds:
            parts.append(f"{self.tokens / seconds:.0f} tokens/s")
        if 0 < self.done <= self.total:
            return "  ".join([*parts, f"{format_duration(seconds / self.done * (self.total - self.done))} left"])
        return "  ".join([*parts, f"for {format_duration(seconds)}"])


def begin_activity(
    progress: ProgressBar | None, name: str, total: int = 0, unit: str = ""
) -> contextlib.AbstractContextManager[Activity]:
    """Begin an activity of `progress`, or one that nothing displays."""
    return progress.activity(name, total, unit) if progress else contextlib.nullcontext(Activity(name, total, unit))


class ProgressBar:
    """Progress bar of a task with an end, as a context manager.

    Off a terminal it prints a line at the first update, then at most one every `interval` seconds, and one at the end;
    and a line on the activities of the moment where none was printed for `HEARTBEAT` seconds.
    """

    def __init__(self, total: float, title: str, *, stream: IO[str] | None = None, interval: float = 10.0) -> None:
        self.total, self.title, self.interval = total, title, interval
        self._activities: list[Activity] = []
        self._noted, self._ended = time.monotonic(), threading.Event()
        self.stream = ignore_write_errors(sys.stderr if stream is None else stream)
        self._first: tuple[float, float] | None = None  # (time, completed) at the first update, for the time left
        self._completed = 0.0
        self._printed = float("-inf")
        self._pending = ""
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if self.stream.isatty():
            self._bar = _build_bar(self.stream)
            self._bar.start()
            self._bar.add_task(self.title, total=self.total, facts="", left="")
        else:
            threading.Thread(target=self._print_heartbeats, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._pending:
            self.note(self._pending)
        if self._bar is not None:
            self._bar.stop()

    def update(self, completed: float, facts: Mapping[str, float | str] | None = None, label: str = "") -> None:
        """Show the progress in the unit of `total`, with `facts`, and a `label` in place of the count."""
        now, left = time.monotonic(), ""
        if self._first is None or completed < self._completed:  # the phases of an adaptation each begin at 0
            self._first = now, completed
        (start, before), self._completed = self._first, completed
        if completed > before:
            left = f"{format_duration((self.total - completed) * (now - start) / (completed - before))} left"
        text = "  ".join(f"{name} {_format_number(value)}" for name, value in (facts or {}).items())
        count = label or f"{completed:g}/{self.total:g}"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=completed, facts=f"{count}  {text}", left=left)
            return
        self._pending = "  ".join(part for part in (self.title, count, text, left) if part)
        if now - self._printed >= self.interval or completed >= self.total:
            self.note(self._pending)
            self._printed, self._pending = now, ""

    @contextlib.contextmanager
    def activity(self, name: str, total: int = 0, unit: str = "") -> Iterator[Activity]:
        """Name what is done in the block, which steps the activity as it goes on."""
        self._activities.append(activity := Activity(name, total, unit))
        try:
            yield activity
        finally:
            self._activities.remove(activity)

    def describe_activities(self) -> str:
        return "; ".join(map(str, list(self._activities)))

    def _print_heartbeats(self) -> None:
        while not self._ended.wait(HEARTBEAT / 10):
            if self._activities and time.monotonic() - self._noted >= HEARTBEAT:
                self.note(f"{self.title}  {self.describe_activities()}")

    def note(self, text: str) -> None:
        self._noted = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(escape_unprintable_lines(text), file=self.stream, flush=True)


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


def format_megabytes(size: float) -> str:
    """Format bytes in units of 2^20, without the unit: ``2097152`` -> ``2``."""
    return f"{size / (1 << 20):,.0f}"


def _format_number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _build_bar(stream: IO[str]) -> Progress:
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
