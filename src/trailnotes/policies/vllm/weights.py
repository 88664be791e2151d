"""Weights as folders of safetensors files, from which engines load them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from trailnotes.errors import PolicyError

_ADAPTER = re.compile(r"\.(\w+)\.lora_([AB])\.(?:\w+\.)?weight$")  # module, side, and the adapters' name


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Weights of one version, as files that engines can read."""

    folder: Path
    version: int
    is_adapters: bool

    @property
    def name(self) -> str:
        """Name of the adapters in the engine, and salt of its prefix cache: no two weights have the same."""
        return self.folder.name


def write_weights(
    weights: Mapping[str, Tensor], folder: Path, version: int, dtype: torch.dtype, adapters: Mapping[str, Any] | None
) -> WeightFiles:
    """Write a whole model, by the names of its state dict, or adapters, by peft's.

    Args:
        weights: all of a model, or adapters alone, with or without the name that peft gives them in a live model.
        folder: a new one.
        version: of the weights.
        dtype: of the engine.
        adapters: settings of the adapters that the weights do not show, ``lora_alpha`` among them; None for a whole
            model.

    Raises:
        PolicyError: the weights are not of the kind that `adapters` says, or cannot be written.
    """
    matches = {name: match for name in weights if (match := _ADAPTER.search(name))}
    if not weights or len(matches) != (0 if adapters is None else len(weights)):
        wanted = "the adapters alone" if adapters is not None else "a whole model, or set model.lora.enabled = true"
        raise PolicyError(f"{len(matches)} of {len(weights)} tensors are adapters by their names: hand over {wanted}")
    try:
        folder.mkdir(parents=True)
        if adapters is None:
            first: dict[Any, str] = {}  # tied weights are written once
            for name, tensor in weights.items():
                first.setdefault((tensor.data_ptr() or name, tensor.shape, tensor.stride()), name)
            for number, name in enumerate(first.values()):  # a file each: no second copy of the whole model
                _save({name: weights[name]}, folder / f"model-{number:05}.safetensors", dtype)
        else:
            settings = {**adapters, **_describe_adapters(weights, matches)}
            (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
            plain = {f"{name[: m.start()]}.{m[1]}.lora_{m[2]}.weight": weights[name] for name, m in matches.items()}
            _save(plain, folder / "adapter_model.safetensors", dtype)
    except (OSError, SafetensorError) as error:
        raise PolicyError(f"the weights for the engine cannot be written: {error}") from error
    return WeightFiles(folder, version, adapters is not None)


def _describe_adapters(weights: Mapping[str, Tensor], matches: Mapping[str, re.Match[str]]) -> dict[str, Any]:
    ranks = {weights[name].shape[0 if match[2] == "A" else 1] for name, match in matches.items()}
    if len(ranks) != 1:
        raise PolicyError(f"the adapters have ranks {sorted(ranks)}: vLLM is given adapters of one rank alone")
    modules = sorted({match[1] for match in matches.values()})
    fixed = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none"}
    return {**fixed, "r": ranks.pop(), "target_modules": modules}


def _save(weights: Mapping[str, Tensor], path: Path, dtype: torch.dtype) -> None:
    save_file({name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in weights.items()}, path)
