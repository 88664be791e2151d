"""What a comparison will take: a small copy of each method is played, and extrapolated."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trailnotes.config.methods import resolve_method
from trailnotes.errors import RunError
from trailnotes.estimate.forecast import (
    DiskUsage,
    compute_scale,
    count_bytes,
    estimate_disk,
    estimate_iterations,
    shrink_config,
    split_usage,
)
from trailnotes.runs.console import format_duration, format_megabytes
from trailnotes.runs.signals import interrupt_on_signals
from trailnotes.training.rehearsal import REHEARSAL_DIR, read_recording_usage
from trailnotes_lab.compare.comparison import comparison_directory
from trailnotes_lab.compare.cost import EVAL_STAGE, load_costs, read_last_metrics
from trailnotes_lab.compare.expand import PlannedRun, expand_runs
from trailnotes_lab.compare.running import compile_games, list_unfinished_stages, run_stages
from trailnotes_lab.compare.spec import load_spec


@dataclass(frozen=True, slots=True)
class ComparisonEstimate:
    """What a comparison will take, and what of it cannot be run."""

    text: str  # a line for each method, and one for the whole: what is left of it
    missing: Mapping[str, str] = field(default_factory=dict)  # method -> why it cannot be run

    def require_all_runnable(self) -> None:
        """Have a command fail where a method cannot be run, as the comparison itself would.

        Raises:
            RunError: names each of them and why.
        """
        if self.missing:
            whys = "; ".join(f"{method}: {why}" for method, why in self.missing.items())
            raise RunError(f"{len(self.missing)} method{'s' * (len(self.missing) > 1)} cannot be run; {whys}")


def estimate_comparison(path: Path, *, out: Path | None = None, at_once: int | None = None) -> ComparisonEstimate:
    """Play a small copy of each method in a temporary directory, and extrapolate (see `runs.forecast`).

    Raises:
        ConfigError: a comparison that cannot work.
    """
    plan = load_spec(path)
    runs = expand_runs(plan, path, comparison_directory(plan, out))
    jobs = at_once or plan.compare.jobs
    left = {stage.run.name for stage in list_unfinished_stages(runs) if stage.name.split()[0] != EVAL_STAGE}
    seconds: dict[str, float] = {}
    taken: dict[str, DiskUsage] = {}
    lines = []
    first = [run for run in runs if run.seed == plan.compare.seeds[0]]
    with tempfile.TemporaryDirectory(prefix="trailnotes-") as name:
        copies = [shrink_run(run, Path(name)) for run in first]
        compile_games(copies)
        with interrupt_on_signals():
            played = [stage for stage in list_unfinished_stages(copies) if stage.name != EVAL_STAGE]
            missing = run_stages(played, jobs, lambda _: None)
        for run, copy in zip(first, copies, strict=True):
            if copy.name in missing:
                lines.append(f"{run.method:<24} cannot be run: {missing[copy.name]}")
                continue
            seconds[run.method] = estimate_seconds(run, copy)
            taken[run.method] = estimate_panel_disk(run, copy)
            waiting = sum(other.method == run.method and other.name in left for other in runs)
            lines.append(f"{run.method:<24} about {format_duration(seconds[run.method])} a run, {waiting} left to run")
    refused = {run.method: missing[run.name] for run in first if run.name in missing}
    if seconds:
        total = sum(seconds.get(run.method, 0.0) for run in runs if run.name in left) / jobs
        which = "all others" if refused else "all"
        lines.append(f"{which:<24} about {format_duration(total)} with {jobs} side by side")
        coming = [run for run in runs if run.name in left and run.method in taken]
        sizes = [(taken[run.method], count_bytes(run.directory)) for run in coming]
        lines.append(format_disk_line(estimate_peak_disk(sizes, jobs), comparison_directory(plan, out)))
    return ComparisonEstimate("\n".join([*lines, ""]), refused)


def shrink_run(run: PlannedRun, out: Path) -> PlannedRun:
    """The run made small, in a comparison directory of its own."""
    config = shrink_config(run.config)
    if run.after and not run.uses_prior_model:
        section, key = resolve_method(config.algorithm.name).data.split(".")
        own = getattr(config, section).model_copy(update={key: (str(out / "runs" / run.after),)})
        config = config.model_copy(update={section: own})
    return replace(run, directory=out / "runs" / run.name, config=config, panels=())


def estimate_seconds(run: PlannedRun, copy: PlannedRun) -> float:
    """Seconds of a whole run, from those of its small copy: what it played grows, what it loaded does not."""
    cost = load_costs(copy.directory)
    playing = float(read_last_metrics(copy.directory)["seconds"])
    loading = max(0.0, cost["seconds"] - playing)
    if not run.trains:
        return loading + playing * compute_scale(run.config, copy.config)
    first, before = extrapolate_first_iteration(run, copy)
    trained = float(first["seconds"]) * estimate_iterations(run.config, first, before)
    return 2 * loading + before.get("seconds", 0.0) + trained  # its model is loaded once more, to be examined


def extrapolate_first_iteration(run: PlannedRun, copy: PlannedRun) -> tuple[dict[str, Any], dict[str, float]]:
    """`split_usage` of a run that trains."""
    recorded = read_recording_usage(copy.directory / REHEARSAL_DIR)
    return split_usage(run.config, copy.config, read_last_metrics(copy.directory), recorded)


def estimate_panel_disk(run: PlannedRun, copy: PlannedRun) -> DiskUsage:
    """What a whole run will take, from what its small copy took."""
    if not run.trains:
        size = count_bytes(copy.directory) * compute_scale(run.config, copy.config)
        return DiskUsage(size, size)
    first, before = extrapolate_first_iteration(run, copy)
    return estimate_disk(run.config, copy.directory, estimate_iterations(run.config, first, before))


def estimate_peak_disk(runs: Sequence[tuple[DiskUsage, float]], jobs: int) -> float:
    """Bytes that runs will take beside those that each has already, `jobs` of them under way when it is most."""
    kept = sum(max(0.0, disk.kept - there) for disk, there in runs)
    return kept + sum(sorted((disk.most - disk.kept for disk, _ in runs), reverse=True)[:jobs])


def format_disk_line(size: float, place: Path) -> str:
    """What the disk must hold beside what it has, and what to do where it cannot."""
    there = next(folder for folder in (place.absolute(), *place.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    told = f"{'disk':<24} about {format_megabytes(size)} MB ({format_megabytes(free)} MB are free there)"
    small = "\nthe disk is too small: lower train.keep_last in [settings], or choose another --out"
    return told + (small if size > free else "")
