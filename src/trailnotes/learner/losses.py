"""The terms of the loss, one pure function each.

B rows of T tokens. Everything is per token and to be minimised; `mask` says which tokens count. A token outside the
mask may hold any finite number. `logprobs` are natural logarithms under the policy that is being trained.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

LUFFY_GAMMA = 0.1  # of the shaping f(x) = x / (x + gamma)
MAX_LOG_RATIO = 20.0  # exp(20) is far beyond any clip; beyond exp(88) float32 overflows, and 0 * inf is NaN


def ratio(
    logprobs: Tensor,  # (B, T) log pi(token), with gradient
    behavior_logprobs: Tensor,  # (B, T) log probability when it was sampled
) -> Tensor:  # (B, T)
    """Importance ratio rho = pi / pi_old, its logarithm held within +-20."""
    return torch.exp((logprobs - behavior_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def clipped_surrogate(
    ratio: Tensor,  # (B, T)
    advantages: Tensor,  # (B, T)
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> Tensor:  # (B, T)
    """-min(rho A, clip(rho, 1 - low, 1 + high) A), bounded by -c A where A < 0.

    PPO (arXiv 1707.06347, eq. 7) with clip-higher (DAPO, arXiv 2503.14476) and dual clip (arXiv 1912.09729, eq. 5).

    Args:
        ratio: importance ratio of each token.
        advantages: advantage of each token.
        clip_low: the ratio is clipped below 1 - clip_low.
        clip_high: the ratio is clipped above 1 + clip_high.
        dual_clip: c > 1, the largest ratio that a negative advantage may be multiplied by; 0 = no bound.
    """
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)
    if dual_clip:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return loss


def shaped_surrogate(
    ratio: Tensor,  # (B, T)
    advantages: Tensor,  # (B, T)
) -> Tensor:  # (B, T)
    """-f(rho) A with f(x) = x / (x + 0.1), without any clip: the policy shaping of LUFFY (arXiv 2504.14945).

    As a factor of grad log pi it is 0.1 x / (x + 0.1)^2 instead of x: more than x below 0.22, so that improbable tokens
    learn faster, and less above, 0.08 at 1. LUFFY counts its teacher's tokens as certain, so its x is pi itself.
    """
    return -ratio / (ratio + LUFFY_GAMMA) * advantages


def clip_events(
    ratio: Tensor,  # (B, T)
    advantages: Tensor,  # (B, T)
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:  # three (B, T) of bool
    """Where the surrogate of `clipped_surrogate` is flat: clipped low, clipped high, clipped by the dual bound."""
    negative = advantages < 0
    low = negative & (ratio < 1.0 - clip_low)
    high = (advantages > 0) & (ratio > 1.0 + clip_high)
    dual = negative & (ratio > dual_clip) if dual_clip else torch.zeros_like(negative)
    return low, high, dual


def k3_kl(
    logprobs: Tensor,  # (B, T) of the policy that is measured, whose samples the tokens are
    reference_logprobs: Tensor,  # (B, T)
) -> Tensor:  # (B, T), never negative
    """KL(pi || reference) for each sampled token: exp(d) - d - 1 with d = log reference - log pi.

    The low-variance unbiased estimator k3 of Schulman, "Approximating KL Divergence" (2020), as GRPO uses it.
    """
    difference = (reference_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(difference) - difference


def low_prob_mask(
    logprobs: Tensor,  # (B, T) under the policy as it is now
    mask: Tensor,  # (B, T) bool, trained tokens
    threshold: float,
    unit: Literal["token", "response"] = "token",
) -> Tensor:  # (B, T) bool, a subset of mask
    """The trained tokens that are left when improbable ones go (EMPO2, section 4.4).

    Args:
        logprobs: log-probability of each token.
        mask: the trained tokens; the first of a row is never one.
        threshold: a token with a log-probability below this is improbable.
        unit: "token" drops that token; "response" drops the unbroken run of trained tokens that holds it.
    """
    improbable = mask & (logprobs < threshold)
    if unit == "token":
        return mask & ~improbable
    starts = mask.clone()
    starts[:, 1:] &= ~mask[:, :-1]
    response = starts.flatten().cumsum(0)  # (B * T,) runs counted from 1; a row starts untrained, so no run spans two
    doomed = torch.zeros(response.numel() + 1, dtype=torch.bool, device=mask.device)
    doomed[response[improbable.flatten()]] = True
    return mask & ~doomed[response].view_as(mask)


def masked_sum(
    values: Tensor,  # (B, T)
    mask: Tensor,  # (B, T) bool
    aggregation: Literal["token", "sequence"] = "token",
) -> tuple[Tensor, Tensor]:  # (), ()
    """Numerator and denominator of a mean over the mask: both add up over the parts of a batch.

    "token": sum over tokens, number of tokens. "sequence": sum over rows of row means, number of rows that have any
    token in the mask.
    """
    kept = values * mask
    if aggregation == "token":
        return kept.sum(), mask.sum()
    lengths = mask.sum(-1)
    return (kept.sum(-1) / lengths.clamp(min=1)).sum(), (lengths > 0).sum()
