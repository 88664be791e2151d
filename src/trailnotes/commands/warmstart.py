"""`trailnotes warmstart`: a small start model, or one fine-tuned on demonstrations."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from trailnotes.commands.arguments import ALLOW_CHANGE, CONFIG
from trailnotes.commands.command import Command, argument


def _run(args: Namespace) -> None:
    from trailnotes.config.toml import load_config
    from trailnotes.reporting.terminal import ProgressBar
    from trailnotes.warmstart.training import warmstart

    config = load_config(args.config, args.settings)
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
    ),
    settings=True,
)  # fmt: skip
