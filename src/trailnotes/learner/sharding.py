"""A model whose weights, gradients and moments are split over several processes, by torch's FSDP2.

Each block of the decoder is gathered for its own pass. The modules around them (embedding, last norm, head) are
gathered once for all that the learner does with one micro-batch: it asks the body for states and the head for logits of
a chunk at a time, so neither is the `forward` of the model that FSDP knows of.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from trailnotes.errors import ConfigError, LearnerError
from trailnotes.learner.samples import GatheredCall, Ranks, call_directly

T = TypeVar("T")


class ShardedRank(Ranks):
    """One process of a process group.

    Args:
        mesh: of one dimension, over all ranks.
        object_group: a gloo group of them all, for objects that are no tensors.
        dtype: in which a model that is trained as a whole computes; its weights stay in float32, and gradients are
            summed in it. None: that of the weights.
        offload: whether weights, gradients and moments stay in the host's memory, and visit the device.
    """

    def __init__(
        self, mesh: DeviceMesh, object_group: dist.ProcessGroup, dtype: torch.dtype | None = None, *,
        offload: bool = False,
    ) -> None:  # fmt: skip
        self.rank, self.world, self.dtype = mesh.get_rank(), mesh.size(), dtype
        here = "cpu" if mesh.device_type == "cpu" else f"cuda:{torch.cuda.current_device()}"
        self.device, self.object_group = torch.device(here), object_group
        self._mesh, self._offload = mesh, offload

    def sum(self, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total, group=self._mesh.get_group())
        return total

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.object_group)
        return values

    def require_same_files(self, model: nn.Module, directory: Path | None) -> None:
        """Refuse ranks whose weights differ, by a few numbers of each, or that do not see the directory of the run."""
        sums = [
            (name, p.shape, p.detach().flatten()[:64].double().sum().item()) for name, p in model.named_parameters()
        ]
        mark = directory and directory / f".seen-{secrets.token_hex(8)}"
        if mark and self.rank == 0:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        ranks = self.gather((sums, mark))
        first, mark = ranks[0]
        seen = self.gather(mark is None or mark.exists())
        if mark and self.rank == 0:
            mark.unlink()
        if others := [rank for rank, (theirs, _) in enumerate(ranks) if theirs != first]:
            raise LearnerError(f"rank {others[0]} of the learner loaded other weights than rank 0: model.path must be "
                               "the same model on every machine")  # fmt: skip
        if not all(seen):
            raise ConfigError(f"rank {seen.index(False)} of the learner does not see {directory}, where each rank "
                              "saves its part of the model: put --run-dir on a file system that all machines "
                              "share")  # fmt: skip

    def shard(self, model: nn.Module) -> GatheredCall:
        """Keep this rank's part of each weight; frozen ones are split like the others.

        Raises:
            ConfigError: a torch that always divides gradients.
        """
        trained = any(p.requires_grad for p in model.parameters())
        masters = trained and self.dtype is not None
        policy = MixedPrecisionPolicy(self.dtype, torch.float32) if masters else MixedPrecisionPolicy()
        offload = CPUOffloadPolicy(pin_memory=self.device is not None and self.device.type == "cuda")
        offload_policy = offload if self._offload else OffloadPolicy()
        for module in (*find_blocks(model), model):
            if masters:
                for parameter in module.parameters():
                    if parameter.dtype != torch.float32:
                        parameter.data = parameter.data.float()
            fully_shard(module, mesh=self._mesh, mp_policy=policy, offload_policy=offload_policy)
            if not hasattr(module, "set_force_sum_reduction_for_comms"):
                raise ConfigError("learner.world_size above 1 needs torch 2.9 or newer: pip install -U torch")
            assert isinstance(module, FSDPModule)
            module.set_gradient_divide_factor(1.0)  # the learner divides, once, by the tokens of all ranks
            module.set_force_sum_reduction_for_comms(True)  # the default multiplies before it adds: nccl alone can
        model.within = call_directly  # type: ignore[assignment]
        register_fsdp_forward_method(model, "within")
        within: GatheredCall = model.within  # type: ignore[assignment]
        return within

    def reshard(self, model: nn.Module) -> None:
        """Free all gathered weights; FSDP keeps those around the blocks until the next backward pass."""
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @contextmanager
    def swap_weights(self, model: nn.Module, weights: Mapping[nn.Parameter, Tensor]) -> Iterator[None]:
        """Put other values into this rank's parts, which FSDP gathers afresh, for the duration of the block."""
        now = {parameter: _to_local(parameter).clone() for parameter in weights}
        try:
            self._write_weights(model, weights)
            yield
        finally:
            self._write_weights(model, now)

    @torch.no_grad()
    def _write_weights(self, model: nn.Module, weights: Mapping[nn.Parameter, Tensor]) -> None:
        for parameter, value in weights.items():
            _to_local(parameter).copy_(_to_local(value))
        if weights:
            self.reshard(model)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Find the layers of a decoder: the list of modules that holds the most parameters; [] where there is none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    largest = max(lists, key=lambda stack: sum(p.numel() for p in stack.parameters()), default=None)
    return [] if largest is None else list(largest)


def _to_local(tensor: Tensor) -> Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()
