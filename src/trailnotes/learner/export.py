"""Weights for others to load, and batches for people to look at: files, never pickles."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from trailnotes.storage.checkpoint import atomic_directory, write_json
from trailnotes.types import Sample


def export_model(model: nn.Module, path: Path, tokenizer: Any = None, merged: bool = True) -> None:
    """Write `model` as a Hugging Face directory with ``.safetensors``, whole or not at all.

    Args:
        model: a transformers or peft model.
        path: the directory, replaced if it exists.
        tokenizer: saved beside the weights, so that the directory acts by itself.
        merged: adapters are added into a copy of the weights, which any program loads; otherwise the adapters alone
            are written, in peft's format.
    """
    saved: Any = model
    if merged and hasattr(model, "merge_and_unload"):
        saved = copy.deepcopy(saved).merge_and_unload()  # a copy: taking adapters off again would leave rounding errors
    with atomic_directory(path) as aside:
        saved.save_pretrained(aside)
        if tokenizer is not None:
            tokenizer.save_pretrained(aside)


def dump_batch(path: Path, samples: Sequence[Sample], numbers: Mapping[str, float]) -> Path:
    """Write rows end to end as ``<path>.safetensors`` and what was computed from them as ``<path>.json``.

    Returns:
        The ``.safetensors`` file: ``token_ids``, ``loss_mask``, ``behavior_logprobs``, ``advantages`` (all
        rows joined), ``lengths``, ``off_policy`` and ``trajectory`` (one for each row).
    """
    path.parent.mkdir(parents=True, exist_ok=True)

    def joined(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([value for row in rows for value in row], dtype=dtype)

    tensors = {
        "token_ids": joined([s.token_ids for s in samples], torch.int64),
        "loss_mask": joined([s.loss_mask for s in samples], torch.uint8),
        "behavior_logprobs": joined([s.behavior_logprobs for s in samples], torch.float64),
        "advantages": joined([s.advantages for s in samples], torch.float64),
        "lengths": torch.tensor([len(s.token_ids) for s in samples]),
        "off_policy": torch.tensor([s.off_policy for s in samples]),
        "trajectory": torch.tensor([s.trajectory for s in samples]),
    }
    file = path.with_name(path.name + ".safetensors")
    save_file(tensors, file)
    write_json(path.with_name(path.name + ".json"), {name: str(value) for name, value in numbers.items()})
    return file
