"""Weights as folders of files, from which engines load them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trailnotes.errors import PolicyError

DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
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
        weights: all of a model, or adapters alone.
        folder: a new one.
        version: of the weights.
        dtype: of the engine.
        adapters: settings of the adapters that the weights do not show, ``lora_alpha`` among them; None for a whole
            model.

    Raises:
        PolicyError: the weights are not of the kind that `adapters` says, or cannot be written.
    """
    if is_adapters(weights) != (adapters is not None):
        raise PolicyError(
            "these engines were started for a whole model: set model.lora.enabled = true"
            if adapters is None
            else "these engines were started for adapters: hand over the adapters alone"
        )
    try:
        folder.mkdir(parents=True)
        if adapters is None:
            _write_full_model(weights, folder / "model.safetensors", dtype)
        else:
            settings = write_adapters(weights, folder / "adapter_model.safetensors", dtype, adapters)
            (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    except OSError as error:
        raise PolicyError(f"the weights for the engine cannot be written to {folder}: {error.strerror}") from error
    return WeightFiles(folder, version, adapters is not None)


def is_adapters(weights: Mapping[str, Tensor]) -> bool:
    """Return whether these are adapters in peft's names, rather than a whole model.

    Raises:
        PolicyError: they are something of both, or nothing.
    """
    count = sum(_ADAPTER.search(name) is not None for name in weights)
    if not weights or 0 < count < len(weights):
        raise PolicyError(
            f"{count} of {len(weights)} tensors are adapters by their names: hand over a whole model, or adapters alone"
        )
    return bool(count)


def _write_full_model(weights: Mapping[str, Tensor], path: Path, dtype: torch.dtype) -> None:
    """Write all weights of a model, by the names of its state dict; tied weights are written once."""
    unique: dict[str, Tensor] = {}
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    for name, tensor in weights.items():
        place = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        if place not in seen or not tensor.data_ptr():
            unique[name] = tensor
        seen.add(place)
    _write_safetensors(unique, path, dtype)


def write_adapters(weights: Mapping[str, Tensor], path: Path, dtype: torch.dtype, extra: Mapping[str, Any]) -> Any:
    """Write adapters, with or without the name that peft gives them in a live model (``default``).

    Args:
        weights: by peft's names.
        path: of the file.
        dtype: of the engine.
        extra: settings of the adapters that the weights do not show, ``lora_alpha`` among them.

    Returns:
        Their ``adapter_config.json``.

    Raises:
        PolicyError: their ranks differ, which one setting cannot say.
    """
    modules: set[str] = set()
    ranks: set[int] = set()
    plain: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        match = _ADAPTER.search(name)
        assert match is not None
        modules.add(match[1])
        ranks.add(tensor.shape[0 if match[2] == "A" else 1])
        plain[f"{name[: match.start()]}.{match[1]}.lora_{match[2]}.weight"] = tensor
    if len(ranks) != 1:
        raise PolicyError(f"the adapters have ranks {sorted(ranks)}: vLLM is given adapters of one rank alone")
    _write_safetensors(plain, path, dtype)
    own = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none"}
    return {**own, **extra, "r": ranks.pop(), "target_modules": sorted(modules)}


def _write_safetensors(weights: Mapping[str, Tensor], path: Path, dtype: torch.dtype) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in weights.items():
        start, end = end, end + tensor.numel() * dtype.itemsize
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in weights.values():
            whole = tensor.detach().to("cpu", dtype).contiguous()
            file.write(whole.view(-1).view(torch.uint8).numpy().data)
