"""A learner that several processes share: one from the config of a run, where it needs more than one."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError, LearnerError
from trailnotes.learner.building import build_rank, build_single
from trailnotes.learner.learner import Learner
from trailnotes.learner.process_group import (
    LearnerGroup,
    get_torchrun_rank,
    init_process_group,
    resolve_device_type,
)
from trailnotes.learner.ranks import SHARED_ERRORS, RankMonitor, start_ranks
from trailnotes.learner.samples import Ranks
from trailnotes.policies.hf.adapters import get_trained_parameters
from trailnotes.types import Sample

RankStarter = Callable[[], RankMonitor]
"""Starts the other ranks of a run."""


def make_learner(
    config: Config, model: Any, reference: Any, dump_dir: Path | None, start: RankStarter | None = None
) -> Learner | ShardedLearner:
    """Make what updates the model of a run: this process alone, or `learner.world_size` of them.

    `reference` is the reference model, of which several processes load their own; the rest is as in `ShardedLearner`.
    """
    if config.learner.world_size == 1:
        return build_single(config, model, reference, dump_dir)
    return ShardedLearner(config, model, dump_dir, start)


class ShardedLearner:
    """A `Learner` whose model is split over `learner.world_size` processes, of which this is rank 0.

    It announces each call to the other ranks, does the same itself, and copies new weights to the model that acts. A
    failure of any rank ends all: the call under way raises `LearnerError` with the reason.

    Args:
        config: of the run.
        model: the one that acts here. None: it acts elsewhere.
        dump_dir: for batches whose loss or gradient is not finite; beside the checkpoints.
        start: starts the other ranks on other machines; None: on this one, unless torchrun has started them.
    """

    def __init__(
        self, config: Config, model: Any = None, dump_dir: Path | None = None, start: RankStarter | None = None
    ) -> None:
        if start and get_torchrun_rank():
            raise ConfigError("torchrun started the processes of the learner: leave cluster.address empty, or torchrun")
        self.model = model
        self._names: dict[str, Any] = get_trained_parameters(model) if model is not None else {}
        own = model is not None and hasattr(model, "disable_adapter")
        self._start = {p: p.detach().clone() for p in model.parameters() if p.requires_grad} if own else {}
        self._group: LearnerGroup | None = None
        self._monitor = (start or partial(start_ranks, config))()
        atexit.register(self.close)
        try:
            with self._abort_on_error():
                self._group = init_process_group(
                    0, config.learner.world_size, resolve_device_type(config), config.learner.timeout,
                    self._monitor.store, interface=self._monitor.interface, local_rank=self._monitor.local_rank,
                )  # fmt: skip
                dumps = dump_dir and dump_dir.absolute()  # a rank may work in another directory
                self._group.broadcast_call(("build", (config, dumps), {}))
                self._learner = build_rank(self._group, config, dumps)
        except BaseException:
            self._abort()
            raise

    @property
    def steps(self) -> int:
        return self._learner.steps

    def logprobs(self, samples: Sequence[Sample], *, of_start: bool = False) -> list[tuple[float, ...]]:
        rows: list[tuple[float, ...]] = self._call("logprobs", list(samples), of_start=of_start)
        return rows

    def update(self, samples: Sequence[Sample], seed: int = 0, lr_scale: float = 1.0) -> dict[str, float]:
        metrics: dict[str, float] = self._call("update", list(samples), seed, lr_scale)
        self._copy_to_policy()
        return metrics

    def weights(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = self._call("weights")
        return tensors

    def export(self, path: Path, tokenizer: Any = None) -> None:
        self._call("export", path.absolute(), tokenizer)

    def save(self, path: Path) -> None:
        self._call("save", path.absolute())  # all ranks must see it

    def load(self, path: Path) -> None:
        self._call("load", path.absolute())
        self._copy_to_policy()

    @contextmanager
    def use_initial_adapters(self) -> Iterator[None]:
        with Ranks().swap_weights(self.model, self._start):
            yield

    def close(self) -> None:
        atexit.unregister(self.close)
        group, self._group = self._group, None
        if group is not None:
            with suppress(RuntimeError):
                group.broadcast_call(None)
                dist.destroy_process_group()
        self._monitor.end(at_once=group is None)

    def _call(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        if self._group is None:
            raise LearnerError("the processes of the learner have ended: start the run again, and it resumes")
        with self._abort_on_error():
            self._group.broadcast_call((name, arguments, keywords))
            return getattr(self._learner, name)(*arguments, **keywords)

    @contextmanager
    def _abort_on_error(self) -> Iterator[None]:
        """Kill all ranks on an error of the block that is not shared by all, and raise it with its cause."""
        try:
            with self._monitor.watch():
                yield
        except SHARED_ERRORS:
            raise
        except RuntimeError as error:
            reason = self._monitor.explain(error)
            self._abort()
            raise LearnerError(reason) from error
        except BaseException:  # such as a second Ctrl-C: the others are in the middle of the call
            self._abort()
            raise

    def _abort(self) -> None:
        self._group = None
        self._monitor.end(at_once=True)
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()

    @torch.no_grad()
    def _copy_to_policy(self) -> None:
        if self.model is not None:
            for name, tensor in self.weights().items():
                self._names[name].copy_(tensor)
