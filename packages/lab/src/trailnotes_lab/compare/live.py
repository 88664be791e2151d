"""What a person sees while a comparison runs: a line for each run on a terminal, news of them everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Self

from trailnotes.reporting.terminal import open_console, printable
from trailnotes.runs.console import clock, forgiving
from trailnotes.training.rehearsal import is_recording
from trailnotes_lab.compare.cost import EXAMINING, last_line
from trailnotes_lab.compare.expand import PlannedRun
from trailnotes_lab.compare.processes import LOG, last_words
from trailnotes_lab.compare.running import Stage

if TYPE_CHECKING:
    from rich.live import Live

DOING = {"train": "training", EXAMINING: "unseen games", "adapt": "adapting"}
_LAST = ("failed", "done", "waiting")  # on the screen; what does not fit is at the end
_BAR = 20  # characters


class Board:
    """All runs of a comparison, fed with the stages that run. A context manager.

    Off a terminal it prints a line when a run begins a stage or ends, and every `interval` seconds how far each is.
    """

    def __init__(
        self,
        runs: Sequence[PlannedRun],
        left: Sequence[Stage],
        *,
        stream: IO[str] | None = None,
        interval: float = 60.0,
    ) -> None:
        self.stream = forgiving(sys.stderr if stream is None else stream)
        self.interval = interval
        left_over = {stage.run.name for stage in left}
        self._runs = {run.name: run for run in runs}
        self._states = {name: "waiting" if name in left_over else "done" for name in self._runs}
        self._pending = {name: [stage for stage in left if stage.run.name == name] for name in self._runs}
        self._begun: dict[str, dict[str, Stage]] = {name: {} for name in self._runs}  # by their own names
        self._shown: dict[str, Stage] = {}  # of each run under way, or that has failed
        self._began = dict.fromkeys(self._runs, 0.0)
        self._printed = self._entered = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.stream.isatty():
            from rich.live import Live

            self._live = Live(console=open_console(self.stream), refresh_per_second=2, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()

    def update(self, running: Sequence[Stage]) -> None:
        """Show what has become of each run, now that these stages are under way."""
        now = {stage.run.name: stage for stage in reversed(running)}
        for stage in running:
            self._begun[stage.run.name][stage.name] = stage
        self._shown |= now
        for name, before in self._states.items():
            state = _doing(now[name]) if name in now else self._left(name, before)
            if state != before:
                self._states[name] = state
                self._began[name] = self._began[name] or time.monotonic()
                if state != "waiting":
                    self._tell(f"{name}  {state}" + (f"  ({clock(self._seconds(name))})" if state == "done" else ""))
        if self._live is not None:
            self._live.update(self._table())
        elif time.monotonic() - self._printed >= self.interval:
            self._printed = time.monotonic()
            self._tell("   ".join(" ".join(self._line(name)[:3]).strip() for name in now))

    def _left(self, name: str, before: str) -> str:
        """The state of a run of which no stage is under way."""
        if before in _LAST:
            return before
        if unfinished := [stage for stage in self._begun[name].values() if not stage.done]:
            self._shown[name] = unfinished[0]
            return "failed"
        return "done" if len(self._begun[name]) == len(self._pending[name]) else "waiting"

    def _tell(self, line: str) -> None:
        if self._live is None and line:
            print(printable(line), file=self.stream, flush=True)

    def _seconds(self, name: str) -> float:
        return time.monotonic() - self._began[name] if self._began[name] else 0.0

    def _line(self, name: str) -> tuple[str, str, str, str]:
        """Name, state, share of what is under way, and what there is to say about it."""
        state, run = self._states[name], self._runs[name]
        if state == "training":
            if is_recording(run.directory):
                return name, "recording", "", "the start model plays what is rehearsed"
            line = last_line(run.directory)
            return name, state, f"{share_of(run, line):.0%}", news_of(line)
        if state in ("done", "waiting"):
            return name, state, "", ""
        return name, state, "", last_words(self._shown[name].job.directory / LOG)

    def _table(self) -> Any:
        from rich.table import Table

        order = sorted(dict.fromkeys(self._states.values()), key=_rank)
        counts = {state: sum(s == state for s in self._states.values()) for state in order}
        said = ", ".join(f"{count} {state}" for state, count in counts.items())
        table = Table.grid(padding=(0, 2))
        for _ in range(4):
            table.add_column(no_wrap=True, overflow="ellipsis")
        for name in sorted(self._states, key=lambda name: _rank(self._states[name])):
            shown, state, share, facts = self._line(name)
            filled = round(_BAR * float(share[:-1]) / 100) if share else _BAR * (state == "done")
            style = {"failed": "red", "done": "green", "waiting": "dim"}.get(state, "bold")
            bar = "━" * filled + " " * (_BAR - filled) + f" {share}"
            table.add_row(f"[{style}]{shown}[/]", state, bar, _escaped(facts))
        whole = Table.grid()
        whole.add_row(f"{said}   {clock(time.monotonic() - self._entered)}")
        whole.add_row(table)
        return whole


def _doing(stage: Stage) -> str:
    return f"panel {stage.panel.name}" if stage.panel else DOING[stage.name]


def _rank(state: str) -> int:
    """What is under way is first, from the training on; panels go by names of their own."""
    order = (*DOING.values(), "panel", *_LAST)
    return order.index(state if state in order else "panel")


def share_of(run: PlannedRun, line: Mapping[str, Any]) -> float:
    """How far a training run is, by the last line of its metrics."""
    return min(1.0, run.config.train.share({**line, "iteration": line["iteration"] + 1})) if line else 0.0


def news_of(line: Mapping[str, Any]) -> str:
    """``12,800 steps  success 0.25``."""
    names = ("validation/success", "rollout/success/plain", "rollout/success")
    success = next((line[name] for name in names if name in line), None)
    said = [f"{line['env_steps']:,} steps"] if "env_steps" in line else []
    return "  ".join([*said, *([f"success {success:.2f}"] if success is not None else [])])


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
