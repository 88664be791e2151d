"""`trailnotes warmstart`: a small start model, or one fine-tuned on demonstrations."""

from __future__ import annotations

import itertools
import resource
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from trailnotes.commands.arguments import ALLOW_CHANGE, CONFIG
from trailnotes.commands.command import Command, argument

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from trailnotes.config.schema import Config

DRY_RUN_STEPS = 5  # steps of a dry run


def dry_run(config: Config, out: Path) -> str:
    """Take the first five steps in a temporary directory, and extrapolate time, memory and disk.

    A model that is not on this machine is not downloaded.

    Raises:
        ConfigError: whatever would end the real start early.
    """
    from trailnotes.runs.console import format_duration, format_megabytes
    from trailnotes.runs.estimate.forecast import count_bytes
    from trailnotes.warmstart.training import require_free_output, warmstart

    require_free_output(out)
    if config.model.path:
        from trailnotes.policies.hf.policy import is_downloaded

        if not is_downloaded(config.model):
            return f"{config.model.path} is not on this machine, and a dry run downloads nothing: no time can be told\n"
    steps = config.warmstart.steps
    tried = config.warmstart.model_copy(update={"steps": min(steps, DRY_RUN_STEPS), "save_every": 0})
    ends = [time.monotonic()]
    with tempfile.TemporaryDirectory(prefix="trailnotes-") as name:
        model = warmstart(
            config.model_copy(update={"warmstart": tried}),
            Path(name) / "model",
            progress=lambda _state: ends.append(time.monotonic()),
        )
        saved = count_bytes(model)
    first, *others = (after - before for before, after in itertools.pairwise(ends))
    step = fmean(others or [first])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in kilobytes
    return (
        f"everything could be built; the first step was done after {first:.1f} s, each other one took {step:.2f} s\n"
        f"time         about {format_duration(first + step * (steps - 1))} for {steps:,} steps\n"
        f"memory       {format_megabytes(peak)} MB at the peak of this process\n"
        f"disk         {format_megabytes(saved, 1)} MB of the model\n"
    )


def _run(args: Namespace) -> None:
    from trailnotes.config.toml import load_config

    config = load_config(args.config, args.settings)
    if args.dry_run:
        print(dry_run(config, args.out), end="")
        return
    from trailnotes.runs.console import ProgressBar
    from trailnotes.warmstart.training import warmstart

    with ProgressBar(config.warmstart.steps, "warmstart") as bar:

        def progress(state: Mapping[str, float]) -> None:
            bar.update(state["step"], {"loss": state["loss"], "lr": state["lr"]})

        out = warmstart(config, args.out, allow_change=args.allow_change, progress=progress, note=bar.note)
    print(f"model: {out}")


WARMSTART = Command(
    name="warmstart", summary="train a small initial model, or fine-tune one on demonstrations",
    about="With model.path empty: train a tokenizer on the environment's text and a small model on its scripted "
    "episodes, without any download. With model.path set: plain supervised fine-tuning of that model, for example on "
    "the JSONL file that warmstart.demonstrations names; of adapters on it with model.lora.enabled. The same command "
    "on an unfinished model resumes from its checkpoint. Ctrl-C finishes the step and saves.",
    example="trailnotes warmstart demo-warmstart --out runs/start --warmstart.steps 20", run=_run,
    arguments=(
        CONFIG,
        argument("--out", type=Path, metavar="DIR", required=True,
            help="where the model goes, as Hugging Face saves it"),
        ALLOW_CHANGE,
        argument("--dry-run", action="store_true", help="check everything, estimate time, memory and disk, and stop"),
    ),
    settings=True,
)  # fmt: skip
