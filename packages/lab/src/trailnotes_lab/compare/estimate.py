"""Estimate the time and disk space of a comparison: run a small copy of each method, and extrapolate."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trailnotes.config.methods import resolve_method
from trailnotes.errors import RunError
from trailnotes.estimate import forecast
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
    """Time and disk space of a comparison, and the methods that cannot be run."""

    text: str  # a line for each method, and one for the rest of the whole
    missing: Mapping[str, str] = field(default_factory=dict)  # method -> why it cannot be run

    def require_all_runnable(self) -> None:
        """Raise a `RunError` that names each method that cannot be run, and why."""
        if self.missing:
            whys = "; ".join(f"{method}: {why}" for method, why in self.missing.items())
            raise RunError(f"{len(self.missing)} method{'s' * (len(self.missing) > 1)} cannot be run; {whys}")


def estimate_comparison(path: Path, *, out: Path | None = None, at_once: int | None = None) -> ComparisonEstimate:
    """Run a small copy of each method in a temporary directory, and extrapolate (see `estimate.forecast`).

    Raises:
        ConfigError: a comparison that cannot work.
    """
    spec = load_spec(path)
    runs = expand_runs(spec, path, comparison_directory(spec, out))
    jobs = at_once or spec.compare.jobs
    left = {stage.run.name for stage in list_unfinished_stages(runs) if stage.name.split()[0] != EVAL_STAGE}
    seconds: dict[str, float] = {}
    taken: dict[str, forecast.DiskUsage] = {}
    lines = []
    first = [run for run in runs if run.seed == spec.compare.seeds[0]]
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
            seconds[run.method], taken[run.method] = _extrapolate(run, copy)
            waiting = sum(other.method == run.method and other.name in left for other in runs)
            lines.append(f"{run.method:<24} about {format_duration(seconds[run.method])} a run, {waiting} left to run")
    refused = {run.method: missing[run.name] for run in first if run.name in missing}
    if seconds:
        total = sum(seconds.get(run.method, 0.0) for run in runs if run.name in left) / jobs
        which = "all others" if refused else "all"
        lines.append(f"{which:<24} about {format_duration(total)} with {jobs} side by side")
        coming = [run for run in runs if run.name in left and run.method in taken]
        sizes = [(taken[run.method], forecast.count_bytes(run.directory)) for run in coming]
        lines.append(format_disk_line(estimate_peak_disk(sizes, jobs), comparison_directory(spec, out)))
    return ComparisonEstimate("\n".join([*lines, ""]), refused)


def shrink_run(run: PlannedRun, out: Path) -> PlannedRun:
    """Make a small copy of a run, in a comparison directory of its own."""
    config = forecast.shrink_config(run.config)
    if run.after and not run.uses_prior_model:
        section, key = resolve_method(config.algorithm.name).data.split(".")
        own = getattr(config, section).model_copy(update={key: (str(out / "runs" / run.after),)})
        config = config.model_copy(update={section: own})
    return replace(run, directory=out / "runs" / run.name, config=config, panels=())


def _extrapolate(run: PlannedRun, copy: PlannedRun) -> tuple[float, forecast.DiskUsage]:
    """Seconds and bytes of a whole run, from its small copy: playing time grows with the run, loading time does not."""
    last = read_last_metrics(copy.directory)
    loading = max(0.0, load_costs(copy.directory)["seconds"] - float(last["seconds"]))
    if not run.trains:
        scale = forecast.compute_scale(run.config, copy.config)
        size = forecast.count_bytes(copy.directory) * scale
        return loading + float(last["seconds"]) * scale, forecast.DiskUsage(size, size)
    recorded = read_recording_usage(copy.directory / REHEARSAL_DIR)
    first, before = forecast.split_usage(run.config, copy.config, last, recorded)
    iterations = forecast.estimate_iterations(run.config, first, before)
    seconds = 2 * loading + before.get("seconds", 0.0) + float(first["seconds"]) * iterations  # loaded again for eval
    return seconds, forecast.estimate_disk(run.config, copy.directory, iterations)


def estimate_peak_disk(runs: Sequence[tuple[forecast.DiskUsage, float]], jobs: int) -> float:
    """Estimate the bytes that runs will take beside those that each has, `jobs` of them under way at the peak."""
    kept = sum(max(0.0, disk.kept - there) for disk, there in runs)
    return kept + sum(sorted((disk.most - disk.kept for disk, _ in runs), reverse=True)[:jobs])


def format_disk_line(size: float, place: Path) -> str:
    """Say how much disk space the runs need and how much is free, and the fix where it is too small."""
    there = next(folder for folder in (place.absolute(), *place.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    told = f"{'disk':<24} about {format_megabytes(size)} MB ({format_megabytes(free)} MB are free there)"
    small = "\nthe disk is too small: lower train.keep_last in [settings], or choose another --out"
    return told + (small if size > free else "")
