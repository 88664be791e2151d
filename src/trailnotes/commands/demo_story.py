"""What the demo shows at its end: the table, the picture, one episode before and after, the note that mattered."""

from __future__ import annotations

import sys
import textwrap
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trailnotes.reporting.intervals import Interval
from trailnotes.reporting.plots import LABELS, Curve, learning_curves
from trailnotes.storage.files import read_jsonl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from trailnotes.config.schema import Config
    from trailnotes.runs.panels import PanelResult

Record = dict[str, Any]  # an episode as JSON (records.py)
WIDTH = 100
SEEN, DONE = 62, 30  # columns of an observation and of an action


class Job(Protocol):
    """A training run as the demo knows it."""

    @property
    def method(self) -> str:
        """Name of the algorithm."""
        ...

    @property
    def seed(self) -> int:
        """Seed of the run."""
        ...

    @property
    def name(self) -> str:
        """Method and seed."""
        ...

    @property
    def directory(self) -> Path:
        """The run directory."""
        ...


def last_line(run_dir: Path) -> Record:
    """The newest line of a run's metrics, {} where there is none."""
    newest = deque(read_jsonl(run_dir / "metrics.jsonl"), maxlen=1)
    return newest[0] if newest else {}


# -- the table


def print_table(rows: Sequence[PanelResult]) -> None:
    """The table of the demo with what each method cost, on the console."""
    from rich.console import Console
    from rich.table import Table

    first = rows[0]
    table = Table(title=f"{first.metric} on {first.num_tasks} unseen games ({first.panel})")
    table.add_column("", no_wrap=True)
    for name in ("mean", "95 % interval", "env steps", "tokens\ngenerated", "tokens\ntrained", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        costs = (row.env_steps, row.tokens_generated, row.tokens_trained, row.seconds)
        table.add_row(
            f"{LABELS.get(row.algorithm, row.algorithm)}, {'with' if row.memory else 'without'} notes",
            f"{row.mean:.3f}",
            f"[{row.ci_low:.3f}, {row.ci_high:.3f}]",
            *(f"{cost:,.0f}" if row.env_steps else "-" for cost in costs),
        )
    console = Console(file=sys.stdout, width=max(WIDTH, Console().width))
    console.print(table)
    seeds = f"{first.seeds} seed{'s' if first.seeds != 1 else ''}"
    console.print(f"Costs: mean of a training run, {seeds}.", highlight=False)
    console.print(f"Intervals: {first.interval}.", highlight=False)


# -- the picture


def draw(config: Config, jobs: Sequence[Job], rows: Sequence[PanelResult], path: Path) -> None:
    """Both learning curves, and the bars of the unseen games."""
    curves: dict[str, list[Curve]] = {}
    for job in jobs:
        curves.setdefault(job.method, []).append(curve_of(job.directory))
    bars = {
        f"{LABELS.get(row.algorithm, row.algorithm)}" + ("\nwith notes" if row.memory else ""): Interval(
            row.mean, row.ci_low, row.ci_high
        )
        for row in rows
    }
    games = "held-out variations" if config.train.eval_every else "training games"
    learning_curves(curves, path, title=f"{games}, acting without notes", bars=bars)


def curve_of(run_dir: Path) -> Curve:
    """Success without notes against environment steps: on validation games where there are any, else in training."""
    lines = list(read_jsonl(run_dir / "metrics.jsonl"))
    key = "validation/success" if any("validation/success" in line for line in lines) else "rollout/success/plain"
    return [(float(line["env_steps"]), float(line[key])) for line in lines if key in line]


# -- the story


class Note(NamedTuple):
    """A note that mattered: the episode that it was written after, its text, an episode that won with it."""

    author: Record | None  # None: not to be found in this run, e.g. an imported tip
    text: str
    reader: Record


def before_and_after(jobs: Sequence[Job], out: Path) -> str:
    """An unseen game as the start model and as the trained agent play it, and between them how it came to know.

    The game is one that EMPO2 wins without notes and the start model loses; what lies between is taken from the
    training of the same family: an episode that found out, the note it left, and one that won with that note.
    """
    untold = ""
    for job in jobs:
        if job.method != "empo2":
            continue
        before, after = (_panel(out / "panels" / name) for name in (f"start-{job.seed}", job.name))
        won = [name for name, record in after.items() if record["success"] and not before[name]["success"]]
        for game in {name.rpartition("/")[0]: name for name in reversed(won)}.values():  # the first of each family
            note = note_that_mattered(job.directory / "trajectories.jsonl", game.rpartition("/")[0])
            if note is not None:
                return story(before[game], note, after[game])
            untold = untold or story(before[game], None, after[game])
    return untold or "No unseen game was won without notes that the start model had lost.\n"


def note_that_mattered(trajectories: Path, family: str) -> Note | None:
    """The first episode in training games of `family` that won with a note, and where this note came from."""
    for record in _of_family(trajectories, family):
        tip = followed_tip(record) if record["success"] else None
        if tip is not None:
            authors = [
                other
                for other in _of_family(trajectories, family)
                if other["iteration"] == tip.get("step", 0)
                and other["task"]["id"] == tip["namespace"]
                and other["steps"]
                and other["steps"][-1]["action"] == tip.get("action", "")
            ]
            words = tip["text"].split()
            seen = [sum(word in other["final_observation"]["text"] for word in words) for other in authors]
            author = authors[seen.index(max(seen))] if authors else None  # the attempt that saw what the note says
            return Note(author, tip["text"], record)
    return None


def followed_tip(record: Record) -> Record | None:
    """The shown tip that says most of what was then done; None if none says any of it."""
    tips = [tip for step in record["steps"] for tip in step["tips"]]
    done = " ".join(step["action"] for step in record["steps"]).split()
    agreeing = {i: sum(word in done for word in tip["text"].split()) for i, tip in enumerate(tips)}
    best = max(agreeing, key=lambda i: agreeing[i], default=None)
    return tips[best] if best is not None and agreeing[best] else None


def story(before: Record, note: Note | None, after: Record) -> str:
    """The parts in order, in at most `WIDTH` columns."""
    parts = [episode_lines("BEFORE. The start model meets an unseen game.", before)]
    if note is not None:
        if note.author is not None:
            title = f"IN TRAINING, iteration {note.author['iteration']}. An attempt on another game of this family."
            parts.append([*episode_lines(title, note.author), *_wrapped("note it leaves: ", note.text)])
        title = f"IN TRAINING, iteration {note.reader['iteration']}. A later attempt reads that note."
        parts.append(episode_lines(title, note.reader, note.text))
    parts.append(episode_lines("AFTER. The trained agent meets the unseen game of above, without any notes.", after))
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def episode_lines(title: str, record: Mapping[str, Any], note: str = "") -> list[str]:
    """An episode in one line a step: what was seen, what was done."""
    steps = record["steps"]
    goal = steps[0]["observation"].get("instruction") if steps else None
    lines = [title, f"  {record['task']['id']}" + (f": {goal}" if goal else "")]
    if note:
        lines += _wrapped("note it is shown: ", note)
    lines += [f"  {_cut(s['observation']['text'], SEEN):<{SEEN}}  > {_cut(s['action'], DONE)}" for s in steps]
    ending = "won" if record["success"] else "not won"
    return [*lines, f"  {_cut(record['final_observation']['text'], WIDTH - 16)}  ({ending})"]


def _panel(directory: Path) -> dict[str, Record]:
    """Episodes by task."""
    return {record["task"]["id"]: record for record in read_jsonl(directory / "episodes.jsonl")}


def _of_family(trajectories: Path, family: str) -> Iterator[Record]:
    return (record for record in read_jsonl(trajectories) if record["task"]["id"].startswith(f"{family}/"))


def _cut(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" ...") or "(nothing)"


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(f'{label}"{text}"', WIDTH - 2, initial_indent="  ", subsequent_indent=" " * (2 + len(label)))
