"""Weights of a learner: the optimizer that moves them, and the directories, checkpoints and dumps that hold them.

The state of one process is ``learner.safetensors``. More write ``learner.dcp``, a directory by
`torch.distributed.checkpoint` to which each rank adds its own part, as safetensors: nothing in it is ever unpickled.
Any number of ranks reads either. Beside it lies ``learner.json``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trailnotes.errors import NonFiniteError, format_error
from trailnotes.learner.ranks import SHARED_ERRORS
from trailnotes.learner.samples import Ranks
from trailnotes.policies.hf.adapters import get_adapter_state_dict, save_adapters
from trailnotes.storage.checkpoint import atomic_directory, read_json, write_json
from trailnotes.storage.files import write_text_atomic
from trailnotes.types import Sample

MOMENTS = ("exp_avg", "exp_avg_sq")
BETAS = (0.9, 0.999)  # decays of these: the defaults of AdamW
MakeBlank = Callable[[Collection[str]], dict[str, Tensor]]
FILE, SHARDS, REST = "learner.safetensors", "learner.dcp", "learner.json"
STATE = (REST, FILE, SHARDS)  # all files of `save_state`; deletion begins with the first


class MasterAdamW:
    """AdamW on float32 weights over the trainable parameters of a model; those that are frozen are left alone.

    A step of 1e-6 is lost when it is added to a bfloat16 weight (8 bits of mantissa). So parameters of a lower
    precision get a float32 master copy: gradients are summed and clipped there, the moments live there, and the model's
    weights are the rounded masters. Float32 parameters are their own masters and cost nothing more.
    """

    def __init__(
        self, model: nn.Module, *, lr: float, betas: tuple[float, float] = BETAS, weight_decay: float = 0.0
    ) -> None:
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError("the model has no trainable parameter: unfreeze it, or turn model.lora.enabled on")
        self.masters = {
            name: p if p.dtype == torch.float32 else nn.Parameter(p.detach().float().clone())
            for name, p in self.parameters.items()
        }
        self._adamw = torch.optim.AdamW(
            self.masters.values(), lr=lr, betas=betas, weight_decay=weight_decay, fused=True
        )

    def zero_grad(self) -> None:
        for name, parameter in self.parameters.items():
            parameter.grad = self.masters[name].grad = None

    def accumulate_grads(self) -> None:
        """Add the gradients of low-precision parameters to their masters'. Call after each backward pass."""
        sums, gradients = [], []
        for name, parameter in self.parameters.items():
            master = self.masters[name]
            if master is parameter or parameter.grad is None:
                continue
            if master.grad is None:
                master.grad = parameter.grad.float()
            else:
                sums.append(master.grad)
                gradients.append(parameter.grad)
            parameter.grad = None
        if sums:
            torch._foreach_add_(sums, gradients)

    def grad_norm(self) -> Tensor:  # ()
        """Compute the 2-norm of all gradients together, of all ranks."""
        norm = nn.utils.get_total_norm([p.grad for p in self.masters.values() if p.grad is not None])
        if isinstance(norm, DTensor):
            # Of offloaded gradients it is on the CPU, where the ranks of nccl cannot meet.
            on_device: DTensor = norm.to(norm.device_mesh.device_type)  # type: ignore[assignment]
            return on_device.full_tensor()
        return norm

    def scale_grads(self, factor: float) -> None:
        if gradients := [master.grad for master in self.masters.values() if master.grad is not None]:
            torch._foreach_mul_(gradients, factor)

    def set_lr(self, lr: float) -> None:
        for group in self._adamw.param_groups:
            group["lr"] = lr

    def step(self, scale: float) -> None:
        self.scale_grads(scale)
        self._adamw.step()
        self._round_weights()

    @torch.no_grad()
    def _round_weights(self) -> None:
        rounded = [name for name, parameter in self.parameters.items() if self.masters[name] is not parameter]
        if rounded:
            torch._foreach_copy_([self.parameters[name] for name in rounded], [self.masters[name] for name in rounded])

    def live_tensors(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {f"weights.{name}": master.detach() for name, master in self.masters.items()}
        for name, master in self.masters.items():
            for key, value in self._adamw.state.get(master, {}).items():
                tensors[f"{key}.{name}"] = value
        return tensors

    def make_blank_state(self, names: Collection[str]) -> dict[str, Tensor]:
        """Make a tensor of the right shape for each of `names`. Raises `ValueError` for another model's."""
        self._validate_names(names)
        blanks = {f"weights.{name}": torch.zeros_like(master.detach()) for name, master in self.masters.items()}
        for name, master in self.masters.items():
            if f"step.{name}" in names:
                blanks[f"step.{name}"] = torch.zeros(())
                blanks |= {f"{moment}.{name}": torch.zeros_like(master.detach()) for moment in MOMENTS}
        return blanks

    def state_dict(self) -> dict[str, Tensor]:
        return copy_to_cpu(self.live_tensors())

    @torch.no_grad()
    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state of `state_dict`, weights included. Raises `ValueError` for another model's."""
        self._validate_names(tensors)
        for name, master in self.masters.items():
            master.copy_(tensors[f"weights.{name}"])
        state = {
            index: {key: tensors[f"{key}.{name}"].clone() for key in ("step", *MOMENTS)}
            for index, name in enumerate(self.masters)
            if f"step.{name}" in tensors
        }
        self._adamw.load_state_dict({"state": state, "param_groups": self._adamw.state_dict()["param_groups"]})
        self._round_weights()

    def _validate_names(self, names: Collection[str]) -> None:
        expected = {f"weights.{name}" for name in self.masters}
        saved = {name for name in names if name.startswith("weights.")}
        if expected != saved:
            raise ValueError(f"the saved weights are another model's, e.g. {min(expected ^ saved)}")


def raise_non_finite(
    directory: Path | None, step: int, samples: Sequence[Sample], numbers: Mapping[str, float], *, write: bool = True
) -> NoReturn:
    """Raise `NonFiniteError` before optimizer step `step` (counted from 1).

    `write` puts the rows, and the numbers computed from them, into a file of `directory`, if there is one.
    """
    text = f"loss or gradient is not finite at optimizer step {step}: the weights were left as they were"
    batch = sorted({sample.trajectory for sample in samples if sample.role == "episode"})
    if directory is None:
        raise NonFiniteError(f"{text} (no dump: the learner was given no dump_dir)", batch)
    path = directory / f"nonfinite-{step:06d}.json"
    if write:
        directory.mkdir(parents=True, exist_ok=True)
        write_text_atomic(path, json.dumps({**numbers, "rows": [asdict(sample) for sample in samples]}))
    raise NonFiniteError(f"{text}; the batch is in {path}", batch)


def copy_to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def to_full_tensor(tensor: Tensor) -> Tensor:
    """Gather all of a tensor, wherever its parts are; every rank must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def gather_trained_weights(model: Any, ranks: Ranks) -> dict[str, Tensor]:
    """Gather the trained weights, whole, on the CPU. Every rank must ask, and all but the first get nothing.

    They have the names of the model's parameters, a tied one once; of a peft model the adapters alone, by the names of
    peft's files.
    """
    weights: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            tensor = to_full_tensor(parameter.detach())
            if ranks.rank == 0:
                weights[name] = tensor.to("cpu", ranks.dtype or tensor.dtype, copy=True)
    return get_adapter_state_dict(model, weights) if weights and hasattr(model, "peft_config") else weights


@contextmanager
def atomic_model_directory(path: Path) -> Iterator[Path]:
    """Yield a directory as `atomic_directory` does; where files cannot be written, all libraries raise `OSError`."""
    try:
        with atomic_directory(path) as staging:
            yield staging
    except Exception as error:
        if type(error) in {Exception, SafetensorError}:  # of tokenizers, which has no error of its own; of safetensors
            raise OSError(str(error)) from error
        raise


def export_model(model: Any, path: Path, tokenizer: Any = None, ranks: Ranks | None = None) -> None:
    """Write `model` as a Hugging Face directory with ``.safetensors``, whole or not at all.

    Of a peft model the adapters alone are written, in peft's format. With a tokenizer the directory is a policy by
    itself. Each of the `ranks` that share the model must call, and the first writes.
    """
    shared: Ranks = ranks or Ranks()
    state = _gather_state(model, shared.dtype) if shared.world > 1 else None
    if shared.rank:
        return
    with atomic_model_directory(path) as staging:
        if hasattr(model, "peft_config"):
            save_adapters(model, staging, state)
        else:
            model.save_pretrained(staging, state_dict=state)
            if shared.dtype is not None:  # the masters, from which transformers takes it, are in float32
                config = staging / "config.json"
                write_json(config, read_json(config) | {"dtype": str(shared.dtype).removeprefix("torch.")})
        if tokenizer is not None:
            tokenizer.save_pretrained(staging)


@torch.no_grad()
def _gather_state(model: Any, dtype: torch.dtype | None) -> dict[str, Tensor]:
    if hasattr(model, "peft_config"):
        return {name: to_full_tensor(p.detach()).cpu() for name, p in model.named_parameters() if p.requires_grad}
    state = {name: to_full_tensor(p.detach()).cpu() for name, p in model.named_parameters()}
    state = {name: tensor.to(dtype or tensor.dtype) for name, tensor in state.items()}
    buffers = model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys()
    return state | {name: to_full_tensor(t).cpu() for name, t in model.state_dict().items() if name in buffers}


def save_state(path: Path, tensors: Mapping[str, Tensor], rest: Mapping[str, Any], ranks: Ranks) -> None:
    """Write the state of a learner into the existing directory `path`, which all ranks see.

    `tensors` are whole of one process, and of more each rank's parts; `rest` is JSON-able. Raises `OSError` if a rank
    cannot write, for want of space or of permission.
    """
    if ranks.world == 1:
        save_file(copy_to_cpu(tensors), path / FILE)
    else:
        with _raise_first_failure(OSError):
            writer = HuggingFaceStorageWriter(str(path / SHARDS), save_distributed=True)
            save_shards(dict(tensors), storage_writer=writer, process_group=ranks.object_group)
    if ranks.rank == 0:
        write_json(path / REST, dict(rest))


def load_state(path: Path, blank: MakeBlank, ranks: Ranks) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load a state that any number of processes saved in the directory `path`, for as many as there are now.

    `blank` makes the tensors to fill, by the names that were saved: whole, or this rank's parts. Returns tensors and
    the rest, as `save_state` was given them. Raises `ValueError` if they are another model's, or a rank cannot read
    them.
    """
    with _share_failure(ranks):
        rest = read_json(path / REST)
        if not (path / SHARDS).is_dir():
            return _load_file(path / FILE, blank), rest
        reader = HuggingFaceStorageReader(str(path / SHARDS))
        parts: Any = reader.read_metadata().state_dict_metadata
        tensors = blank(parts)
        for name, tensor in tensors.items():
            _validate_shape(name, parts[name].size, tensor)
    with _raise_first_failure(ValueError):
        load_shards(tensors, storage_reader=reader, process_group=ranks.object_group, no_dist=ranks.world == 1)
    return tensors, rest


def _load_file(path: Path, blank: MakeBlank) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        tensors = blank(set(file.keys()))
        for name, tensor in tensors.items():
            saved = file.get_slice(name)
            _validate_shape(name, saved.get_shape(), tensor)
            if not isinstance(tensor, DTensor):
                tensor.copy_(file.get_tensor(name))
                continue
            # This rank's part of a tensor that is sharded along its first dimension.
            shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
            if (local := tensor.to_local()).numel():
                local.copy_(saved[offset[0] : offset[0] + shape[0]])
    return tensors


def _validate_shape(name: str, saved: Sequence[int], tensor: Tensor) -> None:
    if tuple(saved) != tuple(tensor.shape):
        raise ValueError(f"the saved weights are another model's: {name} is {tuple(saved)}, not {tuple(tensor.shape)}")


@contextmanager
def _share_failure(ranks: Ranks) -> Iterator[None]:
    """Raise a failure of one rank's block on all ranks: that one alone would go on with the weights that it had."""
    failure: Exception | None = None
    try:
        yield
    except SHARED_ERRORS as error:
        failure = error
    reasons = ranks.gather(f"rank {ranks.rank} of the learner: {format_error(failure)}" if failure else "")
    if failure or any(reasons):
        raise failure or ValueError(next(filter(None, reasons)))


@contextmanager
def _raise_first_failure(kind: type[Exception]) -> Iterator[None]:
    """Raise the first rank's failure as `kind`, alike on all ranks: torch's own error is no `Exception`."""
    try:
        with warnings.catch_warnings():  # of torch about its own plans, such as that one process alone needs no others
            warnings.simplefilter("ignore")
            yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items(), key=itemgetter(0))
        raise kind(f"rank {rank} of the learner: {' '.join(str(cause).split())}") from error
