"""Drawing tokens: each row by its own settings and its own random numbers, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trailnotes.errors import PolicyError
from trailnotes.types import Sampling

Uniforms = npt.NDArray[np.float32]


def draw_uniforms(seed: int, num: int) -> Uniforms:
    """The first `num` numbers in [0, 1) of a counter-based generator, shape (num,): token t uses number t."""
    generator = np.random.Generator(np.random.Philox(key=seed % 2**128))
    return generator.random(num, dtype=np.float32)


def sample(logits: Tensor, settings: Sequence[Sampling], uniforms: Uniforms) -> tuple[list[int], list[float]]:
    """Draw one token for each row by inverting the cumulative distribution.

    Temperature 0 takes the most probable token, and reports its log-probability at temperature 1 (the draw itself
    has probability 1, of which nothing can be learned); top-k and top-p have no effect there.

    Args:
        logits: (B, V), any float type.
        settings: B settings.
        uniforms: (B,) numbers in [0, 1).

    Returns:
        B token ids, and B log-probabilities under the distribution drawn from: temperature, top-k and top-p included.

    Raises:
        PolicyError: logits that are not finite.
    """
    logprobs = torch.log_softmax(_scaled(logits.float(), settings), dim=-1)
    if any(each.temperature and (each.top_k or each.top_p < 1) for each in settings):
        logprobs = truncate(logprobs, settings)
    tokens = _invert(logprobs, torch.from_numpy(uniforms).to(logits.device))
    if not all(each.temperature for each in settings):
        greedy = torch.tensor([each.temperature == 0 for each in settings], device=logits.device)
        tokens = torch.where(greedy, logprobs.argmax(dim=-1), tokens)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    if not bool(torch.isfinite(chosen).all()):
        raise PolicyError("the model's logits are not finite: its weights, or a forward pass in low precision, broke")
    return tokens.tolist(), chosen.tolist()


def truncate(logprobs: Tensor, settings: Sequence[Sampling]) -> Tensor:
    """Keep each row's `top_k` most probable tokens, then the fewest of them that hold `top_p`; (B, V), renormalised."""
    device, size = logprobs.device, logprobs.shape[-1]
    top_k = torch.tensor([each.top_k if each.temperature and each.top_k else size for each in settings], device=device)
    top_p = torch.tensor([each.top_p if each.temperature else 1.0 for each in settings], device=device)
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(torch.arange(size, device=device) >= top_k[:, None], -torch.inf)
    probs = torch.softmax(ordered, dim=-1)
    before = probs.cumsum(dim=-1) - probs
    # A row that keeps everything must not lose its tail to rounding.
    dropped = (before >= top_p[:, None]) & (top_p[:, None] < 1)
    kept = torch.log_softmax(ordered.masked_fill(dropped, -torch.inf), dim=-1)
    return torch.empty_like(kept).scatter_(1, order, kept)


def _scaled(logits: Tensor, settings: Sequence[Sampling]) -> Tensor:
    temperatures = [each.temperature or 1.0 for each in settings]
    if all(temperature == 1.0 for temperature in temperatures):
        return logits
    return logits / torch.tensor(temperatures, device=logits.device)[:, None]


def _invert(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """First token whose cumulative probability exceeds the number: (B, V), (B,) -> (B,). Never one of probability 0."""
    cumulative = logprobs.exp().cumsum(dim=-1)
    total = cumulative[:, -1]
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    return tokens.clamp_(max=logprobs.shape[-1] - 1)
