"""A causal LM of transformers as batched forward passes over the live episodes, with or without a KV cache.

`SlotDecoder` keeps the KV cache of every episode, for models whose layers all are attention, to the whole past or to a
window of it; `RecomputeDecoder` computes the context again, for all others. `make_decoder` tries the first on a few
tokens and takes it if its logits are the model's own. Policy and learner need logits at few positions, and both ask
`split_model` whether the head alone gives them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from trailnotes.policies.hf.attention import SharedRows, use_cached_attention
from trailnotes.policies.hf.cache import CacheAccess, SlotCache
from trailnotes.policies.hf.sampling import Logprobs, TokenSampler
from trailnotes.policies.prefixes import PrefixTree, iter_trees
from trailnotes.types import count_common_prefix

Ints = npt.NDArray[np.int64]

logger = logging.getLogger(__name__)
PROBE_SCALE = 100.0  # makes a soft cap or scale on the logits show, however small the weights of a fresh model are
MAX_TOKENS = 4096  # padded tokens in one forward pass
MIN_PADDING = 64  # padded tokens that cost less than one more forward pass
GPU_BURST = 8  # tokens that a GPU samples before the host reads them
MIN_SHARED = 16  # tokens that two prompts must begin with alike, for the second to take over their keys from the first

Slot = int
SlotInput = tuple[Slot, Sequence[int]]  # an episode's slot and its new tokens, at least one
Windows = Mapping[str, int]  # tokens that a kind of layer sees, as transformers names it; 0 = all
FULL_ATTENTION: Windows = {"full_attention": 0}


class ModelParts(NamedTuple):
    """Body that gives hidden states, and head that makes logits of them."""

    body: Any
    head: Any


def split_model(model: Any) -> ModelParts | None:
    """Split a causal LM, or the one in a peft model, into decoder and head; None if it does more to its logits.

    A pass over a few random tokens, with the output of the head scaled, finds that out.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    body = inner.get_decoder() if hasattr(inner, "get_decoder") else None
    head = inner.get_output_embeddings()
    if body in (None, inner) or head is None:
        return None
    generator = torch.Generator().manual_seed(0)
    try:
        ids = torch.randint(inner.get_input_embeddings().num_embeddings, (2, 8), generator=generator).to(inner.device)
        scaled = head.register_forward_hook(lambda _module, _inputs, output: output * PROBE_SCALE)
        with scaled, evaluation_mode(inner), torch.no_grad():
            expected = inner(input_ids=ids, use_cache=False).logits.float()
            logits = head(body(input_ids=ids, use_cache=False).last_hidden_state).float()
        tolerance = (1e-4 if head.weight.dtype == torch.float32 else 2e-2) * expected.abs().max().clamp(min=1.0)
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError):  # a body that is asked otherwise
        return None
    is_exact = expected.shape == logits.shape and bool((expected - logits).abs().max() <= tolerance)
    return ModelParts(body, head) if is_exact else None


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put all modules into evaluation mode; those that trained do so again after the block, and no others."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


class Network:
    """A causal LM that gives logits at one position of each row; other positions cost no head."""

    def __init__(self, model: Any) -> None:
        self.model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.parts = split_model(model)

    @torch.inference_mode()
    def __call__(self, last: Ints, *, rows: Tensor | None = None, **inputs: Any) -> Tensor:
        """Compute the logits at column `last[i]` of row `rows[i]`, by default of row i: (B,) -> (B, V)."""
        if self.model.training:
            self.model.eval()
        whole: Tensor = self.model(**inputs).logits if self.parts is None else self.parts.body(**inputs)[0]
        if rows is None and whole.shape[1] == 1:  # all rows are wanted, and each has one column
            chosen = whole[:, 0]
        else:
            rows = torch.arange(len(last), device=whole.device) if rows is None else rows
            chosen = whole[rows, upload(last, whole.device)]
        logits: Tensor = chosen if self.parts is None else self.parts.head(chosen)
        return logits

    @torch.inference_mode()
    def score_replies(self, prompt: Sequence[int], replies: Sequence[Sequence[int]]) -> list[list[float]]:
        """Score each token of each reply to one prompt without any cache, in nats at temperature 1."""
        if self.model.training:
            self.model.eval()
        start = len(prompt) - 1
        inputs = pad_rows([[*prompt, *reply[:-1]] for reply in replies], self.model.device)
        if self.parts is not None:
            logits = self.parts.head(self.parts.body(**inputs).last_hidden_state[:, start:])
        else:
            logits = self.model(**inputs).logits[:, start:]
        scores = torch.log_softmax(logits.float(), dim=-1)
        return [scores[i, torch.arange(len(reply)), torch.tensor(reply)].tolist() for i, reply in enumerate(replies)]


def upload(values: Ints | Sequence[int], device: torch.device) -> Tensor:
    """Copy integers to a device; the host does not wait for what the device is doing."""
    return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(device, non_blocking=True)


def pad_rows(rows: Sequence[Sequence[int]], device: torch.device) -> dict[str, Any]:
    """Make the inputs of a model that computes whole rows, padded on the right, without a cache."""
    ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.int64) for row in rows], batch_first=True)
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device), "use_cache": False}


class Decoder:
    """Contexts by slot: the token ids whose keys and values each taken slot holds, and the forward pass."""

    burst = 1  # tokens that `decode` may be asked for at a time

    def __init__(self, network: Network) -> None:
        self.network = network
        self._ids: dict[Slot, list[int]] = {}  # of idle slots, too
        self._idle: set[Slot] = set()  # released, with what a prompt may continue

    def resume(self, prompt: Sequence[int]) -> Slot | None:
        """Take an idle slot whose whole conversation this prompt continues."""

        def continues(ids: Sequence[int]) -> bool:  # up to the tokens behind the end of its last completion
            return count_common_prefix(ids, prompt, len(prompt) - 1) > max(0, len(ids) - self.burst)

        slot = next((slot for slot in sorted(self._idle) if continues(self._ids[slot])), None)
        if slot is not None:
            self._idle.remove(slot)
        return slot

    def acquire(self) -> Slot:
        """Take the lowest slot that is not taken; if all are idle, they are freed first."""
        if len(self._idle) == len(self._ids):
            self.free_idle()
        taken = self._ids.keys() - self._idle
        slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        self._ids[slot] = []
        self._idle.discard(slot)
        return slot

    def release(self, slot: Slot) -> None:
        """Leave a slot idle, for a prompt that continues its conversation, until another takes it."""
        self._idle.add(slot)

    def free_idle(self) -> None:
        """Forget the idle slots; with the last slot all memory goes."""
        for slot in self._idle:
            del self._ids[slot]
        self._idle.clear()
        if not self._ids:
            self.free_memory()

    def rewind(self, slot: Slot, prompt: Sequence[int]) -> int:
        """Roll a slot back to what it shares with a prompt; return how many tokens need not be computed."""
        length = count_common_prefix(self._ids[slot], prompt, len(prompt) - 1)  # one must go in for logits to come out
        del self._ids[slot][length:]
        return length

    def reset_cache(self) -> None:
        """Empty all slots after the weights have changed, and give their memory back."""
        self.free_idle()
        for ids in self._ids.values():
            ids.clear()
        self.free_memory()

    def free_memory(self) -> None:
        """Give back what is kept for all slots."""

    def extend(self, rows: Sequence[SlotInput]) -> Tensor:
        """Append new tokens to slots; return the logits after each row's last token, (n, V)."""
        raise NotImplementedError

    @torch.inference_mode()
    def decode(self, rows: Sequence[SlotInput], sample: TokenSampler, num: int) -> tuple[list[list[int]], Logprobs]:
        """Append new tokens to slots, then `num` sampled ones, but for the last.

        Returns the sampled tokens of each row and their log-probabilities. Those behind the end of a completion stay in
        its slot until `rewind`.
        """
        drawn = sample(self.extend(rows))
        slots = [slot for slot, _ in rows]
        if num > 1:
            self._continue(slots, drawn, sample, num - 1)
        tokens, logprobs = sample.read()
        for slot, sampled in zip(slots, tokens, strict=True):
            self._ids[slot].extend(sampled[:-1])
        return tokens, logprobs

    def _continue(self, slots: Sequence[Slot], drawn: Tensor, sample: TokenSampler, num: int) -> None:
        """Append the (n,) tokens `drawn` and all that are sampled next but the `num`th, without waiting for any."""
        raise NotImplementedError


class SlotDecoder(Decoder):
    """Decoder that appends only new tokens to the cache of each episode."""

    def __init__(
        self, network: Network, context_length: int, windows: Windows = FULL_ATTENTION, *,
        shared_prompts: bool = True, own_attention: bool = False, burst: int = 0,  # the model uses `attend`
    ) -> None:  # fmt: skip
        super().__init__(network)
        self.shared_prompts = shared_prompts
        self.shares_tokens = shared_prompts and own_attention and not any(windows.values())
        self.gapless = own_attention  # single tokens see all columns that there are, and mask what is not yet taken
        self.context_length, self.windows = context_length, windows
        self.burst = burst or (1 if network.model.device.type == "cpu" else GPU_BURST)
        self.cache = SlotCache()

    def free_memory(self) -> None:
        self.cache.clear()

    def extend(self, rows: Sequence[SlotInput]) -> Tensor:
        if self.shares_tokens and len(rows) > 1 and max(len(new) for _, new in rows) > 1:
            return self._extend_trees(rows)
        fresh = {index: new for index, (slot, new) in enumerate(rows) if not self._ids[slot]}
        begun = _find_shared_prefixes(fresh) if self.shared_prompts else {}
        if not begun:
            return self._extend_in_groups(rows)
        first = [index for index in range(len(rows)) if index not in begun]
        logits = [self._extend_in_groups([rows[index] for index in first])]
        for index, (leader, length) in begun.items():
            source, target = rows[leader][0], rows[index][0]
            self.cache.reserve(max(source, target) + 1, length)
            self.cache.copy(source, target, length)
            self._ids[target].extend(self._ids[source][:length])
        rest = [(rows[index][0], rows[index][1][length:]) for index, (_, length) in begun.items()]
        logits.append(self._extend_in_groups(rest))
        return _restore_order(logits, [*first, *begun])

    def _extend_trees(self, rows: Sequence[SlotInput]) -> Tensor:
        """Compute new tokens once for all rows that are alike up to there, and none for padding."""
        contexts = [[*self._ids[slot], *new] for slot, new in rows]
        starts = [len(self._ids[slot]) for slot, _ in rows]
        logits: list[Tensor] = []
        order: list[int] = []
        for indices, tree in iter_trees(contexts, starts, MAX_TOKENS):
            order += indices
            chosen = [rows[i] for i in indices]
            logits.append(self._forward_tree(chosen, tree) if len(chosen) > 1 else self._extend_in_groups(chosen))
        return _restore_order(logits, order)

    def _forward_tree(self, rows: Sequence[SlotInput], tree: PrefixTree) -> Tensor:
        slots = [slot for slot, _ in rows]
        starts = np.array([len(self._ids[slot]) for slot in slots], dtype=np.int64)
        device = self.network.model.device
        self._prepare_cache(slots, False, starts, max(map(len, tree.places)))
        access = self.cache.access
        shared = SharedRows.from_tree(
            tree, range(len(rows)), device, lambda positions: self._build_mask(positions, access.length, 0)
        )
        self.cache.access = replace(access, place=shared.place)
        logits = self.network(
            np.array([places[-1] for places in tree.places], dtype=np.int64),
            rows=torch.zeros(len(rows), dtype=torch.int64, device=device),
            input_ids=shared.token_ids, past_key_values=self.cache, use_cache=True, **shared.make_inputs(),
        )  # fmt: skip
        for slot, new in rows:
            self._ids[slot].extend(new)
        return logits

    def _extend_in_groups(self, rows: Sequence[SlotInput]) -> Tensor:
        """Compute rows of similar length together, each at most MAX_TOKENS at a time."""
        logits: list[Tensor] = []
        order: list[int] = []
        for group in _group_by_length([len(new) for _, new in rows]):
            order += group
            chosen = [rows[index] for index in group]
            while len(chosen) == 1 and len(chosen[0][1]) > MAX_TOKENS:
                ((slot, new),) = chosen
                self._forward([(slot, new[:MAX_TOKENS])])
                chosen = [(slot, new[MAX_TOKENS:])]
            logits.append(self._forward(chosen))
        return _restore_order(logits, order)

    def _forward(self, rows: Sequence[SlotInput]) -> Tensor:
        slots = [slot for slot, _ in rows]
        width = max(len(new) for _, new in rows)
        batch, is_span = self._choose_batch(slots, width)
        place = {slot: index for index, slot in enumerate(batch)}
        ids, last = np.zeros((len(batch), width), dtype=np.int64), np.zeros(len(batch), dtype=np.int64)
        for slot, new in rows:
            ids[place[slot], : len(new)] = new
            last[place[slot]] = len(new) - 1
        position_ids = self._prepare_columns(slots, batch, is_span, width)
        logits = self._run(upload(ids, position_ids.device), position_ids, last)
        for slot, new in rows:
            self._ids[slot].extend(new)
        taken = [place[slot] for slot in slots]
        return logits if taken == list(range(len(batch))) else logits[upload(taken, logits.device)]

    def _continue(self, slots: Sequence[Slot], drawn: Tensor, sample: TokenSampler, num: int) -> None:
        batch, is_span = self._choose_batch(slots, 1)
        position_ids = self._prepare_columns(slots, batch, is_span, 1, ahead=num - 1)
        taken = upload([batch.index(slot) for slot in slots], drawn.device)
        ids, last = drawn.new_zeros(len(batch), 1), np.zeros(len(batch), dtype=np.int64)
        for step in range(num):
            if step:
                self.cache.advance()
            ids.index_copy_(0, taken, drawn[:, None])
            drawn = sample(self._run(ids, position_ids, last).index_select(0, taken))

    def _choose_batch(self, slots: Sequence[Slot], width: int) -> tuple[list[Slot], bool]:
        """Choose the slots that a pass computes, and tell whether they are all between two of them."""
        low, high = min(slots), max(slots) + 1
        # Rows between that have nothing new may idle along: cheaper than copying the keys of those that have.
        idle = high - low - len(slots)
        is_span = idle * width <= max(len(slots), MIN_PADDING // 4)
        return list(range(low, high)) if is_span else sorted(slots), is_span

    def _prepare_columns(
        self, slots: Sequence[Slot], batch: list[Slot], is_span: bool, width: int, ahead: int = 0
    ) -> Tensor:
        """Prepare passes of `width` new tokens of `slots`, of which `ahead` follow; return the positions of these."""
        starts = np.array([len(self._ids.get(slot, ())) for slot in batch], dtype=np.int64)
        position_ids, cache = self._prepare_cache(batch, is_span, starts, width, ahead), self.cache
        length = cache.capacity if self.gapless and width == 1 else max(len(self._ids[slot]) for slot in slots) + width
        cache.access = replace(cache.access, length=length)
        return position_ids

    def _run(self, token_ids: Tensor, position_ids: Tensor, last: Ints) -> Tensor:
        """Compute the logits of a batch over its cache: (B, S) ids and positions -> (B, V)."""
        length = self.cache.access.length
        masks = {kind: self._build_mask(position_ids, length, window) for kind, window in self.windows.items()}
        return self.network(
            last, input_ids=token_ids, past_key_values=self.cache, use_cache=True,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            position_ids=position_ids.clamp(max=self.context_length - 1),  # padding may stand past the end
        )  # fmt: skip

    def _prepare_cache(self, batch: list[Slot], is_span: bool, starts: Ints, width: int, ahead: int = 0) -> Tensor:
        """Make room for `width` new columns of the slots, and say where they are; return their positions."""
        device, cache = self.network.model.device, self.cache
        cache.reserve(max(batch) + 1, int(starts.max()) + width + ahead)
        taken = upload(batch, device)
        position_ids = upload(starts[:, None] + np.arange(width), device)
        slots = slice(batch[0], batch[-1] + 1) if is_span else taken
        cache.access = CacheAccess(slots, (taken[:, None], position_ids), int(starts.max()) + width)
        return position_ids

    def _build_mask(self, position_ids: Tensor, length: int, window: int) -> Tensor:
        """Additive mask of what each new token sees: itself and the past, up to a window; (B, S) -> (B, 1, S, L)."""
        columns, own = torch.arange(length, device=position_ids.device), position_ids[:, None, :, None]
        hidden = columns > own
        if window:
            hidden |= columns <= own - window
        dtype = self.network.model.dtype
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
        return mask.masked_fill_(hidden, torch.finfo(dtype).min)


class RecomputeDecoder(Decoder):
    """Decoder that computes whole contexts each time: slow, and right for every causal LM."""

    def extend(self, rows: Sequence[SlotInput]) -> Tensor:
        for slot, new in rows:
            self._ids[slot].extend(new)
        groups = _group_by_length([len(self._ids[slot]) for slot, _ in rows])
        logits = [self._compute([self._ids[rows[index][0]] for index in group]) for group in groups]
        return _restore_order(logits, [index for group in groups for index in group])

    def _compute(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        last = np.array([len(context) - 1 for context in contexts], dtype=np.int64)
        return self.network(last, **pad_rows(contexts, self.network.model.device))


def make_decoder(model: Any, context_length: int, *, shared_prompts: bool = True, burst: int = 0) -> Decoder:
    """Make the decoder that keeps its cache, if this model allows it; `burst` as in `SlotDecoder`, 0 by the device."""
    network = Network(model)
    failure: Exception | None = None
    # Attention that a model brings along knows no tree of tokens, and may well read a cache.
    for own in (True, False) if use_cached_attention(model) else (False,):
        try:
            windows = get_attention_windows(model.config, context_length)
            decoder = SlotDecoder(
                network, context_length, windows, shared_prompts=shared_prompts, own_attention=own, burst=burst
            )
            _validate_decoder(decoder)
        except (AttributeError, TypeError, ValueError, RuntimeError, LookupError) as error:
            failure = error
        else:
            return decoder
    logger.warning("no cache is kept between turns, each token recomputes its context: %r", failure)
    return RecomputeDecoder(network)


def get_attention_windows(config: Any, context_length: int) -> Windows:
    """List the kinds of attention layers and their windows. Raises `ValueError` for a model with other layers."""
    # A chunk of Llama 4 begins anew, so it is no sliding window, though transformers caches it as one.
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if others := kinds - {"full_attention", "sliding_attention"}:
        raise ValueError(f"the model has layers of {', '.join(sorted(others))}")
    windows: dict[str, int] = {}
    for layer in DynamicCache(config=config).layers:
        if type(layer) is DynamicLayer:
            windows["full_attention"] = 0
        elif type(layer) is DynamicSlidingWindowLayer:
            window = layer.sliding_window
            windows["sliding_attention"] = window if window < context_length else 0
        else:
            raise ValueError(f"the model has layers of another kind than attention ({type(layer).__name__})")
    return windows or FULL_ATTENTION


def _validate_decoder(decoder: SlotDecoder) -> None:
    """Raise `ValueError` if passes over the cache do not give what passes without it give."""
    network, size = decoder.network, decoder.network.model.get_input_embeddings().num_embeddings
    ids = [(7 * index + 3) % size for index in range(min(9, decoder.context_length))]
    first, second = decoder.acquire(), decoder.acquire()
    decoder.extend([(first, ids[:2]), (second, ids[1:6])])
    logits = decoder.extend([(first, ids[2:6]), (second, ids[6:])])
    for slot in (first, second):
        decoder.release(slot)
    decoder.free_idle()
    network.model.eval()
    for got, expected in zip(logits, (ids[:6], ids[1:]), strict=True):
        with torch.inference_mode():  # by the plainest call there is
            want = network.model(torch.tensor([expected], device=network.model.device), use_cache=False).logits[0, -1]
        tolerance = 1e-3 if want.dtype == torch.float32 else 0.1
        if not bool((got.float() - want.float()).norm() <= tolerance * (want.float() - want.float().mean()).norm()):
            raise ValueError("a forward pass over its cache differs from one without")


def _find_shared_prefixes(prompts: Mapping[int, Sequence[int]]) -> dict[int, tuple[int, int]]:
    """Find prompts that may take over the keys of another, such as those of one group; {} where that saves little.

    They are mapped to the index of the other, which takes over nothing itself, and to the tokens in common.
    """
    leaders: dict[int, tuple[int, int]] = {}
    leader: int | None = None
    for index in sorted(prompts, key=lambda index: tuple(prompts[index])):
        prompt = prompts[index]
        length = 0 if leader is None else count_common_prefix(prompts[leader], prompt, len(prompt) - 1)
        if leader is not None and length >= max(MIN_SHARED, len(prompt) // 2):
            leaders[index] = leader, length
        else:
            leader = index
    return leaders if sum(length for _, length in leaders.values()) > MIN_PADDING else {}


def _restore_order(parts: Sequence[Tensor], order: Sequence[int]) -> Tensor:
    if len(parts) == 1 and list(order) == list(range(len(order))):
        return parts[0]
    joined = torch.cat(list(parts))
    return torch.empty_like(joined).index_copy_(0, torch.tensor(order, device=joined.device), joined)


def _group_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Rows to run together, longest first: padding may not cost more than a pass of its own, or than the tokens."""
    groups: list[list[int]] = []
    width = real = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        padded = width * (len(groups[-1]) + 1) if groups else 0
        if not groups or padded > MAX_TOKENS or padded - real - length > max(MIN_PADDING, real + length):
            groups.append([])
            width, real = length, 0
        groups[-1].append(index)
        real += length
    return [sorted(group) for group in groups]
