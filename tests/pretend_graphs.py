"""CUDA graphs on the pretend device: what is captured is undone, and a replay computes it again on the same tensors.

As on CUDA, a capture refuses what waits for the device and what reads memory of the host, and a replay knows none of
the host's values as they are by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pretend_device import WAITS, PretendTensor, bind, is_written, tensors_in


class RecordedGraph(TorchDispatchMode):
    """Stand-in for `torch.cuda.CUDAGraph`."""

    made: list[RecordedGraph]

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0
        self._before: list[tuple[Tensor, Tensor]] = []  # what was written to, and a copy
        self.made.append(self)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for argument, value in bind(operation, args, kwargs or {}):
            for tensor in tensors_in(value):
                if not isinstance(tensor, PretendTensor) and tensor.dim():
                    raise RuntimeError(f"{operation} reads memory of the host during a capture")
                if is_written(argument):
                    self._before.append((tensor.held, tensor.held.clone()))
        waits = WAITS.total()
        found = operation(*args, **(kwargs or {}))
        if WAITS.total() > waits:
            raise RuntimeError(f"{operation} waits for the device during a capture")
        self.calls.append((operation, args, kwargs or {}, found))
        return found

    @contextmanager
    def capture(self) -> Iterator[None]:
        with self:
            yield
        for tensor, before in reversed(self._before):
            tensor.copy_(before)

    def replay(self) -> None:
        self.replays += 1
        for operation, args, kwargs, found in self.calls:
            again = operation(*args, **kwargs)
            for old, new in zip(tensors_in(found), tensors_in(again), strict=True):
                old.copy_(new)


def record_graphs(monkeypatch: pytest.MonkeyPatch) -> list[RecordedGraph]:
    """Put the stand-ins in the place of torch's; return the graphs that are made from here on."""
    monkeypatch.setattr(RecordedGraph, "made", [], raising=False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_options: graph.capture())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    return RecordedGraph.made
