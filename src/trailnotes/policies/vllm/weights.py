"""Weights on their way to an engine: a safetensors file, written a tensor at a time.

The format is 8 bytes with the length of a header, little-endian, the header in JSON, and the tensors' bytes one after
the other (https://github.com/huggingface/safetensors#format). The library's own writer wants all of them in memory.
"""

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
class WeightFile:
    """Weights of one version, ready to be sent."""

    path: Path
    version: int
    adapters: Mapping[str, Any] | None  # adapter_config.json; None for a whole model

    @property
    def load_argument(self) -> dict[str, Any]:
        """What an engine is told about the file."""
        return {"version": self.version, "adapters": self.adapters and dict(self.adapters)}


def is_adapters(weights: Mapping[str, Tensor]) -> bool:
    """Whether these are adapters in peft's names, rather than a whole model.

    Raises:
        PolicyError: they are something of both, or nothing.
    """
    found = sum(_ADAPTER.search(name) is not None for name in weights)
    if not weights or 0 < found < len(weights):
        raise PolicyError(
            f"{found} of {len(weights)} tensors are adapters by their names: hand over a whole model, or adapters alone"
        )
    return bool(found)


def write_full_model(weights: Mapping[str, Tensor], path: Path, dtype: torch.dtype) -> None:
    """All weights of a model, by the names of its state dict; what is tied to another is written once."""
    unique: dict[str, Tensor] = {}
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    for name, tensor in weights.items():
        place = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        if place not in seen or not tensor.data_ptr():
            unique[name] = tensor
        seen.add(place)
    _write_safetensors(unique, path, dtype)


def write_adapters(weights: Mapping[str, Tensor], path: Path, dtype: torch.dtype, extra: Mapping[str, Any]) -> Any:
    """Adapters, with or without the name that peft gives them in a live model (``default``).

    Args:
        weights: by peft's names.
        path: where to write them.
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
        found = _ADAPTER.search(name)
        assert found is not None
        modules.add(found[1])
        ranks.add(tensor.shape[0 if found[2] == "A" else 1])
        plain[f"{name[: found.start()]}.{found[1]}.lora_{found[2]}.weight"] = tensor
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
    try:
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in weights.values():
                whole = tensor.detach().to("cpu", dtype).contiguous()
                file.write(whole.view(-1).view(torch.uint8).numpy().data)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise PolicyError(f"the weights for the engine cannot be written to {path.parent}: {error.strerror}") from error
