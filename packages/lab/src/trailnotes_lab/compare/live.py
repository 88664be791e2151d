"""Show the progress of a comparison: a live line for each run on a terminal, printed changes everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Self

from trailnotes.reporting.terminal import escape_unprintable, open_console
from trailnotes.runs.console import format_duration, ignore_write_errors
from trailnotes.training.rehearsal import is_recording
from trailnotes_lab.compare.cost import EVAL_STAGE, read_last_metrics
from trailnotes_lab.compare.expand import PlannedRun
from trailnotes_lab.compare.processes import LOG_FILE, read_last_line
from trailnotes_lab.compare.running import RunStage

if TYPE_CHECKING:
    from rich.live import Live

STAGE_STATES = {"train": "training", EVAL_STAGE: "unseen games", "adapt": "adapting"}
_IDLE_STATES = ("failed", "done", "waiting")  # they come last on the screen, which may cut them off
_BAR_WIDTH = 20  # characters
_FULL_WIDTH = 100  # columns of a terminal that has room for bars


class ProgressBoard:
    """Progress of all runs of a comparison, as a context manager that is fed with the stages under way.

    Off a terminal it prints a line when a run begins a stage or ends, and every `interval` seconds how far each is.
    """

    def __init__(self, runs: Sequence[PlannedRun], left: Sequence[RunStage], *, stream: IO[str] | None = None,
                 interval: float = 60.0) -> None:  # fmt: skip
        self.stream = ignore_write_errors(sys.stderr if stream is None else stream)
        self.interval = interval
        left_over = {stage.run.name for stage in left}
        self._runs = {run.name: run for run in runs}
        self._states = {name: "waiting" if name in left_over else "done" for name in self._runs}
        self._pending = {name: [stage for stage in left if stage.run.name == name] for name in self._runs}
        self._begun: dict[str, dict[str, RunStage]] = {name: {} for name in self._runs}  # by their own names
        self._shown: dict[str, RunStage] = {}  # of each run under way, or that has failed
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
            self._live.update(self._make_table(), refresh=True)
            self._live.stop()

    def update(self, running: Sequence[RunStage]) -> None:
        """Show the state of each run, now that these stages are under way."""
        now = {stage.run.name: stage for stage in reversed(running)}
        for stage in running:
            self._begun[stage.run.name][stage.name] = stage
        self._shown |= now
        for name, before in self._states.items():
            state = _get_stage_state(now[name]) if name in now else self._derive_idle_state(name, before)
            if state != before:
                self._states[name] = state
                self._began[name] = self._began[name] or time.monotonic()
                taken = f"  ({format_duration(time.monotonic() - self._began[name])})" if state == "done" else ""
                if state != "waiting":
                    self._print_line(f"{name}  {state}{taken}")
        if self._live is not None:
            self._live.update(self._make_table())
        elif time.monotonic() - self._printed >= self.interval:
            self._printed = time.monotonic()
            self._print_line("   ".join(" ".join(self._make_row(name)[:3]).strip() for name in now))

    def _derive_idle_state(self, name: str, before: str) -> str:
        if before in _IDLE_STATES:
            return before
        if unfinished := [stage for stage in self._begun[name].values() if not stage.is_done]:
            self._shown[name] = unfinished[0]
            return "failed"
        return "done" if len(self._begun[name]) == len(self._pending[name]) else "waiting"

    def _print_line(self, line: str) -> None:
        if self._live is None and line:
            print(escape_unprintable(line), file=self.stream, flush=True)

    def _make_row(self, name: str) -> tuple[str, str, str, str]:
        """Name, state, progress of the stage under way, and its newest figures or line of output."""
        state, run = self._states[name], self._runs[name]
        if state == "training":
            if is_recording(run.directory):
                return name, "recording", "", "the start model plays what is rehearsed"
            line = read_last_metrics(run.directory)
            progress = run.config.train.compute_progress({**line, "iteration": line["iteration"] + 1}) if line else 0.0
            return name, state, f"{min(1.0, progress):.0%}", _format_progress(line)
        if state in ("done", "waiting"):
            return name, state, "", ""
        return name, state, "", read_last_line(self._shown[name].job.directory / LOG_FILE)

    def _make_table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        assert self._live is not None
        bar_width = _BAR_WIDTH if self._live.console.width >= _FULL_WIDTH else 0
        order = sorted(dict.fromkeys(self._states.values()), key=_sort_key)
        counts = {state: sum(s == state for s in self._states.values()) for state in order}
        said = ", ".join(f"{count} {state}" for state, count in counts.items())
        table = Table.grid(padding=(0, 2))
        for is_whole in (True, False, True, False):  # a narrow terminal cuts states and figures, and no name or share
            table.add_column(no_wrap=is_whole)
        for name in sorted(self._states, key=lambda name: _sort_key(self._states[name])):
            shown, state, share, facts = self._make_row(name)
            filled = round(bar_width * float(share[:-1]) / 100) if share else bar_width * (state == "done")
            style = {"failed": "red", "done": "green", "waiting": "dim"}.get(state, "bold")
            bar = "━" * filled + " " * (bar_width - filled) + f" {share}"
            told = (Text(text, no_wrap=True, overflow="ellipsis") for text in (state, facts))
            table.add_row(Text(shown, style), next(told), bar, next(told))
        whole = Table.grid()
        whole.add_row(f"{said}   {format_duration(time.monotonic() - self._entered)}")
        whole.add_row(table)
        return whole


def _get_stage_state(stage: RunStage) -> str:
    return f"panel {stage.panel.name}" if stage.panel else STAGE_STATES[stage.name]


def _sort_key(state: str) -> int:
    """Stages under way come first, from the training on; panels go by names of their own."""
    order = (*STAGE_STATES.values(), "panel", *_IDLE_STATES)
    return order.index(state if state in order else "panel")


def _format_progress(line: Mapping[str, Any]) -> str:
    """``12,800 steps  success 0.25``."""
    names = ("validation/success", "rollout/success/plain", "rollout/success")
    success = next((line[name] for name in names if name in line), None)
    said = [f"{line['env_steps']:,} steps"] if "env_steps" in line else []
    return "  ".join([*said, *([f"success {success:.2f}"] if success is not None else [])])
