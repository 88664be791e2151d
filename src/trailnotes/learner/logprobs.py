"""Log-probabilities of sampled tokens, without ever holding tokens x vocabulary, and the layouts of rows in a batch.

The decoder's hidden states are taken at the trained positions only, and turned into logits a chunk at a time. In the
backward pass each chunk is computed again, so that the logits of one chunk are all that exists at any moment.

Rows are padded, joined or shared. Joined, rows follow one another, and positions that start anew tell them apart:
attention for rows of varying length (flash, flex) skips what lies between them. Shared, rows that begin alike become
a tree: their common prefix is computed once, and attention takes each row out of it (`SharedRows`). Members of a group
begin with the same prompt, and all rows with the same system message.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.learner.samples import GatheredCall, PackingMode, call_directly
from trailnotes.policies.hf.attention import SharedRows, use_own_attention
from trailnotes.policies.hf.decoder import evaluation_mode, get_attention_windows, split_model
from trailnotes.policies.prefixes import PrefixTree, order_rows
from trailnotes.types import Sample


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """B rows of up to T tokens as one sequence of N; the last token of a row predicts nothing, and is not computed."""

    token_ids: Tensor  # (1, N) int64
    position_ids: Tensor  # (1, N) int64, which begin anew with each row
    place: Tensor  # (B, T) int64, where each token stands among the N

    def make_inputs(self) -> dict[str, Any]:
        return {"position_ids": self.position_ids}


PackedLayout = JoinedRows | SharedRows


def build_layout(rows: Sequence[Sequence[int]], how: PackingMode, device: torch.device) -> PackedLayout | None:
    """Lay rows out on a device; None where they are padded."""
    if how == "padded":
        return None
    read = [row[:-1] for row in rows]
    if how == "shared":
        order, tree = order_rows(read, [0] * len(read)), PrefixTree()
        for i in order:
            tree.add(read[i])
        return SharedRows.from_tree(tree, order, device)
    ids = torch.tensor([token for row in read for token in row], device=device)
    positions = torch.tensor([i for row in read for i in range(len(row))], device=device)
    place = torch.zeros(len(rows), max(map(len, read)), dtype=torch.int64)
    start = 0
    for i, row in enumerate(read):
        place[i, : len(row)] = torch.arange(start, start + len(row))
        start += len(row)
    return JoinedRows(ids[None], positions[None], place.to(device))


def is_padding_free(model: Any) -> bool:
    """Return whether the attention of a model never computes what lies between joined rows."""
    return str(getattr(model.config, "_attn_implementation", "")).startswith(("flash", "flex"))


@dataclass(frozen=True, slots=True)
class Batch:
    """B rows as tensors, padded on the right to T tokens."""

    token_ids: Tensor  # (B, T) int64
    mask: Tensor  # (B, T) bool, trained tokens
    behavior_logprobs: Tensor  # (B, T) float32
    advantages: Tensor  # (B, T) float32
    off_policy: Tensor  # (B,) bool
    layout: PackedLayout | None = None  # how the model is to compute the rows, if not padded

    @property
    def num_computed(self) -> int:
        """Tokens that the model computes, padding included."""
        return (self.token_ids if self.layout is None else self.layout.token_ids).numel()

    @classmethod
    def from_samples(cls, samples: Sequence[Sample], device: torch.device, how: PackingMode = "padded") -> Batch:
        def stack(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
            tensors = [torch.tensor(row, dtype=dtype) for row in rows]
            return nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(device)

        return cls(
            token_ids=stack([s.token_ids for s in samples], torch.int64),
            mask=stack([s.loss_mask for s in samples], torch.bool),
            behavior_logprobs=stack([s.behavior_logprobs for s in samples], torch.float32),
            advantages=stack([s.advantages for s in samples], torch.float32),
            off_policy=torch.tensor([s.off_policy for s in samples], device=device),
            layout=build_layout([s.token_ids for s in samples], how, device),
        )


class TokenScorer:
    """Scorer of tokens under a causal LM or a peft model, at the `temperature` that they were sampled with.

    Padding on the right needs no attention mask: in a causal model no token sees what comes after it. `chunk` is the
    number of positions whose logits exist at the same time.
    """

    def __init__(self, model: nn.Module, temperature: float = 1.0, chunk: int = 1024) -> None:
        if temperature <= 0:
            raise ValueError(f"training needs a temperature above 0, got {temperature}: set rollout.temperature")
        self.model, self.temperature, self.chunk = model, temperature, chunk
        self.within: GatheredCall = call_directly  # for all reading of weights, which may be sharded outside
        self.parts = split_model(model)
        if self.parts is None:
            base = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
            warnings.warn(
                f"{type(base).__name__} does more to its logits than its output embedding: they are computed whole, "
                "which takes tokens x vocabulary of memory",
                stacklevel=2,
            )

    def __call__(self, token_ids: Tensor, mask: Tensor, layout: PackedLayout | None = None) -> tuple[Tensor, Tensor]:
        """Score each token of the mask given all before it.

        `token_ids` (B, T) are padded on the right with any valid id. `mask` (B, T) leaves out the first token of a row,
        which has no context. `layout` is how the model computes the rows, see `is_packing_supported`; None: padded.

        Returns:
            (B, T) float32 log-probabilities in nats, with gradient where it is enabled, and (B, T) entropies without;
            both 0 outside the mask.
        """
        scored: tuple[Tensor, Tensor] = self.within(
            lambda: self.score_states(self.compute_states(token_ids, mask, layout), token_ids, mask)
        )
        return scored

    def score_states(self, states: Tensor, token_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Score the mask's tokens from their (K, H) `states`, as `__call__`."""
        targets, parts = token_ids[mask], []
        # One chunk alone is the whole peak already: computing it again would cost time and save nothing.
        again = torch.is_grad_enabled() and len(targets) > self.chunk
        for start in range(0, len(targets), self.chunk):
            chunk = states[start : start + self.chunk], targets[start : start + self.chunk]
            parts.append(
                checkpoint(self._score_chunk, *chunk, use_reentrant=False) if again else self._score_chunk(*chunk)
            )
        rows, columns = mask.nonzero(as_tuple=True)
        blank = torch.zeros(mask.shape, device=mask.device)
        if not parts:
            return blank + 0.0 * states.sum(), blank
        logprobs, entropies = (torch.cat(column) for column in zip(*parts, strict=True))
        return blank.index_put((rows, columns), logprobs), blank.index_put((rows, columns), entropies)

    def compute_states(self, token_ids: Tensor, mask: Tensor, layout: PackedLayout | None = None) -> Tensor:  # (K, H)
        """Compute the head's input for each of the K tokens of the mask, row by row; arguments as above."""
        if layout is None:
            where = mask[:, 1:].flatten().nonzero().squeeze(1)
            return self._run_body(token_ids[:, :-1]).flatten(0, 1).index_select(0, where)
        if isinstance(layout, SharedRows) and not use_own_attention(self.model):
            raise ConfigError('learner.packed = "shared" needs the attention "sdpa"')
        where = layout.place[mask[:, 1:]]
        return self._run_body(layout.token_ids, **layout.make_inputs())[0].index_select(0, where)

    def compute_kl(self, states: Tensor, teacher: Callable[[Tensor], Tensor], teacher_states: Tensor) -> Tensor:  # (K,)
        """Compute KL(teacher || this model) of the whole distribution at each position, in nats, with gradient.

        Its gradient by the logits is the difference of the two distributions, so no token's is large. `states` and
        `teacher_states` are (K, H) for the same positions; `teacher` makes (K, V) logits of the latter.
        """
        parts = []
        for start in range(0, len(states), self.chunk):
            chunks = (states[start : start + self.chunk], teacher_states[start : start + self.chunk])
            if len(states) > self.chunk:
                parts.append(checkpoint(self._compute_kl_chunk, teacher, *chunks, use_reentrant=False))
            else:
                parts.append(self._compute_kl_chunk(teacher, *chunks))
        return torch.cat(parts) if parts else states.float().sum(-1)

    def _compute_kl_chunk(
        self, teacher: Callable[[Tensor], Tensor], states: Tensor, teacher_states: Tensor
    ) -> Tensor:  # (K,)
        with torch.no_grad():
            wanted = teacher(teacher_states).log_softmax(-1)
        apart = wanted - self.logits(states).log_softmax(-1)
        # A token that the model rules out has -inf in both, and 0 * (inf - inf) is 0 here.
        return (wanted.exp() * torch.where(wanted == -torch.inf, 0.0, apart)).sum(-1)

    def logits(self, states: Tensor) -> Tensor:  # (K, H) -> (K, V)
        logits = (states if self.parts is None else self.parts.head(states)).float()
        return logits / self.temperature if self.temperature != 1.0 else logits

    def _run_body(self, token_ids: Tensor, **given: Any) -> Tensor:
        """(B, T) -> (B, T, H) hidden states, or (B, T, V) logits where the head alone does not give them."""
        if self.parts is None:
            output: Tensor = self.model(input_ids=token_ids, use_cache=False, **given).logits
        else:
            output = self.parts.body(input_ids=token_ids, use_cache=False, **given).last_hidden_state
        return output

    def _score_chunk(self, states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:  # (K, H), (K,) -> (K,), (K,)
        logprobs, entropies = _LogSoftmaxAt.apply(self.logits(states), targets)  # type: ignore[no-untyped-call]
        return logprobs, entropies


@torch.no_grad()
def is_packing_supported(scorer: TokenScorer, how: PackingMode, longest: int) -> bool:
    """Return whether the model computes the same for rows of up to `longest` tokens in this layout.

    A pass of the first layers over a few random tokens finds that out; in float32, where the attention knows it, since
    the rounding of bfloat16 can hide a wrong mask.
    """
    model: Any = scorer.model
    embeddings = model.get_input_embeddings()
    device = embeddings.weight.device
    drawn = torch.randint(embeddings.num_embeddings, (16,), generator=torch.Generator().manual_seed(0)).tolist()
    rows = [drawn[:8], drawn[:5], [*drawn[:5], *drawn[8:11]], drawn[11:]]
    token_ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(device)
    columns = torch.arange(8, device=device)
    mask = (columns > 0) & (columns < torch.tensor([len(row) for row in rows], device=device)[:, None])
    try:
        if how == "shared" and any(get_attention_windows(model.config, longest).values()):
            return False  # `attend` has no window
        exact = nullcontext() if is_padding_free(model) else in_float32(model)
        with first_layers(model), evaluation_mode(model), exact:
            packed, padded = (scorer(token_ids, mask, layout)[0] for layout in (build_layout(rows, how, device), None))
            tolerance = 1e-4 if embeddings.weight.dtype == torch.float32 else 5e-2
    except torch.OutOfMemoryError as error:
        raise ConfigError(f'no memory to check learner.packed = "{how}" in float32: set it to "never"') from error
    except (AttributeError, TypeError, ValueError, RuntimeError, LookupError, ConfigError):  # a model asked otherwise
        return False
    return bool((packed - padded).abs().max() <= tolerance * padded.abs().max().clamp(min=1.0))


def choose_packing(config: Config, model: Any) -> PackingMode:
    """Choose how rows are laid out. Raises `ConfigError` where `learner.packed` does not fit the model."""
    attention, packed = config.model.attn_implementation, config.learner.packed
    skips = attention.startswith(("flash", "flex")) or (not attention and is_padding_free(model))
    if packed == "never" or (packed == "auto" and not skips):
        return "padded"
    how: PackingMode = "shared" if packed == "shared" else "joined"
    if how == "shared" and skips:
        raise ConfigError('learner.packed = "shared" needs an attention that takes any mask: set '
                          'model.attn_implementation = "sdpa", or learner.packed = "auto"')  # fmt: skip
    if is_packing_supported(TokenScorer(model), how, config.rollout.max_context_tokens):
        return how
    if packed == "auto":
        return "padded"
    raise ConfigError(f'learner.packed = {packed!r} changes what this model computes: set it to "auto" or "never"')


@contextmanager
def first_layers(model: Any) -> Iterator[None]:
    """Leave a model its first layers for the duration of the block: two, or as many as have each kind of attention."""
    config = model.config.get_text_config(decoder=True)
    kinds, layers = list(getattr(config, "layer_types", None) or ()), config.num_hidden_layers
    num = max([2, *(kinds.index(kind) + 1 for kind in kinds)])
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == layers > num
    ]
    try:
        for parent, name, child in places:
            setattr(parent, name, child[:num])
        config.num_hidden_layers = num if places else layers
        yield
    finally:
        config.num_hidden_layers = layers
        for parent, name, child in places:
            setattr(parent, name, child)


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Put the bfloat16 weights of `model` into float32 for the duration of the block; they come back bit for bit."""
    before = [(weight, weight.dtype) for weight in model.parameters() if weight.dtype == torch.bfloat16]
    try:
        for weight, _ in before:
            weight.data = weight.data.float()
        yield
    finally:
        for weight, dtype in before:
            weight.data = weight.data.to(dtype)


class _LogSoftmaxAt(torch.autograd.Function):
    """log_softmax(logits)[target] and the entropy, with one buffer of the size of the logits in either direction.

    d/dlogits log softmax(logits)[y] = onehot(y) - softmax(logits).
    """

    @staticmethod
    def forward(context: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:  # (K, V), (K,) -> (K,), (K,)
        normaliser = logits.logsumexp(-1, keepdim=True)
        context.save_for_backward(logits, targets, normaliser)
        expected = (logits - normaliser).exp_().mul_(logits).nan_to_num_(nan=0.0)  # 0 * -inf is 0 here
        entropies = normaliser.squeeze(-1) - expected.sum(-1)
        context.mark_non_differentiable(entropies)
        return (logits.gather(-1, targets[:, None]) - normaliser).squeeze(-1), entropies

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits, targets, normaliser = context.saved_tensors
        outer = gradients[0][:, None]
        inner = (logits - normaliser).exp_().mul_(-outer)
        return inner.scatter_add_(-1, targets[:, None], outer), None
