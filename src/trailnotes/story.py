"""What the demo shows at its end: the table, the picture, one episode before and after, the tips that mattered."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.jsonl import read_jsonl
from trailnotes.plots import LABELS, Curve, learning_curves
from trailnotes.records import trajectory_from_json
from trailnotes.render import render_episode
from trailnotes.stats import Interval

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trailnotes.config import Config
    from trailnotes.evaluation import PanelResult


@dataclass(frozen=True, slots=True)
class Job:
    """One training run of the demo."""

    method: str
    seed: int
    directory: Path

    @property
    def name(self) -> str:
        """Method and seed: also the name of the run's directory."""
        return f"{self.method}-{self.seed}"


def print_table(rows: Sequence[PanelResult], jobs: Sequence[Job]) -> None:
    """The table of the demo with what each method cost, on the console."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="unseen games, success")
    for name in ("", "mean", "95 % interval", "env steps", "tokens generated", "tokens trained", "seconds"):
        table.add_column(name, justify="left" if not name else "right")
    for row in rows:
        own = [last_of(job) for job in jobs if job.method == row.algorithm]
        costs = [sum(line[key] for line in own) / len(own) for key in COSTS] if own else []
        table.add_row(
            f"{LABELS[row.algorithm]}, {'with' if row.memory else 'without'} notes",
            f"{row.mean:.3f}",
            f"[{row.ci_low:.3f}, {row.ci_high:.3f}]",
            f"{row.env_steps:,}",
            *(f"{cost:,.0f}" for cost in costs),
        )
    console = Console(file=sys.stdout, width=max(100, Console().width))
    console.print(table)
    console.print(f"Costs are means of a training run. Intervals: {rows[0].interval}.", highlight=False)


COSTS = ("tokens_generated", "tokens_trained", "seconds")


def last_of(job: Job) -> dict[str, Any]:
    """The newest line of a run's metrics."""
    return list(read_jsonl(job.directory / "metrics.jsonl"))[-1]


def draw(config: Config, jobs: Sequence[Job], rows: Sequence[PanelResult], path: Path) -> None:
    """Both learning curves, and the bars of the unseen games."""
    curves: dict[str, list[Curve]] = {}
    for job in jobs:
        curves.setdefault(job.method, []).append(curve_of(job))
    bars = {
        f"{LABELS[row.algorithm]}\n{'with notes' if row.memory else ''}": Interval(row.mean, row.ci_low, row.ci_high)
        for row in rows
    }
    title = "held-out variations" if config.train.eval_every else "training games, members without notes"
    learning_curves(curves, path, title=title, bars=bars, start=rows[0].mean)


def curve_of(job: Job) -> Curve:
    """Success without notes against environment steps: on validation games where there are any, else in training."""
    lines = list(read_jsonl(job.directory / "metrics.jsonl"))
    key = "validation/success" if any("validation/success" in line for line in lines) else "rollout/success/plain"
    return [(float(line["env_steps"]), float(line[key])) for line in lines if key in line]


def before_and_after(jobs: Sequence[Job], out: Path) -> str:
    """An unseen game as the start model and as the trained agent play it, and between them how it came to know.

    The game is the first of the panel that EMPO2 wins without notes and the start model loses; what lies between is
    taken from the training of the same family: an episode that read, the note it left, one that used it.
    """
    job = next(job for job in jobs if job.method == "empo2")
    before = {r["task"]["id"]: r for r in read_jsonl(out / "panels" / f"start-{job.seed}" / "episodes.jsonl")}
    after = {r["task"]["id"]: r for r in read_jsonl(out / "panels" / job.name / "episodes.jsonl")}
    told = [name for name, record in after.items() if record["success"] and not before[name]["success"]]
    if not told:
        return "No unseen game was won without notes that the start model had lost.\n"
    game = told[0]
    parts = [_headed("Before: the start model meets an unseen game", before[game])]
    for title, record in _training_episodes(job, game.rpartition("/")[0]):
        parts.append(_headed(title, record))
    parts.append(_headed("After: the trained agent meets the unseen game, without any notes", after[game]))
    return "\n".join(parts)


def _training_episodes(job: Job, family: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The first success with notes in this family's training games."""
    for record in read_jsonl(job.directory / "trajectories.jsonl"):
        if record["mode"] != "plain" and record["success"] and record["task"]["id"].startswith(family):
            yield f"In training, iteration {record['iteration']}: a member acts on notes that earlier ones left", record
            return


def _headed(title: str, record: dict[str, Any]) -> str:
    return f"{title}\n{'-' * len(title)}\n{render_episode(trajectory_from_json(record))}"
