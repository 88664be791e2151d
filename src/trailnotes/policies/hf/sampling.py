"""Sampling of tokens on the device of the logits: each row by its own settings and its own random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trailnotes.errors import PolicyError
from trailnotes.types import Sampling

Uniforms = npt.NDArray[np.float32]
SampledRow = tuple[Sampling, Uniforms]
Logprobs = list[list[float]]
NO_TOP_K = 1 << 62  # more tokens than any model has


def draw_uniforms(seed: int, num: int) -> Uniforms:
    """Draw the first `num` numbers in [0, 1) of a counter-based generator, shape (num,): token t uses number t."""
    generator = np.random.Generator(np.random.Philox(key=seed % 2**128))
    return generator.random(num, dtype=np.float32)


class TokenSampler:
    """Sampler of at most `num` tokens, one after the other, for each row of a batch.

    A call draws a token for each row of (B, V) logits, as `draw_tokens`. Only `read` waits for the device.

    Args:
        rows: settings of each row, and its random numbers, of which token t uses number t; it draws no more tokens.
        end_ids: tokens behind which a row needs no more.
    """

    def __init__(self, rows: Sequence[SampledRow], num: int = 1, end_ids: frozenset[int] = frozenset()) -> None:
        settings, self.end_ids = [each for each, _ in rows], end_ids
        self.room = np.array([len(uniforms) for _, uniforms in rows])
        self.is_limited = any(each.temperature and (each.top_k or each.top_p < 1) for each in settings)
        self.top_k = np.array([each.top_k if each.temperature and each.top_k else NO_TOP_K for each in settings])
        self.numbers = np.zeros((2 + num, len(rows)), dtype=np.float32)  # temperature, top-p, and one for each token
        self.numbers[0] = [each.temperature for each in settings]
        self.numbers[1] = [each.top_p if each.temperature else 1.0 for each in settings]
        for row, (_, uniforms) in enumerate(rows):  # a row that ends before the others has fewer
            self.numbers[2 : 2 + len(uniforms), row] = uniforms[:num]
        self.drawn: list[Tensor] = []  # by each call, or by steps that draw themselves; as from `draw_tokens`
        self._uploaded: tuple[Tensor, ...] = ()

    def __call__(self, logits: Tensor) -> Tensor:  # (B, V) -> (B,)
        if not self._uploaded:
            given = torch.from_numpy(self.top_k), torch.from_numpy(self.numbers)
            self._uploaded = tuple(each.to(logits.device, non_blocking=True) for each in given)
        top_k, numbers = self._uploaded
        temperatures = None if (self.numbers[0] == 1).all() else numbers[0]
        limits = (top_k, numbers[1]) if self.is_limited else None
        self.drawn.append(draw_tokens(logits, numbers[2 + len(self.drawn)], temperatures, limits))
        return self.drawn[-1][0]

    def read(self) -> tuple[list[list[int]], Logprobs]:
        """Wait for the tokens drawn, and for their log-probabilities under the distribution that each was drawn from.

        Temperature, top-k and top-p are in that distribution. Raises `PolicyError` for logits that are not finite.
        """
        tokens, bits = torch.stack(self.drawn, dim=-1).cpu().numpy()  # (B, number of calls) each
        logprobs = bits.astype(np.int32).view(np.float32)
        if not np.isfinite(logprobs).all():
            raise PolicyError(
                "the model's logits are not finite: its weights, or a forward pass in low precision, broke"
            )
        return tokens.tolist(), logprobs.tolist()


def draw_tokens(
    logits: Tensor, uniforms: Tensor, temperatures: Tensor | None = None, limits: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Draw tokens by inverting the cumulative distributions of (B, V) logits at (B,) numbers in [0, 1).

    Temperature 0 takes the most probable token, whatever top-k and top-p are, and reports its log-probability at
    temperature 1: the draw itself has probability 1, which teaches nothing. None: all temperatures are 1, and no row
    has limits, (B,) top-k and top-p. Returns (2, B) int64: tokens, and the bits of their log-probabilities.
    """
    logits = logits.float()
    if temperatures is not None:
        logits = logits / temperatures.masked_fill(temperatures == 0, 1.0)[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    if limits is not None:
        logprobs = filter_top_k_top_p(logprobs, *limits)
    tokens = _invert_cdf(logprobs, uniforms)
    if temperatures is not None:
        tokens = torch.where(temperatures == 0, logprobs.argmax(dim=-1), tokens)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    return torch.stack((tokens, chosen.view(torch.int32).long()))


def filter_top_k_top_p(logprobs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Keep each row's `top_k` most probable tokens, then the fewest of them that hold `top_p`; (B, V), renormalized."""
    device, size = logprobs.device, logprobs.shape[-1]
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(torch.arange(size, device=device) >= top_k[:, None], -torch.inf)
    probs = torch.softmax(ordered, dim=-1)
    before = probs.cumsum(dim=-1) - probs
    # A row that keeps everything must not lose its tail to rounding.
    dropped = (before >= top_p[:, None]) & (top_p[:, None] < 1)
    kept = torch.log_softmax(ordered.masked_fill(dropped, -torch.inf), dim=-1)
    return torch.empty_like(kept).scatter_(1, order, kept)


def _invert_cdf(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """Find the first token whose cumulative probability exceeds the number, never one of probability 0."""
    cumulative = logprobs.exp().cumsum(dim=-1)
    total = cumulative[:, -1]
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    return tokens.clamp_(max=logprobs.shape[-1] - 1)
