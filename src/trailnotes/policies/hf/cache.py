"""The KV cache of a batch of live episodes: one slot for each, with position j in column j."""

from __future__ import annotations

import contextlib
import ctypes
import resource
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from trailnotes.policies.hf.attention import take_rows

MIN_CAPACITY = 64  # columns of a new cache
MIN_SLOTS = 8


@dataclass(frozen=True, slots=True)
class CacheAccess:
    """Columns that one forward pass of B rows and S new tokens writes, and those that its attention reads."""

    slots: slice | Tensor  # of the B rows
    written: tuple[Tensor, Tensor]  # (B, 1) slots, and (B, S) columns of each
    length: int  # columns read
    place: Tensor | None = None  # (B, S) where rows share new tokens: which of these each column is; see `SharedRows`
    # By number of heads: where a layer writes, in its keys as (slots * heads * capacity, head_dim).
    index: dict[int, Tensor] = field(default_factory=dict)


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, as two arrays (slots, kv_heads, capacity, head_dim), made at the first write."""

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self.cache, self.keys, self.values = cache, torch.empty(0), torch.empty(0)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate zeros (a masked column must be finite: 0 * nan would spread)."""
        slots, capacity = self.cache.num_slots, self.cache.capacity
        self.keys, self.values = (
            states.new_zeros(slots, states.shape[1], capacity, states.shape[3]) for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new columns, (B, kv_heads, S, head_dim); return all that the attention reads."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        access, columns_read = self.cache.access, list[Tensor]()
        written = self.cache.index_columns(self.keys.shape[1])
        for stored, states in ((self.keys, key_states), (self.values, value_states)):
            if access.place is not None:
                states = take_rows(states, access.place)  # noqa: PLW2901
            stored.view(-1, stored.shape[-1]).index_copy_(0, written, states.reshape(len(written), -1))
            read = stored[access.slots] if isinstance(access.slots, slice) else stored.index_select(0, access.slots)
            columns_read.append(read[:, :, : access.length])
        return columns_read[0], columns_read[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002
        return self.cache.access.length, 0

    def get_seq_length(self) -> int:
        return self.cache.access.length  # rows differ, so positions are always passed explicitly

    def get_max_length(self) -> int:
        return -1  # the cache grows


class SlotCache(Cache):  # type: ignore[misc]
    """KV cache of all layers, with one slot for each live episode. `access` is set before each forward pass.

    Position j of an episode always stays in column j of its slot, so an episode grows at its end and is rolled back by
    forgetting its last columns. Padding on the right writes columns that are masked, and overwritten by later tokens.
    """

    def __init__(self) -> None:
        self.num_slots = self.capacity = 0
        self.access: CacheAccess
        super().__init__(layer_class_to_replicate=lambda: SlotLayer(self))

    def reserve(self, slots: int, columns: int) -> None:
        """Make room for this many slots and columns; either grows by a quarter at least, or a little more."""
        new_slots, new_capacity = self.num_slots or MIN_SLOTS, self.capacity or MIN_CAPACITY
        if new_slots < slots:
            new_slots = max(slots, new_slots + new_slots // 4)
        while new_capacity < columns:  # a long episode and the tip about it must not cost twice its memory
            new_capacity += max(MIN_CAPACITY, 2 ** (new_capacity.bit_length() - 3))
        if (new_slots, new_capacity) == (self.num_slots, self.capacity):
            return
        for layer in self.layers:
            # One array at a time, so that only one of the old ones is in memory besides.
            layer.keys = _resize_tensor(layer.keys, new_slots, new_capacity)
            layer.values = _resize_tensor(layer.values, new_slots, new_capacity)
        self.num_slots, self.capacity = new_slots, new_capacity
        if self.layers:
            trim_heap(self.layers[0].keys.device)

    def index_columns(self, heads: int) -> Tensor:
        """Compute where this pass writes in a layer of this many heads, once for all such layers: (B * heads * S,)."""
        access = self.access
        if heads not in access.index:
            slots, columns = (each[:, None, :] for each in access.written)
            head = torch.arange(heads, device=columns.device)[:, None]
            access.index[heads] = ((slots * heads + head) * self.capacity + columns).flatten()
        return access.index[heads]

    def advance(self) -> None:
        """Let the next pass write and read one column further."""
        for place in (self.access.written[1], *self.access.index.values()):
            place.add_(1)
        self.access = replace(self.access, length=min(self.access.length + 1, self.capacity))

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        for layer in self.layers:
            for stored in (layer.keys, layer.values):
                stored[target, :, :length] = stored[source, :, :length]

    def clear(self) -> None:
        self.layers.clear()
        self.num_slots = self.capacity = 0


def trim_heap(device: torch.device) -> None:
    """Return freed memory of a CPU to the machine: tensors of other sizes do not fit the gaps of earlier ones.

    A process that never held 2 GiB keeps its pages: taking them anew cost a tiny model a sixth of its processor time.
    """
    if device.type != "cpu" or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 * 1024**2:  # in KiB
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _resize_tensor(old: Tensor, slots: int, capacity: int) -> Tensor:
    new = old.new_zeros(slots, old.shape[1], capacity, old.shape[3])
    new[: old.shape[0], :, : old.shape[2]] = old
    return new
