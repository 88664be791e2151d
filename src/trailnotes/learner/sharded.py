"""The learner of rank 0, behind which several processes share each update.

To a run it is a `Learner`: it announces each call to the other ranks, and does the same itself. The model that acts is
not among them; it gets the new weights after each update.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable, Iterator, Sequence
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
    bind_interface,
    get_torchrun_rank,
    init_process_group,
    resolve_device_type,
    validate_world_size,
)
from trailnotes.learner.processes import start_processes
from trailnotes.learner.rank import SHARED_ERRORS
from trailnotes.learner.rank_handles import RankMonitor, describe_rank_0_failure
from trailnotes.learner.ranks import SingleRank
from trailnotes.policies.hf.adapters import get_trained_parameters
from trailnotes.types import Sample

RankStarter = Callable[[], RankMonitor]
"""Starts the other ranks of a run."""


def make_learner(
    config: Config, model: Any, reference: Any, dump_dir: Path | None, start: RankStarter | None = None
) -> Learner | ShardedLearner:
    """What updates the model of a run: this process alone, or `learner.world_size` of them.

    Args:
        config: of the run.
        model: the one that acts here: trained itself, or given what is trained. None: it acts elsewhere.
        reference: the start model; several processes load their own.
        dump_dir: where a batch is written whose loss or gradient is not finite; beside the checkpoints.
        start: of several processes the others, which are on other machines, too; None: on this one, unless torchrun
            has started them.

    Raises:
        ConfigError: more processes than devices, or settings that do not fit the model.
        LearnerError: a process did not start.
    """
    if config.learner.world_size == 1:
        return build_single(config, model, reference, dump_dir)
    return ShardedLearner(config, model, dump_dir, start)


class ShardedLearner:
    """A `Learner` whose model is split over `learner.world_size` processes, of which this is rank 0.

    The others are started here, by torchrun beside this process, or wherever `start` has them. A failure of any ends
    all: the next call, or the one under way, raises `LearnerError` with the reason.

    Args:
        config: of the run; each rank loads `config.model` for itself.
        model: the one that acts in this process, of the same start weights, or None.
        dump_dir: see `Learner`.
        start: see `make_learner`.

    Raises:
        ConfigError: as `make_learner`; so `LearnerError`.
    """

    def __init__(
        self, config: Config, model: Any = None, dump_dir: Path | None = None, start: RankStarter | None = None
    ) -> None:
        given = get_torchrun_rank()
        if given and start:
            raise ConfigError("torchrun started the processes of the learner: leave cluster.address empty, or torchrun")
        if given:
            validate_world_size(config)
        self.model = model
        self._names: dict[str, Any] = get_trained_parameters(model) if model is not None else {}
        own = model is not None and hasattr(model, "disable_adapter")
        self._start = {p: p.detach().clone() for p in model.parameters() if p.requires_grad} if own else {}
        world, kind = config.learner.world_size, resolve_device_type(config)
        dumps = dump_dir and dump_dir.absolute()  # others may be at work elsewhere
        self._circle: LearnerGroup | None = None
        self._followers = None if given else (start or partial(start_processes, config))()
        atexit.register(self.close)
        try:
            with self._monitor_ranks():
                self._circle = self._init_process_group(world, kind, config.learner.timeout)
                self._circle.broadcast_call(("build", (config, dumps), {}))
                self._learner = build_rank(self._circle, config, dumps)
        except BaseException:
            self._abort_ranks()
            raise

    def _init_process_group(self, world: int, kind: str, seconds: float) -> LearnerGroup:
        if self._followers is None:
            return init_process_group(0, world, kind, seconds)
        with bind_interface(self._followers.interface):
            return init_process_group(0, world, kind, seconds, self._followers.store())

    @property
    def steps(self) -> int:
        """Optimiser steps so far."""
        return self._learner.steps

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self._learner.device

    def logprobs(self, samples: Sequence[Sample], *, of_start: bool = False) -> list[tuple[float, ...]]:
        """See `Learner.logprobs`."""
        found: list[tuple[float, ...]] = self._call_all_ranks("logprobs", list(samples), of_start=of_start)
        return found

    def update(self, samples: Sequence[Sample], seed: int = 0, lr_scale: float = 1.0) -> dict[str, float]:
        """See `Learner.update`; the model that acts is as the trained one afterwards."""
        metrics: dict[str, float] = self._call_all_ranks("update", list(samples), seed, lr_scale)
        self._copy_to_policy()
        return metrics

    def weights(self) -> dict[str, Tensor]:
        """See `Learner.weights`."""
        found: dict[str, Tensor] = self._call_all_ranks("weights")
        return found

    def export(self, path: Path, tokenizer: Any = None) -> None:
        """See `Learner.export`."""
        self._call_all_ranks("export", path.absolute(), tokenizer)

    def save(self, path: Path) -> None:
        """See `Learner.save`; all ranks must see `path`."""
        self._call_all_ranks("save", path.absolute())

    def load(self, path: Path) -> None:
        """See `Learner.load`."""
        self._call_all_ranks("load", path.absolute())
        self._copy_to_policy()

    @contextlib.contextmanager
    def use_initial_adapters(self) -> Iterator[None]:
        """The adapters of the model that acts as they were before any update."""
        with SingleRank().swap_weights(self.model, self._start):
            yield

    def close(self) -> None:
        """Send the other ranks home; those that do not go are killed."""
        atexit.unregister(self.close)
        circle, self._circle = self._circle, None
        if circle is not None:
            with contextlib.suppress(RuntimeError):
                circle.broadcast_call(None)
                circle.destroy()
        if self._followers is not None:
            self._followers.end(at_once=circle is None)

    def _call_all_ranks(self, name: str, *given: Any, **named: Any) -> Any:
        """Have every rank call this method of its learner, and return what this one's gives."""
        if self._circle is None:
            raise LearnerError("the processes of the learner have ended: start the run again, and it resumes")
        with self._monitor_ranks():
            self._circle.broadcast_call((name, given, named))
            return getattr(self._learner, name)(*given, **named)

    @contextlib.contextmanager
    def _monitor_ranks(self) -> Iterator[None]:
        """While the other ranks are needed: whatever stops one stops all, with its reason."""
        if self._followers is not None:
            self._followers.set_busy(True)
        try:
            yield
        except SHARED_ERRORS:
            raise
        except RuntimeError as error:
            reason = (
                self._followers.describe_failure(error)
                if self._followers is not None
                else describe_rank_0_failure(error)
            )
            self._abort_ranks()
            raise LearnerError(reason) from error
        except BaseException:  # such as a second Ctrl-C: the others are in the middle of something
            self._abort_ranks()
            raise
        finally:
            if self._followers is not None:
                self._followers.set_busy(False)

    def _abort_ranks(self) -> None:
        """End the others as they are."""
        circle, self._circle = self._circle, None
        if self._followers is not None:
            self._followers.end(at_once=True)
        if circle is not None or dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()

    @torch.no_grad()
    def _copy_to_policy(self) -> None:
        """Give the trained weights to the model that acts."""
        if self.model is not None:
            for name, tensor in self.weights().items():
                self._names[name].copy_(tensor)
