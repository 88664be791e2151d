"""What a training takes, before it starts: `trailnotes train --dry-run`."""

from __future__ import annotations

import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from trailnotes.config.schema import Config
from trailnotes.memory.tipfile import read_tips
from trailnotes.runs.console import format_duration, format_megabytes
from trailnotes.runs.preflight import run_preflight
from trailnotes.runs.rehearsal import REHEARSAL_DIR, read_recording_usage, require_remaining_budget
from trailnotes.runs.train import train
from trailnotes.storage.files import read_jsonl
from trailnotes.types import StrPath


def dry_run(
    config: Config, *, memory: StrPath | None = None, show: Callable[[str], object] = lambda _table: None
) -> str:
    """Estimate the memory of the device, then train one iteration in a temporary directory, and extrapolate."""
    run_preflight(config, None if memory is None else read_tips(memory), machine=False)
    if config.is_hosted:
        from trailnotes.runs.estimate.hosted import report_hosted

        return report_hosted(config)
    from trailnotes.policies.hf.policy import is_downloaded
    from trailnotes.runs.estimate.footprint import estimate_footprint

    if footprint := estimate_footprint(config):
        show(footprint.report())
        footprint.require_room()
    if not is_downloaded(config.model):
        return (f"{config.model.path} is not on this machine, and a dry run downloads nothing: no time and no disk can "
                "be told; `trailnotes train` downloads it\n")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="trailnotes-") as name:
        return _extrapolate(config, Path(name), memory)


def _extrapolate(config: Config, path: Path, memory: StrPath | None) -> str:
    from trailnotes.runs.estimate import forecast

    copy = forecast.shrink_config(config)
    train(copy, path, memory=memory)
    recorded = read_recording_usage(path / REHEARSAL_DIR)
    line, before = forecast.split_usage(config, copy, next(read_jsonl(path / "metrics.jsonl")), recorded)
    require_remaining_budget(config.train, before)
    repeats = forecast.estimate_iterations(config, line, before)
    disk, free = forecast.estimate_disk(config, path, repeats), shutil.disk_usage(Path.cwd()).free
    seconds = float(line["seconds"]) * repeats + before.get("seconds", 0.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in kilobytes
    later = "" if config.train.keep_optimizer else f", {format_megabytes(disk.kept)} MB once it has ended"
    lines = [
        f"everything could be built; one iteration took {line['seconds']:.1f} s and {line['env_steps']:,} env steps",
        f"iterations   about {repeats:,}",
        f"time         about {format_duration(seconds)}",
        f"memory       {format_megabytes(peak)} MB at the peak of this process",
        f"disk         about {format_megabytes(disk.most)} MB{later} ({format_megabytes(free)} MB are free here)",
    ]
    if before:
        num, spent = forecast.count_rehearsal_episodes(config), format_duration(before["seconds"])
        lines.insert(2, f"before them  {num:,} episodes in {spent}")
    if disk.most > free:
        lines.append("the disk is too small: lower train.keep_last, or choose another --run-dir")
    return "\n".join(lines) + "\n"
