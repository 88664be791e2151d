"""The terms of the loss as pure functions, their weights for rows that are no episodes, and the figures of an update.

Tensors are (B, T), B rows of T tokens, unless a comment says otherwise. Losses are per token and to be minimized;
`mask` says which tokens count. A token outside the mask may hold any finite number. `logprobs` are natural logarithms
under the policy that is being trained, with gradient.

Rows that are no episodes (tips, episodes read with tips, rehearsal) have up to three terms: the clipped surrogate,
where they have an advantage; KL(reference || model), by `Sample.hold`; the negative log-likelihood, by
`Sample.imitate`. Each term is a mean over the rows of one role that have it with one weight, so that rows of another
role or weight do not thin it out. KL and likelihood count by rows, each with the mean over its own tokens: a short
decision weighs as much as a long one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trailnotes.config.schema import Aggregation, LossConfig
from trailnotes.learner.logprobs import Batch
from trailnotes.learner.samples import Ranks
from trailnotes.types import RowRole, Sample

LUFFY_GAMMA = 0.1  # of the shaping f(x) = x / (x + gamma)
MAX_LOG_RATIO = 20.0  # exp(20) is far beyond any clip; beyond exp(88) float32 overflows, and 0 * inf is NaN
TERMS = ("policy", "hold", "imitate")  # of a row that is no episode's


def ratio(logprobs: Tensor, behavior_logprobs: Tensor) -> Tensor:
    """Compute the importance ratio rho = pi / pi_old, its logarithm clamped to +-20."""
    return torch.exp((logprobs - behavior_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float = 0.0
) -> Tensor:
    """Compute -min(rho A, clip(rho, 1 - low, 1 + high) A), bounded by -c A where A < 0.

    `dual_clip` is c > 1, the largest ratio that a negative advantage may be multiplied by; 0 = no bound.

    Source: PPO (arXiv 1707.06347, eq. 7), clip-higher (DAPO, arXiv 2503.14476), dual clip (arXiv 1912.09729, eq. 5).
    """
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)
    if dual_clip:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return loss


def shaped_surrogate(ratio: Tensor, advantages: Tensor) -> Tensor:
    """Compute -f(rho) A with f(x) = x / (x + 0.1), without any clip: the policy shaping of LUFFY (arXiv 2504.14945).

    As a factor of grad log pi it is 0.1 x / (x + 0.1)^2 instead of x: more than x below 0.22, so that improbable tokens
    learn faster, and less above, 0.08 at 1. LUFFY counts its teacher's tokens as certain, so its x is pi itself.
    """
    return -ratio / (ratio + LUFFY_GAMMA) * advantages


def k3_kl(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Estimate KL(pi || reference) for each token sampled from pi: exp(d) - d - 1 with d = log reference - log pi.

    The low-variance unbiased estimator k3 of Schulman, "Approximating KL Divergence" (2020), as GRPO uses it.
    """
    difference = (reference_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(difference) - difference


class Surrogate(NamedTuple):
    """What an objective makes of each token, all (B, T)."""

    loss: Tensor  # to be minimized, with gradient
    ratio: Tensor  # that weighs the token
    low: Tensor  # bool: the weight is bounded from below,
    high: Tensor  # from above,
    dual: Tensor  # or by the dual bound


def ppo(loss: LossConfig, logprobs: Tensor, batch: Batch) -> Surrogate:
    """Clip the ratio of each token, as `clipped_surrogate` says."""
    return _clip(loss, ratio(logprobs, batch.behavior_logprobs), batch)


def gspo(loss: LossConfig, logprobs: Tensor, batch: Batch) -> Surrogate:
    """Clip as `ppo` does, with rho the geometric mean of the ratios of the row's tokens.

    Its gradient is that of the token's own ratio. Source: GSPO (arXiv 2507.18071, eq. 7 in its form for tokens).
    """
    log_ratio = torch.where(batch.mask, logprobs - batch.behavior_logprobs, 0.0)
    mean = mean_over_rows(log_ratio, batch.mask).detach()
    return _clip(loss, torch.exp(mean.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) + logprobs - logprobs.detach()), batch)


def gmpo(loss: LossConfig, logprobs: Tensor, batch: Batch) -> Surrogate:
    """Weigh by a geometric mean of clipped ratios: -rho A, rho = exp(mean over the row of the clipped log-ratios).

    A log-ratio is clipped to [-low, high] where the advantage drives it further. As in `gspo`, the gradient is that of
    the token's own log-ratio; A is the token's, where steps differ. Source: GMPO (arXiv 2507.20673, eq. 4), where the
    tokens of a row have one advantage.
    """
    log_ratio = torch.where(batch.mask, logprobs - batch.behavior_logprobs, 0.0)
    low, high = find_outside(loss, log_ratio, batch.advantages)
    own = torch.where(low | high, log_ratio.clamp(-loss.clip_low, loss.clip_high), log_ratio)
    mean = mean_over_rows(own, batch.mask).detach()
    rho = torch.exp(mean.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) + own - own.detach())
    return Surrogate(-rho * batch.advantages, rho, low, high, torch.zeros_like(low))


def cispo(loss: LossConfig, logprobs: Tensor, batch: Batch) -> Surrogate:
    """Bound the weight of each token, not its gradient: -sg(clip(rho, 1 - low, 1 + high)) A log pi.

    Source: CISPO (arXiv 2506.13585, eq. 4).
    """
    rho = ratio(logprobs, batch.behavior_logprobs)
    floor, ceiling = 1.0 - loss.clip_low, 1.0 + loss.clip_high
    counts = batch.advantages != 0  # as in the other objectives, a token of advantage 0 is not clipped
    low, high = counts & (rho < floor), counts & (rho > ceiling)
    surrogate = -rho.detach().clamp(floor, ceiling) * batch.advantages * logprobs
    return Surrogate(surrogate, rho, low, high, torch.zeros_like(low))


def dppo(loss: LossConfig, logprobs: Tensor, batch: Batch) -> Surrogate:
    """Leave out tokens whose probability moved too far: -sg(min(rho, c)) A log pi, or 0 for these.

    Source: DPPO (arXiv 2602.04879, binary total variation).
    """
    rho = ratio(logprobs, batch.behavior_logprobs)
    low, high = find_outside(loss, logprobs.exp() - batch.behavior_logprobs.exp(), batch.advantages)
    weight = rho.detach().clamp(max=loss.dual_clip or math.inf)
    surrogate = torch.where(low | high, 0.0, -weight * batch.advantages * logprobs)
    counts = ~low & ~high & (batch.advantages != 0)
    dual = counts & (rho > loss.dual_clip) if loss.dual_clip else torch.zeros_like(low)
    return Surrogate(surrogate, rho, low, high, dual)


OBJECTIVES: dict[str, Callable[[LossConfig, Tensor, Batch], Surrogate]] = {
    "ppo": ppo, "gspo": gspo, "gmpo": gmpo, "cispo": cispo, "dppo": dppo,
}  # fmt: skip
"""Values of `loss.objective`. Each takes the settings, the log-probabilities (B, T) with gradient, and the batch."""


def compute_surrogate(loss: LossConfig, logprobs: Tensor, batch: Batch) -> Surrogate:
    """Compute `loss.objective`, with `loss.shaping` in off-policy rows and without what `find_dropped` marks."""
    surrogate = OBJECTIVES[loss.objective](loss, logprobs, batch)
    if loss.shaping != "none":
        off = batch.off_policy[:, None]
        shaped = torch.where(off, shaped_surrogate(surrogate.ratio, batch.advantages), surrogate.loss)
        surrogate = Surrogate(shaped, surrogate.ratio, *(event & ~off for event in surrogate[2:]))
    if loss.max_negative_kl is not None:
        surrogate = surrogate._replace(loss=torch.where(find_dropped(loss, logprobs, batch), 0.0, surrogate.loss))
    return surrogate


def _clip(loss: LossConfig, rho: Tensor, batch: Batch) -> Surrogate:
    bounds = loss.clip_low, loss.clip_high, loss.dual_clip
    negative = batch.advantages < 0
    low = negative & (rho < 1.0 - loss.clip_low)
    high = (batch.advantages > 0) & (rho > 1.0 + loss.clip_high)
    dual = negative & (rho > loss.dual_clip) if loss.dual_clip else torch.zeros_like(negative)
    return Surrogate(clipped_surrogate(rho, batch.advantages, *bounds), rho, low, high, dual)


def mean_over_rows(values: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean (B, 1) of each row's tokens in the mask; 0 of none."""
    return (values * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)


@torch.no_grad()
def find_outside(loss: LossConfig, moved: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:  # bool
    """Mark tokens that moved below -clip_low, or above clip_high, where the advantage drives them further."""
    return (advantages < 0) & (moved < -loss.clip_low), (advantages > 0) & (moved > loss.clip_high)


@torch.no_grad()
def find_dropped(loss: LossConfig, logprobs: Tensor, batch: Batch) -> Tensor:  # bool
    """Mark the tokens with a negative advantage in rows whose mean log(pi_old / pi) exceeds `loss.max_negative_kl`.

    It is the off-policy mask of DeepSeek-V3.2 (arXiv 2512.02556, section 3.1), for each token's own advantage.
    """
    if loss.max_negative_kl is None:
        return torch.zeros_like(batch.mask)
    distance = mean_over_rows(batch.behavior_logprobs - logprobs, batch.mask)
    return batch.mask & (batch.advantages < 0) & (distance > loss.max_negative_kl)


def find_kept(loss: LossConfig, logprobs: Tensor, batch: Batch) -> Tensor:  # bool
    """Mark the trained tokens that `loss.mask_logprob` leaves: it drops improbable ones (EMPO2, section 4.4).

    `loss.mask_unit` "token" drops that token of an off-policy row; "response" drops the unbroken run of trained tokens
    that holds it. The first token of a row is never trained.
    """
    mask = batch.mask
    if loss.mask_logprob is None:
        return mask
    improbable = mask & batch.off_policy[:, None] & (logprobs < loss.mask_logprob)
    if loss.mask_unit == "token":
        return mask & ~improbable
    starts = mask.clone()
    starts[:, 1:] &= ~mask[:, :-1]
    response = starts.flatten().cumsum(0)  # (B * T,) runs counted from 1; a row starts untrained, so no run spans two
    doomed = torch.zeros(response.numel() + 1, dtype=torch.bool, device=mask.device)
    doomed[response[improbable.flatten()]] = True
    return mask & ~doomed[response].view_as(mask)


def masked_sum(
    values: Tensor, mask: Tensor, aggregation: Aggregation = "token", length: int = 1
) -> tuple[Tensor, Tensor]:  # (), ()
    """Compute numerator and denominator of a mean over the mask; both add up over the parts of a batch.

    "token": sum over tokens, number of tokens. "sequence": sum over rows of row means, number of rows that have any
    token in the mask. "constant": the same with the row's sum over `length` for its mean (Dr. GRPO, arXiv 2503.20783).
    """
    kept = values * mask
    if aggregation == "token":
        return kept.sum(), mask.sum()
    lengths = mask.sum(-1)
    if aggregation == "constant":
        return kept.sum() / length, (lengths > 0).sum()
    return (kept.sum(-1) / lengths.clamp(min=1)).sum(), (lengths > 0).sum()


class EpisodeLoss(NamedTuple):
    """Numerators and denominators (), of the loss of episodes, and what their tokens (B, T) came to."""

    policy: Tensor
    num_kept: Tensor
    kl: Tensor
    num_compared: Tensor
    kept: Tensor
    surrogate: Surrogate

    @classmethod
    def compute(cls, loss: LossConfig, logprobs: Tensor, batch: Batch, reference: Tensor | None) -> EpisodeLoss:
        """Compute both terms of a batch; `reference` (B, T) are log-probabilities of the reference model."""
        kept = find_kept(loss, logprobs.detach(), batch)
        surrogate = compute_surrogate(loss, logprobs, batch)
        mean = loss.aggregation, loss.constant_length
        policy, num_kept = masked_sum(surrogate.loss, kept, *mean)
        kl, num_compared = torch.zeros_like(policy), num_kept
        if reference is not None:
            kl, num_compared = masked_sum(k3_kl(logprobs, reference), kept if loss.mask_kl else batch.mask, *mean)
        return cls(policy, num_kept, kl, num_compared, kept, surrogate)


def is_trained(sample: Sample, loss: LossConfig) -> bool:
    """Tell whether a row has anything to learn; with `loss.drop_zero_advantage` an episode needs an advantage."""
    if sample.role != "episode":
        return any(sample.loss_mask) and bool(get_term_weights(sample))
    if loss.drop_negative_off_policy and sample.off_policy and min(sample.advantages) < 0 >= max(sample.advantages):
        return False
    return any(sample.loss_mask) and (any(sample.advantages) or not loss.drop_zero_advantage)


def get_term_weights(sample: Sample) -> dict[str, float]:
    weights = {"policy": float(any(sample.advantages)), "hold": sample.hold, "imitate": sample.imitate}
    return {name: weight for name, weight in weights.items() if weight}


def compute_token_weights(samples: Sequence[Sample], aggregation: Aggregation) -> list[list[float]]:
    """Compute the factor of each of `TERMS` of a trained token, so that the sum over all rows is the loss.

    `samples` are the rows of one mini-batch that are no episodes; all have a trained token. With the aggregation
    "sequence" the mean of the surrogate runs over the rows' own means, otherwise over the tokens of the role that have
    an advantage. Returns for each row (3,) in the order of `TERMS`; 0 for a term that it does not have.
    """
    by_row = {term: term != "policy" or aggregation == "sequence" for term in TERMS}
    sizes: Counter[tuple[RowRole, str, float]] = Counter()
    for sample in samples:
        for term, weight in get_term_weights(sample).items():
            sizes[sample.role, term, weight] += 1 if by_row[term] else sum(sample.loss_mask)
    rows = []
    for sample in samples:
        own, tokens = get_term_weights(sample), sum(sample.loss_mask)
        shares = {term: sizes[sample.role, term, own[term]] * (tokens if by_row[term] else 1) for term in own}
        rows.append([own[term] / shares[term] if term in own else 0.0 for term in TERMS])
    return rows


STEP_METRICS = ("loss", "policy_loss", "kl_to_reference", "grad_norm")
MEANS = {  # name: a sum, what it is divided by, and the mean of nothing
    "kl_to_behavior": ("kl_on", "on", 0.0),
    "kl_to_behavior_off_policy": ("kl_off", "off", 0.0),
    "ratio_mean": ("ratio", "kept", 1.0),
    "ratio_mean_off_policy": ("ratio_off", "kept_off", 1.0),
    "clip_fraction_low": ("low", "kept", 0.0),
    "clip_fraction_high": ("high", "kept", 0.0),
    "dual_clip_fraction": ("dual", "kept", 0.0),
    "masked_fraction": ("masked", "off", 0.0),
    "dropped_fraction": ("dropped", "trained", 0.0),
    "entropy": ("entropy", "trained", 0.0),
}


class UpdateMetrics:
    """Sums over the micro-batches and steps of one update, on the device, read once.

    "Trained" tokens are those of the loss mask; "kept" ones are left after the low-probability mask.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._steps: list[tuple[float, float, float, float]] = []
        self._ratio_max: list[Tensor] = []
        self._ratio_min: list[Tensor] = []
        self._computed = 0

    @torch.no_grad()
    def add_batch(
        self, loss: LossConfig, batch: Batch, logprobs: Tensor, entropies: Tensor, episodes: EpisodeLoss
    ) -> None:
        kept, surrogate, ratio = episodes.kept, episodes.surrogate, episodes.surrogate.ratio
        off = batch.mask & batch.off_policy[:, None]
        kl = k3_kl(batch.behavior_logprobs, logprobs)
        sums = {
            "trained": batch.mask.sum(),
            "kept": kept.sum(),
            "off": off.sum(),
            "entropy": (entropies * batch.mask).sum(),
            "ratio": (ratio * kept).sum(),
            "ratio_off": (ratio * (kept & off)).sum(),
            "kept_off": (kept & off).sum(),
            "kl_on": (kl * (batch.mask & ~off)).sum(),
            "kl_off": (kl * off).sum(),
            "dropped": find_dropped(loss, logprobs, batch).sum(),
            "low": (surrogate.low & kept).sum(),
            "high": (surrogate.high & kept).sum(),
            "dual": (surrogate.dual & kept).sum(),
        }
        if not self._steps:  # the weights are those that sampled, if none were updated since then
            sampled = batch.mask & ~off
            distance = (logprobs - batch.behavior_logprobs).abs()
            sums |= {
                "fresh": sampled.sum(),
                "fresh_difference": torch.where(sampled, distance, 0.0).sum(),
                "fresh_ratio": torch.where(sampled, ratio, 0.0).sum(),
            }
        for name, value in sums.items():
            self._add(name, value)
        self._ratio_max.append(torch.where(kept, ratio, -torch.inf).max())
        self._ratio_min.append(torch.where(kept, ratio, torch.inf).min())
        self._computed += batch.num_computed

    @torch.no_grad()
    def add_non_episodes(self, rows: Sequence[Sample], batch: Batch, terms: Tensor) -> None:
        """Add one micro-batch of rows that are no episodes, with their `TERMS`: (B, T, 3)."""
        tokens = batch.mask.sum(-1)  # (B,)
        _, kl, nll = (terms * batch.mask[..., None]).sum(1).unbind(-1)  # (B,) each
        for i, row in enumerate(rows):
            self._add(f"tokens_{row.role}", tokens[i])
            if row.hold:
                self._add(f"kl_{row.role}", kl[i])
                self._add(f"held_{row.role}", tokens[i])
            if row.imitate:
                self._add(f"nll_{row.role}", nll[i])
                self._add(f"imitated_{row.role}", tokens[i])
        self._computed += batch.num_computed

    def _add(self, name: str, value: Tensor) -> None:
        self._sums[name] = self._sums[name] + value.double() if name in self._sums else value.double()

    def add_step(self, loss: float, policy: float, kl: float, grad_norm: float) -> None:
        self._steps.append((loss, policy, kl, grad_norm))

    def result(self, ranks: Ranks | None = None) -> dict[str, float]:
        """Compute the metrics of all ranks; means over an empty set are 0, a ratio of nothing is 1."""
        sums: dict[str, float] = defaultdict(float)
        values = torch.stack(list(self._sums.values())).tolist() if self._sums else []
        own = dict(zip(self._sums, values, strict=True)) | {"computed": float(self._computed)}
        most = float(torch.stack(self._ratio_max).max()) if self._ratio_max else -math.inf
        least = float(torch.stack(self._ratio_min).min()) if self._ratio_min else math.inf
        parts = (ranks or Ranks()).gather((own, most, least))
        for part, _, _ in parts:
            for name, value in part.items():
                sums[name] += value
        most, least = max(part[1] for part in parts), min(part[2] for part in parts)
        sums["on"], sums["masked"] = sums["trained"] - sums["off"], sums["off"] - sums["kept_off"]
        others = {name: sums[name] for name in sorted(sums) if name.startswith("tokens_")}
        means = {name: _divide(sums[total], sums[count], default) for name, (total, count, default) in MEANS.items()}
        # The mismatch of the sampler's log-probabilities of on-policy rows, before the first step.
        for name in ("difference", "ratio") if sums["fresh"] else ():
            means[name] = sums[f"fresh_{name}"] / sums["fresh"]
        for metric, total, count in (("kl_to_reference", "kl", "held"), ("nll", "nll", "imitated")):
            for role in [name.removeprefix(f"{count}_") for name in sums if name.startswith(f"{count}_")]:
                means[f"{metric}_{role}"] = _divide(sums[f"{total}_{role}"], sums[f"{count}_{role}"])
        steps = [float(np.mean(column)) for column in zip(*self._steps, strict=True)] or [0.0] * 4
        return dict(zip(STEP_METRICS, steps, strict=True)) | means | others | {
            "ratio_max": most if math.isfinite(most) else 1.0,
            "ratio_min": least if math.isfinite(least) else 1.0,
            "tokens_trained": sums["trained"] + sum(others.values()),
            "tokens_off_policy": sums["off"],
            "tokens_forward": sums["computed"],
            "optimizer_steps": float(len(self._steps)),
        }  # fmt: skip


def compute_advantage_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    by_trajectory: dict[int, list[float]] = defaultdict(list)
    for sample in samples:
        pairs = zip(sample.advantages, sample.loss_mask, strict=True)
        by_trajectory[sample.trajectory] += [advantage for advantage, trained in pairs if trained]
    means = np.array([np.mean(values) for values in by_trajectory.values() if values])
    return {
        "advantage_mean": float(means.mean()) if means.size else 0.0,
        "advantage_std": float(means.std(ddof=1)) if means.size > 1 else 0.0,
        "zero_advantage_rows": float(sum(not any(sample.advantages) for sample in samples)),
        "rows": float(len(samples)),
    }


def _divide(part: float, whole: float, otherwise: float = 0.0) -> float:
    return part / whole if whole else otherwise
