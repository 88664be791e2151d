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
from trailnotes.learner.building import build_alone, build_rank
from trailnotes.learner.learner import Learner
from trailnotes.learner.process_group import (
    Circle,
    device_type_of,
    kept_to,
    meet,
    refuse_too_many,
    started_by_torchrun,
)
from trailnotes.learner.processes import start_processes
from trailnotes.learner.rank import ALIKE
from trailnotes.learner.rank_handles import Followers, told_alone
from trailnotes.learner.ranks import Alone
from trailnotes.policies.hf.adapters import trained_parameters
from trailnotes.types import Sample

Start = Callable[[], Followers]
"""Starts the other ranks of a run."""


def make_learner(
    config: Config, model: Any, reference: Any, dump_dir: Path | None, start: Start | None = None
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
        return build_alone(config, model, reference, dump_dir)
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
        self, config: Config, model: Any = None, dump_dir: Path | None = None, start: Start | None = None
    ) -> None:
        given = started_by_torchrun()
        if given and start:
            raise ConfigError("torchrun started the processes of the learner: leave cluster.address empty, or torchrun")
        if given:
            refuse_too_many(config)
        self.model = model
        self._names: dict[str, Any] = trained_parameters(model) if model is not None else {}
        own = model is not None and hasattr(model, "disable_adapter")
        self._start = {p: p.detach().clone() for p in model.parameters() if p.requires_grad} if own else {}
        world, kind = config.learner.world_size, device_type_of(config)
        dumps = dump_dir and dump_dir.absolute()  # others may be at work elsewhere
        self._circle: Circle | None = None
        self._followers = None if given else (start or partial(start_processes, config))()
        atexit.register(self.close)
        try:
            with self._answering():
                self._circle = self._meet(world, kind, config.learner.timeout)
                self._circle.announce(("build", (config, dumps), {}))
                self._learner = build_rank(self._circle, config, dumps)
        except BaseException:
            self._drop()
            raise

    def _meet(self, world: int, kind: str, seconds: float) -> Circle:
        if self._followers is None:
            return meet(0, world, kind, seconds)
        with kept_to(self._followers.interface):
            return meet(0, world, kind, seconds, self._followers.store())

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
        found: list[tuple[float, ...]] = self._all("logprobs", list(samples), of_start=of_start)
        return found

    def update(self, samples: Sequence[Sample], seed: int = 0, lr_scale: float = 1.0) -> dict[str, float]:
        """See `Learner.update`; the model that acts is as the trained one afterwards."""
        metrics: dict[str, float] = self._all("update", list(samples), seed, lr_scale)
        self._hand_over()
        return metrics

    def weights(self) -> dict[str, Tensor]:
        """See `Learner.weights`."""
        found: dict[str, Tensor] = self._all("weights")
        return found

    def export(self, path: Path, tokenizer: Any = None) -> None:
        """See `Learner.export`."""
        self._all("export", path.absolute(), tokenizer)

    def save(self, path: Path) -> None:
        """See `Learner.save`; all ranks must see `path`."""
        self._all("save", path.absolute())

    def load(self, path: Path) -> None:
        """See `Learner.load`."""
        self._all("load", path.absolute())
        self._hand_over()

    @contextlib.contextmanager
    def at_start(self) -> Iterator[None]:
        """The adapters of the model that acts as they were before any update."""
        with Alone().swapped(self.model, self._start):
            yield

    def close(self) -> None:
        """Send the other ranks home; those that do not go are killed."""
        atexit.unregister(self.close)
        circle, self._circle = self._circle, None
        if circle is not None:
            with contextlib.suppress(RuntimeError):
                circle.announce(None)
                circle.leave()
        if self._followers is not None:
            self._followers.end(at_once=circle is None)

    def _all(self, name: str, *given: Any, **named: Any) -> Any:
        """Have every rank call this method of its learner, and return what this one's gives."""
        if self._circle is None:
            raise LearnerError("the processes of the learner have ended: start the run again, and it resumes")
        with self._answering():
            self._circle.announce((name, given, named))
            return getattr(self._learner, name)(*given, **named)

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """While the other ranks are needed: whatever stops one stops all, with its reason."""
        if self._followers is not None:
            self._followers.busy(True)
        try:
            yield
        except ALIKE:
            raise
        except RuntimeError as error:
            reason = self._followers.what_failed(error) if self._followers is not None else told_alone(error)
            self._drop()
            raise LearnerError(reason) from error
        except BaseException:  # such as a second Ctrl-C: the others are in the middle of something
            self._drop()
            raise
        finally:
            if self._followers is not None:
                self._followers.busy(False)

    def _drop(self) -> None:
        """End the others as they are."""
        circle, self._circle = self._circle, None
        if self._followers is not None:
            self._followers.end(at_once=True)
        if circle is not None or dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()

    @torch.no_grad()
    def _hand_over(self) -> None:
        """Give the trained weights to the model that acts."""
        if self.model is not None:
            for name, tensor in self.weights().items():
                self._names[name].copy_(tensor)
