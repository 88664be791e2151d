"""What one update says about itself, summed on the device and read once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from trailnotes.learner import losses
from trailnotes.learner.logprobs import Batch
from trailnotes.learner.ranks import Ranks, SingleRank
from trailnotes.types import Sample


class UpdateMetrics:
    """Sums over the micro-batches and steps of one update.

    "Trained" tokens are those of the loss mask; "kept" ones are left after the low-probability mask.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._steps: dict[str, list[float]] = defaultdict(list)
        self._ratio_max: list[Tensor] = []
        self._ratio_min: list[Tensor] = []
        self._computed = 0

    @torch.no_grad()
    def add_batch(
        self,
        batch: Batch,
        kept: Tensor,  # (B, T) bool
        logprobs: Tensor,  # (B, T)
        ratio: Tensor,  # (B, T)
        entropies: Tensor,  # (B, T)
        clipped: tuple[Tensor, Tensor, Tensor],  # low, high, dual, each (B, T) bool
    ) -> None:
        """Add one micro-batch of one pass."""
        off = batch.mask & batch.off_policy[:, None]
        kl = losses.k3_kl(batch.behavior_logprobs, logprobs)
        low, high, dual = ((event & kept).sum() for event in clipped)
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
            "low": low,
            "high": high,
            "dual": dual,
        }
        if not self._steps:  # the weights are those that sampled, if none were updated since then
            sampled = batch.mask & ~off
            distance = (logprobs - batch.behavior_logprobs).abs()
            sums |= {
                "fresh": sampled.sum(),
                "fresh_distance": torch.where(sampled, distance, 0.0).sum(),
                "fresh_ratio": torch.where(sampled, ratio, 0.0).sum(),
            }
        for name, value in sums.items():
            self._add(name, value)
        self._ratio_max.append(torch.where(kept, ratio, -torch.inf).max())
        self._ratio_min.append(torch.where(kept, ratio, torch.inf).min())
        self._computed += batch.num_computed

    @torch.no_grad()
    def add_non_episodes(self, rows: Sequence[Sample], batch: Batch, terms: Tensor) -> None:
        """Add one micro-batch of rows that are no episodes; `terms` (B, T, 3) are theirs, as `roles.TERMS` has them."""
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
        """Add one optimiser step: its loss, two means of its episodes, and the gradient's norm before clipping."""
        self._steps["loss"].append(loss)
        self._steps["policy_loss"].append(policy)
        self._steps["kl_to_reference"].append(kl)
        self._steps["grad_norm"].append(grad_norm)

    def result(self, ranks: Ranks | None = None) -> dict[str, float]:
        """The metrics of all ranks; means over an empty set are 0, a ratio of nothing is 1."""
        sums: dict[str, float] = defaultdict(float)
        parts = (ranks or SingleRank()).gather(self._collect_local_sums())
        for part, _, _ in parts:
            for name, value in part.items():
                sums[name] += value
        most, least = max(part[1] for part in parts), min(part[2] for part in parts)
        on = sums["trained"] - sums["off"]
        names = ("loss", "policy_loss", "kl_to_reference", "grad_norm")
        others = {name: sums[name] for name in sorted(sums) if name.startswith("tokens_")}
        return {name: float(np.mean(self._steps[name])) if self._steps[name] else 0.0 for name in names} | {
            "kl_to_behavior": _divide(sums["kl_on"], on),
            "kl_to_behavior_off_policy": _divide(sums["kl_off"], sums["off"]),
            "ratio_mean": _divide(sums["ratio"], sums["kept"], 1.0),
            "ratio_mean_off_policy": _divide(sums["ratio_off"], sums["kept_off"], 1.0),
            "ratio_max": _finite_or_one(most),
            "ratio_min": _finite_or_one(least),
            "clip_fraction_low": _divide(sums["low"], sums["kept"]),
            "clip_fraction_high": _divide(sums["high"], sums["kept"]),
            "dual_clip_fraction": _divide(sums["dual"], sums["kept"]),
            "masked_fraction": _divide(sums["off"] - sums["kept_off"], sums["off"]),
            "entropy": _divide(sums["entropy"], sums["trained"]),
            "tokens_trained": sums["trained"] + sum(others.values()),
            "tokens_off_policy": sums["off"],
            "tokens_forward": sums["computed"],
            "optimiser_steps": float(len(self._steps["loss"])),
            **others,
            **self._compute_sampler_mismatch(sums),
            **{f"kl_to_reference_{role}": value for role, value in _compute_role_means(sums, "kl", "held").items()},
            **{f"nll_{role}": value for role, value in _compute_role_means(sums, "nll", "imitated").items()},
        }

    def _compute_sampler_mismatch(self, sums: Mapping[str, float]) -> dict[str, float]:
        """How far the sampler's log-probabilities of on-policy rows are from the model's before its first step."""
        if not sums["fresh"]:
            return {}
        return {"difference": sums["fresh_distance"] / sums["fresh"], "ratio": sums["fresh_ratio"] / sums["fresh"]}

    def _collect_local_sums(self) -> tuple[dict[str, float], float, float]:
        """What this rank has seen: its sums, and the largest and the smallest ratio."""
        values = torch.stack(list(self._sums.values())).tolist() if self._sums else []
        sums = dict(zip(self._sums, values, strict=True)) | {"computed": float(self._computed)}
        most = float(torch.stack(self._ratio_max).max()) if self._ratio_max else -math.inf
        least = float(torch.stack(self._ratio_min).min()) if self._ratio_min else math.inf
        return sums, most, least


def _compute_role_means(sums: Mapping[str, float], value: str, count: str) -> dict[str, float]:
    """By role, the mean over the tokens that were counted for it."""
    roles = [name.removeprefix(f"{count}_") for name in sums if name.startswith(f"{count}_")]
    return {role: _divide(sums[f"{value}_{role}"], sums[f"{count}_{role}"]) for role in roles}


def compute_advantage_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Mean and sample deviation of advantages over trajectories, dropped ones included; rows that teach nothing."""
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


def _finite_or_one(number: float) -> float:
    return number if math.isfinite(number) else 1.0
