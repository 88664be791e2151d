"""The batch whose loss or gradient was not finite, for whoever looks for the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import torch
from safetensors.torch import save_file

from trailnotes.errors import NonFiniteError
from trailnotes.storage.checkpoint import write_json
from trailnotes.types import Sample


def raise_non_finite(
    directory: Path | None, step: int, samples: Sequence[Sample], numbers: Mapping[str, float], *, write: bool = True
) -> NoReturn:
    """Stop before optimiser step `step`, with a dump where there is a directory for it.

    Args:
        directory: of dumps.
        step: counted from 1.
        samples: the mini-batch.
        numbers: what was computed from it.
        write: whether this is the process that writes it.

    Raises:
        NonFiniteError: always.
    """
    what = f"loss or gradient is not finite at optimiser step {step}: the weights were left as they were"
    if directory is None:
        raise NonFiniteError(f"{what} (no dump: the learner was given no dump_dir)")
    path = directory / f"nonfinite-{step:06d}"
    if write:
        dump_batch(path, samples, numbers)
    raise NonFiniteError(f"{what}; the batch is in {path}.safetensors")


def dump_batch(path: Path, samples: Sequence[Sample], numbers: Mapping[str, float]) -> Path:
    """Write rows end to end as ``<path>.safetensors`` and what was computed from them as ``<path>.json``.

    Returns:
        The ``.safetensors`` file: ``token_ids``, ``loss_mask``, ``behavior_logprobs``, ``advantages`` (all
        rows joined), ``lengths``, ``off_policy``, ``trajectory``, ``hold`` and ``imitate`` (one for each row). The
        ``.json`` has the rows' ``roles``, too.
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
        "hold": torch.tensor([s.hold for s in samples], dtype=torch.float64),
        "imitate": torch.tensor([s.imitate for s in samples], dtype=torch.float64),
    }
    file = path.with_name(path.name + ".safetensors")
    save_file(tensors, file)
    about = {name: str(value) for name, value in numbers.items()}
    write_json(path.with_name(path.name + ".json"), {**about, "roles": [sample.role for sample in samples]})
    return file
