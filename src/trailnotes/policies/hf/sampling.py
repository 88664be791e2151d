"""Sampling of tokens on the device of the logits: each row by its own settings and its own random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trailnotes.errors import PolicyError
from trailnotes.types import Sampling

Uniforms = npt.NDArray[np.float32]
Logprobs = list[list[float]]
NO_TOP_K = 1 << 62  # more tokens than any model has


def draw_uniforms(seed: int, num: int) -> Uniforms:
    """Draw the first `num` numbers in [0, 1) of a counter-based generator, shape (num,): token t uses number t."""
    generator = np.random.Generator(np.random.Philox(key=seed % 2**128))
    return generator.random(num, dtype=np.float32)


class TokenSampler:
    """Sampler of `num` tokens, one after the other, for each row of a batch.

    A call draws a token for each row of (B, V) logits by inverting its cumulative distribution at a number in [0, 1).
    Temperature 0 takes the most probable token, whatever top-k and top-p are, and reports its log-probability at
    temperature 1: the draw itself has probability 1, which teaches nothing. Only `read` waits for the device.

    Args:
        rows: settings of each row, and its random numbers, of which token t uses number t.
        num: of tokens at most.
    """

    def __init__(self, rows: Sequence[tuple[Sampling, Uniforms]], num: int = 1) -> None:
        self._settings = [settings for settings, _ in rows]
        self._numbers = np.zeros((num, len(rows)), dtype=np.float32)
        for row, (_, uniforms) in enumerate(rows):  # a row that ends before the others has fewer
            self._numbers[: len(uniforms), row] = uniforms[:num]
        self._uniforms = torch.empty(0)  # (num, B)
        self._temperatures: Tensor | None = None  # (B, 1); None: all are 1
        self._limits: tuple[Tensor, Tensor] | None = None  # (B,) top-k and top-p; None: no row has any
        self._greedy: Tensor | None = None  # (B,) of bool; None: no row is
        self._drawn: list[Tensor] = []  # (2, B) int64 of each call: tokens, and the bits of their log-probabilities

    def __call__(self, logits: Tensor) -> Tensor:  # (B, V) -> (B,)
        if not self._drawn:
            self._upload(logits.device)
        logits = logits.float()
        if self._temperatures is not None:
            logits = logits / self._temperatures
        logprobs = torch.log_softmax(logits, dim=-1)
        if self._limits is not None:
            logprobs = filter_top_k_top_p(logprobs, *self._limits)
        tokens = _invert_cdf(logprobs, self._uniforms[len(self._drawn)])
        if self._greedy is not None:
            tokens = torch.where(self._greedy, logprobs.argmax(dim=-1), tokens)
        chosen = logprobs.gather(1, tokens[:, None])[:, 0]
        self._drawn.append(torch.stack((tokens, chosen.view(torch.int32).long())))
        return tokens

    def read(self) -> tuple[list[list[int]], Logprobs]:
        """Wait for the tokens drawn, and for their log-probabilities under the distribution that each was drawn from.

        Temperature, top-k and top-p are in that distribution. Raises `PolicyError` for logits that are not finite.
        """
        tokens, bits = torch.stack(self._drawn, dim=-1).cpu().numpy()  # (B, number of calls) each
        logprobs = bits.astype(np.int32).view(np.float32)
        if not np.isfinite(logprobs).all():
            raise PolicyError(
                "the model's logits are not finite: its weights, or a forward pass in low precision, broke"
            )
        return tokens.tolist(), logprobs.tolist()

    def _upload(self, device: torch.device) -> None:
        def send(values: Any) -> Tensor:
            return torch.as_tensor(values).to(device, non_blocking=True)

        settings = self._settings
        self._uniforms = send(self._numbers)
        if any(each.temperature not in {0.0, 1.0} for each in settings):
            self._temperatures = send([[each.temperature or 1.0] for each in settings])
        if any(each.temperature and (each.top_k or each.top_p < 1) for each in settings):
            top_k = [each.top_k if each.temperature and each.top_k else NO_TOP_K for each in settings]
            self._limits = send(top_k), send([each.top_p if each.temperature else 1.0 for each in settings])
        if not all(each.temperature for each in settings):
            self._greedy = send([each.temperature == 0 for each in settings])


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
