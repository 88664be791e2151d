"""Decoding by a static step: one function over tensors that stay where they are, so that a GPU can replay it.

A CPU runs the step as it is. A GPU records it as a CUDA graph for each number of rows and columns, so that the host
launches one graph a token instead of 1,500 kernels. This is experimental: no GPU has run it yet.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trailnotes.policies.hf.cache import CacheAccess
from trailnotes.policies.hf.decoder import Decoder, Slot, SlotDecoder, SlotInput, upload
from trailnotes.policies.hf.sampling import Logprobs, TokenSampler, draw_tokens, draw_uniforms
from trailnotes.types import Sampling

logger = logging.getLogger(__name__)
LENGTH_STEP = 256  # a step reads a multiple of these columns


class StaticDecoder(SlotDecoder):
    """Decoder by static steps: row i is slot i, and where it draws no token, it computes one column again and again."""

    def __init__(self, plain: SlotDecoder) -> None:
        super().__init__(
            plain.network, plain.context_length, plain.windows, shared_prompts=plain.shared_prompts,
            own_attention=plain.gapless, burst=plain.burst,
        )  # fmt: skip
        self.cache.capacity = self.context_length + -self.context_length % LENGTH_STEP
        self.captures = self.network.model.device.type != "cpu"
        self._pool = torch.cuda.graph_pool_handle() if self.captures else None
        self._graphs: dict[tuple[int, int, bool], Any] = {}
        self._addresses: tuple[int, ...] = ()  # of all weights; () = to be looked up
        self._valid_for: tuple[Any, ...] = ()  # cache, weights and ends that the graphs know

    @torch.inference_mode()
    def free_memory(self) -> None:
        """Keep the arrays of the cache, whose addresses the graphs know, and write 0, in case that they hold nan."""
        for layer in self.cache.layers:
            layer.keys.zero_()
            layer.values.zero_()
        self._addresses = ()

    @torch.inference_mode()
    def decode(self, rows: Sequence[SlotInput], sample: TokenSampler, num: int) -> tuple[list[list[int]], Logprobs]:
        if any(len(new) > 1 or new[0] in sample.end_ids for _, new in rows):  # what a step appends ends a row
            return super().decode(rows, sample, num)
        tokens = upload([new[0] for _, new in rows], self.network.model.device)
        self._continue([slot for slot, _ in rows], tokens, sample, num)
        drawn = sample.read()
        for (slot, new), sampled in zip(rows, drawn[0], strict=True):
            self._ids[slot] += [*new, *sampled[:-1]]
        return drawn

    def _continue(self, slots: Sequence[Slot], drawn: Tensor, sample: TokenSampler, num: int) -> None:
        self.cache.reserve(max(slots) + 1, 0)
        rows = min(1 << max(slots).bit_length(), self.cache.num_slots)
        lengths = np.array([len(self._ids.get(slot, ())) for slot in range(rows)])
        columns = int(lengths[slots].max()) + num
        columns = min(columns + -columns % LENGTH_STEP, self.cache.capacity)
        self._allocate(max(num, self.burst), sample.end_ids)
        integers, numbers = np.zeros(self._integers.shape, np.int64), np.zeros(self._numbers.shape, np.float32)
        begun = len(sample.drawn)
        integers[1, :rows] = np.minimum(lengths, self.cache.capacity - 1)  # surplus of a burst may exceed it
        integers[2:, slots] = sample.room - begun, sample.top_k
        numbers[: 2 + num, slots] = np.delete(sample.numbers, slice(2, 2 + begun), axis=0)
        self._integers.copy_(torch.from_numpy(integers), non_blocking=True)
        self._numbers.copy_(torch.from_numpy(numbers), non_blocking=True)
        self._index.zero_()
        chosen = upload(slots, drawn.device)
        self._integers[0].index_copy_(0, chosen, drawn)
        for _ in range(num):
            self._run_step(rows, columns, sample.is_limited)
        sample.drawn += self._output[:num].index_select(2, chosen).unbind()

    def _allocate(self, num: int, end_ids: frozenset[int]) -> None:
        """Make the tensors of a step, and drop all graphs, unless these are still of this cache and these weights."""
        model, slots = self.network.model, self.cache.num_slots
        self._addresses = self._addresses or tuple(each.data_ptr() for each in (*model.parameters(), *model.buffers()))
        before, self._valid_for = self._valid_for, (num, end_ids, slots, self.cache.capacity, self._addresses)
        if before != self._valid_for:
            self._graphs.clear()
            self._end_ids = upload(sorted(end_ids), model.device)
            self._integers = self._end_ids.new_zeros(4, slots)  # token, position, tokens left to draw, top-k
            self._numbers = torch.zeros(2 + num, slots, device=model.device)  # temperature, top-p, uniform numbers
            self._output = self._end_ids.new_zeros(num, 2, slots)  # as of `draw_tokens`; -1 is no token
            self._index = self._end_ids.new_zeros(1)  # of the step

    def _run_step(self, *sizes: Any) -> None:
        """Run the first step of these sizes as it is, which warms up what a capture may not do; replay the others."""
        if not self.captures or sizes not in self._graphs:
            self._graphs[sizes] = None
            self._step(*sizes)
            return
        if self._graphs[sizes] is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                self._step(*sizes)
            self._graphs[sizes] = graph
        self._graphs[sizes].replay()

    def _step(self, rows: int, columns: int, is_limited: bool) -> None:
        """Append a token to each of the first slots, and draw the next."""
        token, position, left, top_k = self._integers[:, :rows]
        temperature, top_p = self._numbers[:2, :rows]
        slots = torch.arange(rows, device=token.device)
        self.cache.access = CacheAccess(slice(0, rows), (slots[:, None], position[:, None]), columns)
        logits = self._run(token[:, None], position[:, None], np.zeros(rows, dtype=np.int64))
        uniforms = self._numbers[2:, :rows].index_select(0, self._index)[0]
        drawn, bits = draw_tokens(logits, uniforms, temperature, (top_k, top_p) if is_limited else None)
        draws = left.masked_fill_((token[:, None] == self._end_ids).any(dim=-1), 0) > 0
        self._output[:, :, :rows].index_copy_(0, self._index, torch.stack((torch.where(draws, drawn, -1), bits))[None])
        token.copy_(torch.where(draws, drawn, token))
        position.add_(draws)
        left.sub_(1)
        self._index.add_(1)


def make_static(plain: Decoder) -> Decoder:
    """Wrap a decoder that keeps a cache in one that runs static steps; return `plain` if the model has no such step."""
    if not isinstance(plain, SlotDecoder):
        return plain
    try:
        decoder, prompt = StaticDecoder(plain), [3, 2]
        sample = TokenSampler([(Sampling(), draw_uniforms(0, 4))], 4)
        (tokens,), logprobs = decoder.decode([(decoder.acquire(), prompt)], sample, 4)
        decoder.release(0)
        decoder.free_idle()
        tolerance = 1e-3 if plain.network.model.dtype == torch.float32 else 0.5
        if not np.allclose(logprobs, plain.network.score_replies(prompt, [tokens]), rtol=0.0, atol=tolerance):
            raise ValueError("it differs from a forward pass without a cache")  # noqa: TRY301 - as any other failure
    except (AttributeError, TypeError, ValueError, RuntimeError, LookupError) as error:
        logger.warning("engine.graphs is left out, since the static step of this model fails: %r", error)
        return plain
    return decoder
