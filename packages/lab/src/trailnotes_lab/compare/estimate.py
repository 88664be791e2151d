"""What a comparison will take: a small copy of each method is played, and extrapolated."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trailnotes.config.methods import method_of
from trailnotes.errors import RunError
from trailnotes.estimate.forecast import Disk, bytes_in, disk, first_and_before, iterations, small, times
from trailnotes.runs.console import clock, megabytes
from trailnotes.runs.signals import ended_by_signals
from trailnotes.training.rehearsal import PLACE, spent_recording
from trailnotes_lab.compare.comparison import place_of
from trailnotes_lab.compare.cost import EXAMINING, cost_of, last_line
from trailnotes_lab.compare.expand import PlannedRun, runs_of
from trailnotes_lab.compare.running import compile_games, go_through, left_of
from trailnotes_lab.compare.spec import load_plan


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a comparison will take, and what of it cannot be run."""

    text: str  # a line for each method, and one for the whole: what is left of it
    missing: Mapping[str, str] = field(default_factory=dict)  # method -> why it cannot be run

    def refuse_missing(self) -> None:
        """Have a command fail where a method cannot be run, as the comparison itself would.

        Raises:
            RunError: names each of them and why.
        """
        if self.missing:
            whys = "; ".join(f"{method}: {why}" for method, why in self.missing.items())
            raise RunError(f"{len(self.missing)} method{'s' * (len(self.missing) > 1)} cannot be run; {whys}")


def estimate(path: Path, *, out: Path | None = None, at_once: int | None = None) -> Estimate:
    """Play a small copy of each method in a temporary directory, and extrapolate (see `runs.forecast`).

    Raises:
        ConfigError: a comparison that cannot work.
    """
    plan = load_plan(path)
    runs = runs_of(plan, path, place_of(plan, out))
    jobs = at_once or plan.compare.jobs
    left = {stage.run.name for stage in left_of(runs) if stage.name.split()[0] != EXAMINING}
    seconds: dict[str, float] = {}
    taken: dict[str, Disk] = {}
    lines = []
    first = [run for run in runs if run.seed == plan.compare.seeds[0]]
    with tempfile.TemporaryDirectory(prefix="trailnotes-") as name:
        copies = [small_copy(run, Path(name)) for run in first]
        compile_games(copies)
        with ended_by_signals():
            played = [stage for stage in left_of(copies) if stage.name != EXAMINING]
            missing = go_through(played, jobs, lambda _: None)
        for run, copy in zip(first, copies, strict=True):
            if copy.name in missing:
                lines.append(f"{run.method:<24} cannot be run: {missing[copy.name]}")
                continue
            seconds[run.method] = time_of(run, copy)
            taken[run.method] = disk_of(run, copy)
            waiting = sum(other.method == run.method and other.name in left for other in runs)
            lines.append(f"{run.method:<24} about {clock(seconds[run.method])} a run, {waiting} left to run")
    refused = {run.method: missing[run.name] for run in first if run.name in missing}
    if seconds:
        total = sum(seconds.get(run.method, 0.0) for run in runs if run.name in left) / jobs
        which = "all others" if refused else "all"
        lines.append(f"{which:<24} about {clock(total)} with {jobs} side by side")
        coming = [run for run in runs if run.name in left and run.method in taken]
        sizes = [(taken[run.method], bytes_in(run.directory)) for run in coming]
        lines.append(disk_line(disk_for(sizes, jobs), place_of(plan, out)))
    return Estimate("\n".join([*lines, ""]), refused)


def small_copy(run: PlannedRun, out: Path) -> PlannedRun:
    """The run made small, in a comparison directory of its own."""
    config = small(run.config)
    if run.after and not run.follows:
        section, key = method_of(config.algorithm.name).data.split(".")
        own = getattr(config, section).model_copy(update={key: (str(out / "runs" / run.after),)})
        config = config.model_copy(update={section: own})
    return replace(run, directory=out / "runs" / run.name, config=config, panels=())


def time_of(run: PlannedRun, copy: PlannedRun) -> float:
    """Seconds of a whole run, from those of its small copy: what it played grows, what it loaded does not."""
    cost = cost_of(copy.directory)
    playing = float(last_line(copy.directory)["seconds"])
    loading = max(0.0, cost["seconds"] - playing)
    if not run.trains:
        return loading + playing * times(run.config, copy.config)
    first, before = grown(run, copy)
    trained = float(first["seconds"]) * iterations(run.config, first, before)
    return 2 * loading + before.get("seconds", 0.0) + trained  # its model is loaded once more, to be examined


def grown(run: PlannedRun, copy: PlannedRun) -> tuple[dict[str, Any], dict[str, float]]:
    """`first_and_before` of a run that trains."""
    recorded = spent_recording(copy.directory / PLACE)
    return first_and_before(run.config, copy.config, last_line(copy.directory), recorded)


def disk_of(run: PlannedRun, copy: PlannedRun) -> Disk:
    """What a whole run will take, from what its small copy took."""
    if not run.trains:
        size = bytes_in(copy.directory) * times(run.config, copy.config)
        return Disk(size, size)
    first, before = grown(run, copy)
    return disk(run.config, copy.directory, iterations(run.config, first, before))


def disk_for(runs: Sequence[tuple[Disk, float]], jobs: int) -> float:
    """Bytes that runs will take beside those that each has already, `jobs` of them under way when it is most."""
    kept = sum(max(0.0, disk.kept - there) for disk, there in runs)
    return kept + sum(sorted((disk.most - disk.kept for disk, _ in runs), reverse=True)[:jobs])


def disk_line(size: float, place: Path) -> str:
    """What the disk must hold beside what it has, and what to do where it cannot."""
    there = next(folder for folder in (place.absolute(), *place.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    told = f"{'disk':<24} about {megabytes(size)} MB ({megabytes(free)} MB are free there)"
    small = "\nthe disk is too small: lower train.keep_last in [settings], or choose another --out"
    return told + (small if size > free else "")
