"""`trailnotes export`: the model of a run as a directory, with adapters apart or merged."""

from __future__ import annotations

import shutil
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from trailnotes.commands.command import Command, argument
from trailnotes.errors import ConfigError
from trailnotes.types import StrPath

if TYPE_CHECKING:
    from trailnotes.config.model_schema import ModelConfig

Dtype = Literal["float32", "bfloat16"]


def export(
    model_or_run: StrPath, out: StrPath, *, merge: bool = False, dtype: Dtype = "float32", base: str = "",
    card: bool = False,
) -> float | None:  # fmt: skip
    """Write the model of a run as a Hugging Face directory.

    Args:
        model_or_run: run directory, checkpoint or model directory.
        out: the directory, which must be empty or absent.
        merge: add adapters to their base in float32, for programs without adapters; needs memory and disk for it.
        dtype: rounds merged weights.
        base: path of the adapters' base, if it is not where they name it.
        card: write a model card beside the model.

    Returns:
        The share of merged adapters' change that rounding has lost; None for a copy.

    Raises:
        ConfigError: `out` is taken, there is nothing to copy, merge or round, or the base was in 4 bits.
        RunError: the run has no checkpoint, or a damaged one.
    """
    from trailnotes.config.builtin import resolve_model_path
    from trailnotes.config.model_schema import ModelConfig
    from trailnotes.runs.card import write_model_card
    from trailnotes.runs.load_policy import open_evaluated_model

    out, lost = Path(out), None
    if dtype != "float32" and not merge:
        raise ConfigError(f"dtype = {dtype} rounds merged weights, and a copy has none: merge, or leave dtype out")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} already exists: choose another --out, or remove it")
    with open_evaluated_model(model_or_run) as subject:
        if card and subject.trained is None:
            raise ConfigError("a model card tells of the run that trained the model: name a run or a checkpoint")
        model = Path(resolve_model_path(subject.model))
        if not model.is_dir():
            raise ConfigError(f"{model_or_run} is no run and no model directory: name one")
        if base and not (model / "adapter_config.json").is_file():
            raise ConfigError(f"{model_or_run} has no adapters, and only these have a base: leave out --base")
        if not merge:
            _copy(model, out, base, saved=Path(subject.model) != Path(model_or_run))
        elif subject.trained and subject.trained.model.load_in_4bit:
            raise ConfigError(
                f"{model_or_run} learned on a base in 4 bits, which no merged model has: leave out --merge, or name "
                f"{model} to merge with the base as it was before"
            )
        else:
            acted = subject.trained.model.dtype if subject.trained else dtype
            lost = _merge(out, dtype, ModelConfig(path=str(model), base=base, device="cpu", dtype=acted))
        if card:
            write_model_card(out, subject, base)
    return lost


def _copy(model: Path, out: Path, base: str, *, saved: bool) -> None:
    """Copy a model directory; of a checkpoint's, `saved`, only the files that its manifest lists."""
    from trailnotes.storage.checkpoint import MANIFEST, atomic_directory, read_json, write_json

    with atomic_directory(out) as copy:
        if not saved:
            shutil.copytree(model, copy, dirs_exist_ok=True)
        for name in read_json(model.parent / MANIFEST)["files"] if saved else ():
            if name.startswith(f"{model.name}/"):
                target = copy / name.partition("/")[2]
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(model.parent / name, target)
        if base and (adapters := copy / "adapter_config.json").is_file():
            write_json(adapters, read_json(adapters) | {"base_model_name_or_path": base})


def _merge(out: Path, dtype: Dtype, config: ModelConfig) -> float:
    """Merge adapters with the base in the dtype that it acted in: they were learned on its rounded weights."""
    import torch

    from trailnotes.learner.states import export_model
    from trailnotes.policies.hf.adapters import merge_adapters
    from trailnotes.policies.hf.policy import load_model

    if dtype == "bfloat16":
        config = config.model_copy(update={"dtype": dtype})
    adapted, tokenizer = load_model(config)
    if not hasattr(adapted, "peft_config"):
        raise ConfigError(f"{config.path} holds a whole model and no adapters: leave out --merge")
    whole, lost = merge_adapters(adapted.float(), getattr(torch, dtype))
    export_model(whole, out, tokenizer)
    return lost


def _run(args: Namespace) -> None:
    lost = export(args.subject, args.out, merge=args.merge, dtype=args.dtype, base=args.base, card=args.card)
    if lost is not None and args.dtype != "float32":
        print(f"rounding to {args.dtype} has lost {lost:.0%} of the adapters' change")
    print(f"model: {args.out}")


EXPORT = Command(
    name="export", summary="copy the trained model of a run to a directory",
    about="Copy the last model of a run, or of a checkpoint. Trained adapters stay adapters, in peft's format; with "
    "--merge they are added to their base in float32, for programs that take no adapters. --card writes a "
    "model card: method, settings, versions, and the evaluations of it in the run's directory; `hf upload OWNER/NAME "
    "DIR` publishes both.",
    example="trailnotes export runs/lora --merge --out models/merged", run=_run,
    arguments=(
        argument("subject", metavar="RUN", help="a run directory (its last checkpoint), a checkpoint or a directory"),
        argument("--out", type=Path, metavar="DIR", required=True, help="where the model goes"),
        argument("--merge", action="store_true", help="add adapters to their base, in float32"),
        argument("--dtype", choices=get_args(Dtype), default="float32",
            help="round merged weights to this; bfloat16 may lose most of the training; the command says how much"),
        argument("--base", metavar="MODEL", default="", help="the adapters' base, if it is not where they name it"),
        argument("--card", action="store_true", help="write README.md, a model card, beside the model"),
    ),
)  # fmt: skip
