"""The processes that share one update: who they are, which rows each takes, and what they tell each other.

Every rank runs the same lines of the learner on the same rows. They part where rows become tensors (`passes`),
and meet again where sums are taken (`Ranks.sum`, `Ranks.gather`). With one process both are nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from trailnotes.learner.samples import HasTokenIds, PackingMode, make_microbatches

T = TypeVar("T")
GatheredCall = Callable[..., Any]
"""Calls a function with arguments while the outer weights of a model (embedding, last norm, head) are whole."""


class Ranks(Protocol):
    """One process among `world`."""

    rank: int
    world: int
    device: torch.device | None  # where this one computes; None: where its model is
    talk: ProcessGroup | None  # of all ranks, for what is no tensor
    dtype: torch.dtype | None  # what trained weights are rounded to when they are handed out; None: not at all

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks."""
        ...

    def gather(self, value: T) -> list[T]:
        """The value of each rank, in their order; anything that can be pickled."""
        ...

    def shard(self, model: nn.Module) -> GatheredCall:
        """Leave to this rank its part of the model's weights; what reads them from now on goes through the result."""
        ...

    def reshard(self, model: nn.Module) -> None:
        """Forget whatever is whole of the model's weights."""
        ...

    def swap_weights(self, model: nn.Module, weights: Mapping[nn.Parameter, Tensor]) -> Any:
        """A context in which these parameters of the model hold other values, shaped as their own parts."""
        ...


class SingleRank:
    """The only process. Everything stays as it is."""

    rank = 0
    world = 1
    device: torch.device | None = None
    talk: ProcessGroup | None = None
    dtype: torch.dtype | None = None

    def sum(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def gather(self, value: T) -> list[T]:
        """Nobody else has any."""
        return [value]

    def shard(self, _model: nn.Module) -> GatheredCall:
        """All of the model stays here."""
        return call_directly

    def reshard(self, _model: nn.Module) -> None:
        """Nothing was gathered."""

    @contextmanager
    def swap_weights(self, _model: nn.Module, weights: Mapping[nn.Parameter, Tensor]) -> Iterator[None]:
        """Other tensors in the place of the parameters'; nothing is copied."""
        now = {parameter: parameter.data for parameter in weights}
        try:
            for parameter, data in weights.items():
                parameter.data = data
            yield
        finally:
            for parameter, data in now.items():
                parameter.data = data


def call_directly(function: Callable[..., T], *arguments: Any) -> T:
    """Just call it."""
    return function(*arguments)


def distribute_rows(samples: Sequence[HasTokenIds], world: int) -> list[list[int]]:
    """Share rows out so that each rank has as many, and as long ones.

    From the longest to the shortest, forth and back: 0 1 2 2 1 0 0 1 ... So what is computed at the same time is of
    similar length, and nobody waits long for anybody.

    Returns:
        For each rank indices into `samples`, ascending; () where there are fewer rows than ranks.
    """
    shares: list[list[int]] = [[] for _ in range(world)]
    for place, i in enumerate(sorted(range(len(samples)), key=lambda i: -len(samples[i].token_ids))):
        turn, seat = divmod(place, world)
        shares[world - 1 - seat if turn % 2 else seat].append(i)
    return [sorted(share) for share in shares]


def split_microbatches(
    samples: Sequence[HasTokenIds], max_tokens: int, ranks: Ranks, joining: PackingMode = "padded"
) -> list[list[int]]:
    """The micro-batches of this rank, as many as of any other.

    A pass through a sharded model is one of all ranks, so who has fewer micro-batches gets empty ones; whoever meets
    one must pass something through the model that does not count.

    Args:
        samples: rows, the same on every rank.
        max_tokens: of a micro-batch, see `make_microbatches`.
        ranks: who shares them.
        joining: see `make_microbatches`.

    Returns:
        Indices into `samples`. Over all ranks each stands in exactly one micro-batch.
    """
    if ranks.world == 1:
        return make_microbatches(samples, max_tokens, joining)
    cuts = []
    for share in distribute_rows(samples, ranks.world):
        batches = make_microbatches([samples[i] for i in share], max_tokens, joining)
        cuts.append([[share[i] for i in batch] for batch in batches])
    own = cuts[ranks.rank]
    return own + [[] for _ in range(max(map(len, cuts)) - len(own))]
