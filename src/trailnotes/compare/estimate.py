"""What a comparison will take: a small part of each method is played, and extrapolated."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trailnotes.compare.comparison import place_of
from trailnotes.compare.cost import cost_of, last_line
from trailnotes.compare.plan import PlannedRun, load_plan, runs_of
from trailnotes.compare.processes import compile_games, ended_by_signals
from trailnotes.compare.running import go_through, left_of
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import panel, tasks_of
from trailnotes.runs.console import clock

GAMES = 4  # of the panel that are played for it
TRIALS = ("reflexion", "empo2-tips")  # methods that play the panel eval.trials + 1 times


@dataclass(frozen=True, slots=True)
class Share:
    """How much of a run its small copy is, in units that its time grows with."""

    whole: float
    done: float


def estimate(path: Path, *, out: Path | None = None, at_once: int | None = None) -> str:
    """Play one iteration, or a few games, of each method in a temporary directory, and extrapolate.

    Rough: first iterations also fill caches, episodes change in length as the policy does, and games that are solved
    are not played again. What fitting a critic takes grows with its data and is not extrapolated.

    Returns:
        A line for each method, and one for the whole: what is left of it.

    Raises:
        ConfigError: a comparison that cannot work.
    """
    plan = load_plan(path)
    runs = runs_of(plan, path, place_of(plan, out))
    jobs = at_once or plan.compare.jobs
    left = {stage.run.name for stage in left_of(runs)}
    seconds: dict[str, float] = {}
    lines = []
    first = [run for run in runs if run.seed == plan.compare.seeds[0]]
    with tempfile.TemporaryDirectory(prefix="trailnotes-") as name:
        copies = [small_copy(run, Path(name)) for run in first]
        compile_games([run.config for run in copies])
        with ended_by_signals():
            missing = go_through(left_of(copies), jobs, lambda _: None)
        for run, copy in zip(first, copies, strict=True):
            if why := missing.get(copy.name):
                lines.append(f"{run.method:<24} cannot be run: {why}")
                continue
            seconds[run.method] = time_of(run.config, copy)
            waiting = sum(other.method == run.method and other.name in left for other in runs)
            lines.append(f"{run.method:<24} about {clock(seconds[run.method])} a run, {waiting} left to run")
    total = sum(seconds.get(run.method, 0.0) for run in runs if run.name in left) / jobs
    return "\n".join([*lines, f"{'all':<24} about {clock(total)} with {jobs} side by side", ""])


def small_copy(run: PlannedRun, out: Path) -> PlannedRun:
    """The run with one iteration, one trial and a few games, in a comparison directory of its own."""
    config = run.config
    train = {"iterations": 1, "save_every": 1, "eval_every": 0}
    games = min(GAMES, config.eval.num_tasks) or GAMES
    data = {"data": (str(out / "runs" / run.after),)} if run.after and not run.follows else {}
    changes: dict[str, dict[str, Any]] = {
        "train": train,
        "eval": {"num_tasks": games, "trials": 1},
        "rememberer": {"epochs": min(1, config.rememberer.epochs)},
        "retrospex": {"epochs": 1, **data},
    }
    sections = {name: getattr(config, name).model_copy(update=values) for name, values in changes.items()}
    return replace(run, directory=out / "runs" / run.name, config=config.model_copy(update=sections))


def time_of(config: Config, copy: PlannedRun) -> float:
    """Seconds of a whole run, from those of its small copy: what it played grows, what it loaded does not."""
    line, cost = last_line(copy.directory), cost_of(copy.directory)
    playing = float(line["seconds"])
    share = _iterations(config, line) if copy.trains else _episodes(config, copy.config)
    loading = max(0.0, cost["seconds"] - playing)
    return loading + playing * share.whole / max(share.done, 1e-9) + (loading if copy.trains else 0.0)


def _iterations(config: Config, line: Mapping[str, Any]) -> Share:
    """Of a training run: as often as one iteration goes into the nearest of its limits."""
    return Share(math.ceil(1 / config.train.share({**line, "iteration": 1})), 1)


def _episodes(config: Config, small: Config) -> Share:
    """Of a method without training: the episodes that it plays at most."""
    return Share(_num_episodes(config), _num_episodes(small))


def _num_episodes(config: Config) -> float:
    played = len(panel(tasks_of(config, config.eval.split), config.eval.num_tasks)) * config.eval.num_samples
    if config.algorithm.name in TRIALS:
        return played * (config.eval.trials + 1)
    if config.algorithm.name == "rememberer":
        return played + len(_training(config)) * config.rememberer.epochs * config.rememberer.group_size
    return played


def _training(config: Config) -> Sequence[Any]:
    return tasks_of(config, config.train.split)
