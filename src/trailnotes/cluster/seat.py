"""The GPU on which the process of the run computes, so that Ray gives it to nobody else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from trailnotes.cluster.waiting import Patience, result_of
from trailnotes.errors import ClusterError

if TYPE_CHECKING:
    from trailnotes.config.schema import Config


class Seat:
    """The actor: it has a GPU set aside, and leaves it to the process of the run."""

    def gpu(self) -> str:
        """What its GPU is called on its machine."""
        import ray

        (found,) = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        return str(found)


def take_gpu(config: Config, node: str) -> Any:
    """Set a GPU of this machine aside, and compute on it from here on.

    Args:
        config: of the run. A `model.device` with a number is taken at its word, and Ray does not know of it.
        node: of this process.

    Returns:
        The actor that keeps it, as long as it is referred to; None where there is nothing to set aside.

    Raises:
        ClusterError: others have all of them, or this process does not see the one that Ray gives.
    """
    import ray
    import torch
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from trailnotes.policies.hf.policy import device_of

    device = device_of(config.model.device)
    known = any(node == found["NodeID"] and found["Resources"].get("GPU") for found in ray.nodes())
    if device.type != "cuda" or device.index is not None or not known:
        return None
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    seat = ray.remote(Seat).options(num_cpus=0, num_gpus=1, scheduling_strategy=strategy).remote()
    who = "a GPU of this machine for the process of the run (if others have them all, start it elsewhere)"
    gpu = result_of(seat.gpu.remote(), Patience(lambda: who, config.cluster.timeout, "cluster.timeout"))
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if visible and gpu not in visible:
        named = ",".join(visible)
        raise ClusterError(
            f"Ray gives GPU {gpu} to the process of the run, whose CUDA_VISIBLE_DEVICES is {named}: unset it"
        )
    torch.cuda.set_device(visible.index(gpu) if visible else int(gpu))
    return seat
