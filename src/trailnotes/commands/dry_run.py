"""`trailnotes train --dry-run`: build everything once, play one iteration, and say what the whole run would take."""

from __future__ import annotations

import resource
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.train import train
from trailnotes.runs.console import clock
from trailnotes.runs.forecast import iterations, small
from trailnotes.storage.files import read_jsonl

if TYPE_CHECKING:
    from trailnotes.config.schema import Config

MEGABYTE = 1 << 20


def dry_run(config: Config) -> str:
    """Train one iteration in a temporary directory, checkpoint included, and extrapolate.

    The estimate is rough, as `runs.forecast` says, and the first iteration also compiles games.

    Returns:
        A report for people: time, memory and disk.

    Raises:
        ConfigError: a setting that cannot work; whatever else would end the real run early ends this one.
    """
    with tempfile.TemporaryDirectory(prefix="trailnotes-") as name:
        path = Path(name)
        train(small(config), path)
        line = next(read_jsonl(path / "metrics.jsonl"))
        saved = sum(file.stat().st_size for file in (path / "checkpoints").rglob("*") if file.is_file())
        logged = (path / "trajectories.jsonl").stat().st_size
    repeats = iterations(config, line)
    seconds = float(line["seconds"]) * repeats
    kept = config.train.keep_last + bool(config.train.eval_every) + 1  # one more while the next is written
    disk = saved * kept + logged * repeats
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in kilobytes
    free = shutil.disk_usage(Path.cwd()).free
    lines = [
        f"everything could be built; one iteration took {line['seconds']:.1f} s and {line['env_steps']:,} env steps",
        f"iterations   about {repeats:,}",
        f"time         about {clock(seconds)}",
        f"memory       {peak / MEGABYTE:,.0f} MB at the peak of this process",
        f"disk         about {disk / MEGABYTE:,.0f} MB ({free / MEGABYTE:,.0f} MB are free here)",
    ]
    if disk > free:
        lines.append("the disk is too small: lower train.keep_last, or choose another --run-dir")
    return "\n".join(lines) + "\n"
