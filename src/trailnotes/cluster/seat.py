"""The GPU on which the process of the run computes, so that Ray gives it to nobody else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from trailnotes.cluster.waiting import Deadline, get_result
from trailnotes.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trailnotes.config.schema import Config


class GpuReservation:
    """The actor: it has a GPU set aside, and leaves it to the process of the run."""

    def get_gpu_id(self) -> str:
        """What its GPU is called on its machine."""
        import ray

        (found,) = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        return str(found)


def needs_gpu_reservation(config: Config, resources: Mapping[str, float]) -> bool:
    """Whether a run computes on a GPU that Ray has to set aside, on a node that has these resources in all.

    A `model.device` with a number is taken at its word, and Ray does not know of it.
    """
    from trailnotes.policies.hf.policy import resolve_device

    device = resolve_device(config.model.device)
    return device.type == "cuda" and device.index is None and resources.get("GPU", 0.0) >= 1


def reserve_gpu(config: Config, here: Any) -> Any:
    """Set a GPU of this machine aside, and compute on it from here on.

    Args:
        config: of the run, which `needs_gpu_reservation`.
        here: the scheduling strategy that places an actor on the node of this process.

    Returns:
        The actor that keeps it, as long as it is referred to.

    Raises:
        ClusterError: others have all of them, or this process does not see the one that Ray gives.
    """
    import ray
    import torch

    seat = ray.remote(GpuReservation).options(num_cpus=0, num_gpus=1, scheduling_strategy=here).remote()
    who = "a GPU of this machine for the process of the run (if others have them all, start it elsewhere)"
    gpu = get_result(seat.gpu.remote(), Deadline(lambda: who, config.cluster.timeout, "cluster.timeout"))
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if visible and gpu not in visible:
        named = ",".join(visible)
        raise ClusterError(
            f"Ray gives GPU {gpu} to the process of the run, whose CUDA_VISIBLE_DEVICES is {named}: unset it"
        )
    torch.cuda.set_device(visible.index(gpu) if visible else int(gpu))
    return seat
