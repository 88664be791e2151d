"""A causal LM of transformers: its two parts, as one function, and a KV cache with one slot for each live episode.

Policy and learner both need logits at a few positions only, and ask the same `split_model` whether the head alone gives
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

Ints = npt.NDArray[np.int64]

PROBE_SCALE = 100.0  # makes a soft cap or scale on the logits show, however small the weights of a fresh model are
MIN_CAPACITY = 64  # columns of a new cache
MIN_SLOTS = 8


class ModelParts(NamedTuple):
    """What gives hidden states, and what makes logits of them."""

    body: Any
    head: Any


def split_model(model: Any) -> ModelParts | None:
    """Decoder and output embedding, if these two alone give the logits of `model`; None if it does more to them.

    Found out on a few random tokens, with the output of the head scaled.

    Args:
        model: a causal LM of transformers, or a peft model around one.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    body = inner.get_decoder() if hasattr(inner, "get_decoder") else None
    head = inner.get_output_embeddings()
    if body in (None, inner) or head is None:
        return None
    try:
        return ModelParts(body, head) if _is_exact_split(inner, body, head) else None
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError):  # a body that is asked otherwise
        return None


@torch.no_grad()
def _is_exact_split(model: Any, body: Any, head: Any) -> bool:
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(model.get_input_embeddings().num_embeddings, (2, 8), generator=generator)
    token_ids = token_ids.to(model.device)
    with head.register_forward_hook(lambda _module, _inputs, output: output * PROBE_SCALE), switch_mode(model):
        expected = model(input_ids=token_ids, use_cache=False).logits.float()
        found = head(body(input_ids=token_ids, use_cache=False).last_hidden_state).float()
    tolerance = 1e-4 if head.weight.dtype == torch.float32 else 2e-2
    return expected.shape == found.shape and bool(
        (expected - found).abs().max() <= tolerance * expected.abs().max().clamp(min=1.0)
    )


@contextmanager
def switch_mode(model: nn.Module, training: bool = False) -> Iterator[None]:
    """Put `model` into evaluation (or training) mode for a while."""
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Put the weights of `model` into float32 for a while; they come back bit for bit."""
    before = [(weight, weight.dtype) for weight in model.parameters() if weight.dtype == torch.bfloat16]
    try:
        for weight, _ in before:
            weight.data = weight.data.float()
        yield
    finally:
        for weight, dtype in before:
            weight.data = weight.data.to(dtype)


def needs_training_mode(model: nn.Module) -> bool:
    """Whether to update in training mode.

    Dropout would keep the ratio from starting at 1, so it is on only inside adapters that were given one, and where
    transformers asks for the training mode before it recomputes activations.
    """
    return any(
        getattr(module, "gradient_checkpointing", False) or (isinstance(module, nn.Dropout) and "lora_dropout" in name)
        for name, module in model.named_modules()
    )


class Network:
    """A causal LM that gives logits at one position of each row.

    The head runs at these positions only, where `split_model` the model are all of it; other models are called as a whole.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.parts = split_model(model)

    @property
    def device(self) -> torch.device:
        """Device of the inputs."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the activations, and of an additive mask."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @torch.inference_mode()
    def __call__(self, last: Ints, **inputs: Any) -> Tensor:
        """Logits at column `last[row]`: (B,) -> (B, V)."""
        if self.model.training:
            self.model.eval()
        rows = torch.arange(len(last), device=self.device)
        columns = torch.from_numpy(last).to(self.device)
        if self.parts is None:
            logits: Tensor = self.model(**inputs).logits[rows, columns]
            return logits
        hidden = self.parts.body(**inputs).last_hidden_state
        picked: Tensor = self.parts.head(hidden[:, 0] if hidden.shape[1] == 1 else hidden[rows, columns])
        return picked

    @torch.inference_mode()
    def score_replies(self, prompt: Sequence[int], replies: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of each token of each reply to one prompt, at temperature 1, by a pass without any cache."""
        if self.model.training:
            self.model.eval()
        width, start = len(prompt) + max(map(len, replies)) - 1, len(prompt) - 1
        ids, mask = (np.zeros((len(replies), width), dtype=np.int64) for _ in range(2))
        for row, reply in enumerate(replies):
            ids[row, : start + len(reply)] = [*prompt, *reply[:-1]]
            mask[row, : start + len(reply)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask}
        given = {name: torch.from_numpy(array).to(self.device) for name, array in inputs.items()}
        if self.parts is not None:
            logits = self.parts.head(self.parts.body(**given, use_cache=False).last_hidden_state[:, start:])
        else:
            logits = self.model(**given, use_cache=False).logits[:, start:]
        found = torch.log_softmax(logits.float(), dim=-1)
        return [found[row, torch.arange(len(reply)), torch.tensor(reply)].tolist() for row, reply in enumerate(replies)]

    def reference_logits(self, ids: Sequence[int]) -> Tensor:
        """Logits after one sequence, by the plainest call there is: (V,)."""
        self.model.eval()
        with torch.inference_mode():
            logits: Tensor = self.model(torch.tensor([list(ids)], device=self.device), use_cache=False).logits[0, -1]
        return logits

    def make_probe_ids(self, num: int) -> list[int]:
        """Some token ids of the vocabulary."""
        return [(7 * index + 3) % self.model.get_input_embeddings().num_embeddings for index in range(num)]


def is_close_logits(got: Tensor, want: Tensor) -> bool:
    """Whether two rows of logits differ by rounding only."""
    tolerance = 1e-3 if want.dtype == torch.float32 else 0.1
    got, want = got.float(), want.float()
    return bool((got - want).norm() <= tolerance * (want - want.mean()).norm())


@dataclass(frozen=True, slots=True)
class CacheAccess:
    """Where one forward pass of B rows and S new columns writes, and what its attention reads."""

    slots: slice | Tensor  # of the B rows
    written: tuple[Tensor, Tensor]  # (B, 1) slots, and (B, S) columns of each
    length: int  # columns read


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer: two arrays (slots, kv_heads, capacity, head_dim), made at the first write.

    What one head reads of one slot lies together, as a matrix product wants it.
    """

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self.cache = cache

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
        assert self.keys is not None
        assert self.values is not None
        slots, columns = (index[:, None, :] for index in self.cache.access.written)
        heads = torch.arange(self.keys.shape[1], device=self.keys.device)[:, None]
        written = ((slots * len(heads) + heads) * self.cache.capacity + columns).flatten()  # (B * kv_heads * S,)
        return self._write_and_read(self.keys, key_states, written), self._write_and_read(
            self.values, value_states, written
        )

    def _write_and_read(self, stored: Tensor, states: Tensor, written: Tensor) -> Tensor:
        stored.view(-1, stored.shape[-1]).index_copy_(0, written, states.reshape(len(written), -1))
        access = self.cache.access
        read = stored[access.slots] if isinstance(access.slots, slice) else stored.index_select(0, access.slots)
        return read[:, :, : access.length]

    def copy(self, source: int, target: int, length: int) -> None:
        """Give one slot the first columns of another."""
        assert self.keys is not None
        assert self.values is not None
        for stored in (self.keys, self.values):
            stored[target, :, :length] = stored[source, :, :length]

    def resize(self, slots: int, capacity: int) -> None:
        """Copy into arrays of another size, of which only the common part is kept."""
        if self.is_initialized:
            assert self.keys is not None
            assert self.values is not None
            self.keys = _resize_tensor(self.keys, slots, capacity)
            self.values = _resize_tensor(self.values, slots, capacity)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002
        """Keys that the attention sees, and the position of the first."""
        return self.cache.access.length, 0

    def get_seq_length(self) -> int:
        """Columns read; rows differ, so positions are always passed explicitly."""
        return self.cache.access.length

    def get_max_length(self) -> int:
        """No limit: the cache grows."""
        return -1


class SlotCache(Cache):  # type: ignore[misc]
    """All layers, and which slots are taken. `access` is set before each forward pass.

    Position j of an episode always stands in column j of its slot, so an episode grows at its end, is rolled back by
    forgetting its last columns, and never moves. New tokens of several episodes are written with padding on the right;
    what padding writes is masked, and overwritten by the tokens that come later.
    """

    def __init__(self) -> None:
        self.num_slots = 0
        self.capacity = 0
        self.access = CacheAccess(
            slice(0, 0), (torch.empty(0, 1, dtype=torch.long), torch.empty(0, 0, dtype=torch.long)), 0
        )
        make_layer: Callable[[], SlotLayer] = lambda: SlotLayer(self)  # noqa: E731
        super().__init__(layer_class_to_replicate=make_layer)

    def reserve(self, slots: int, columns: int) -> None:
        """Make room for this many slots and columns; slots grow by doubling, columns by at most a quarter more."""
        new_slots, new_capacity = self.num_slots or MIN_SLOTS, self.capacity or MIN_CAPACITY
        while new_slots < slots:
            new_slots *= 2
        while new_capacity < columns:  # a long episode and the tip about it must not cost twice its memory
            new_capacity += max(MIN_CAPACITY, 2 ** (new_capacity.bit_length() - 3))
        if (new_slots, new_capacity) == (self.num_slots, self.capacity):
            return
        for layer in self.layers:
            layer.resize(new_slots, new_capacity)
        self.num_slots, self.capacity = new_slots, new_capacity

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Give one slot the first columns of another, in all layers."""
        for layer in self.layers:
            layer.copy(source, target, length)

    def clear(self) -> None:
        """Give all memory back."""
        self.layers.clear()
        self.num_slots = self.capacity = 0


def _resize_tensor(old: Tensor, slots: int, capacity: int) -> Tensor:
    """(slots, kv_heads, capacity, head_dim) of another size, zero where nothing was."""
    new = old.new_zeros(slots, old.shape[1], capacity, old.shape[3])
    new[: old.shape[0], :, : old.shape[2]] = old
    return new
