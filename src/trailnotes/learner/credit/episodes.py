"""Scores of episodes, and advantages that compare whole episodes with their group."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trailnotes.config.methods_schema import AlgorithmConfig
from trailnotes.types import NO_OP, Trajectory, TrajectoryGroup

Array = NDArray[np.float64]
EPSILON = 1e-6  # keeps a group of nearly equal returns from dividing by nothing (EMPO2, release 0b40cb72)
ROUNDING = 1e-9  # relative: returns that differ by less are equal, and were summed in another order


@dataclass(frozen=True, slots=True)
class Scores:
    """Numbers of the N episodes of one group that advantages are made of. Episode i has T_i steps."""

    returns: Array  # (N,) R_i, the whole episode's; statistics are taken over these
    rewards: tuple[Array, ...]  # N times (T_i,): r_it
    states: tuple[tuple[Hashable, ...], ...]  # N times T_i: what was seen before each action
    penalties: tuple[Array, ...]  # N times (T_i,): subtracted from a step's score, before it is compared

    def __post_init__(self) -> None:
        lengths = {tuple(map(len, rows)) for rows in (self.rewards, self.states, self.penalties)}
        if len(lengths) != 1 or len(self.returns) != len(self.rewards):
            raise ValueError(f"the numbers of a group differ in length: {sorted(lengths)}, {len(self.returns)} returns")


def score_group(group: TrajectoryGroup, algorithm: AlgorithmConfig) -> Scores:
    """Score the episodes of a group, with `algorithm.beta` times their novelty, returns by `algorithm.discount`.

    A state is the raw text of an observation. `algorithm.invalid_penalty` of each unreadable action is subtracted
    before advantages are computed.
    """
    episodes = group.trajectories
    unreadable = ([step.action == NO_OP for step in t.steps] for t in episodes)
    return Scores(
        returns=np.array([episode_return(t, algorithm.beta, algorithm.discount) for t in episodes]),
        rewards=tuple(
            np.array([step.reward + algorithm.beta * step.reward_intrinsic for step in t.steps]) for t in episodes
        ),
        states=tuple(tuple(step.observation.text for step in t.steps) for t in episodes),
        penalties=tuple(algorithm.invalid_penalty * np.array(row, dtype=float) for row in unreadable),
    )


def episode_return(trajectory: Trajectory, beta: float = 0.0, discount: float = 1.0) -> float:
    """Sum R = sum_t discount^t (r_t + beta * r_int_t) exactly, t = 0 at the first step (EMPO2, 4.3)."""
    if not beta and discount == 1:
        return trajectory.episode_return
    terms = enumerate(trajectory.steps)
    return math.fsum(discount**t * part for t, step in terms for part in (step.reward, beta * step.reward_intrinsic))


def compute_valid_share(groups: Sequence[TrajectoryGroup]) -> float:
    """Compute the share of readable actions; 0 of none."""
    steps = [step for group in groups for trajectory in group.trajectories for step in trajectory.steps]
    return sum(step.action != NO_OP for step in steps) / max(1, len(steps))


def group_relative(
    values: ArrayLike, normalize_std: bool = True, *, group: ArrayLike | None = None, ddof: int = 1
) -> Array:
    """Compute A = (x - mean R) / (std R + 1e-6) with the sample deviation (GRPO, arXiv 2402.03300, eq. 3).

    `values` (M,) are x; `group` (N,) is R, None for x itself. Without `normalize_std` only the mean is subtracted (Dr.
    GRPO, arXiv 2503.20783). Returns (M,) advantages; exact zeros in a group of equal values, up to rounding. Raises
    `ValueError` for values that are no row of finite numbers.
    """
    compared = _to_array(values)
    reference = compared if group is None else _to_array(group)
    if not reference.size:
        return np.zeros_like(compared)
    tolerance = ROUNDING * float(np.abs(reference).max())
    if np.ptp(reference) > tolerance:
        centred: Array = compared - reference.mean()
        return centred / (float(reference.std(ddof=ddof)) + EPSILON) if normalize_std else centred
    centred = compared - reference[0]
    return np.where(np.abs(centred) > tolerance, centred, 0.0)


def leave_one_out(returns: ArrayLike) -> Array:
    """Compute A_i = R_i - mean_{j != i} R_j of (N,) returns (RLOO: Ahmadian et al., arXiv 2402.14740).

    Exact zeros where all returns are equal, and for a group of one. Raises as `group_relative`.
    """
    centred = group_relative(returns, normalize_std=False)
    return centred * (centred.size / max(1, centred.size - 1))


def group_advantages(scores: Scores, algorithm: AlgorithmConfig) -> list[Array]:
    """Compute `group_relative` of each step's score, its episode's return less its penalty: N times (T_i,).

    `algorithm.normalize_std` divides by the group's deviation. `algorithm.normalize_mean` divides by its mean return
    instead (MaxRL, arXiv 2602.02710), and refuses negative ones. Where all returns are equal, or 0 but for rounding,
    nothing is divided, and the penalties alone count.
    """
    scale, by_std = 1.0, algorithm.normalize_std
    if algorithm.normalize_mean:
        tolerance = ROUNDING * max((float(np.abs(row).sum()) for row in scores.rewards), default=0.0)
        if (scores.returns < -tolerance).any():
            raise ValueError("algorithm.normalize_mean = true divides by the mean return, and one is negative")
        mean = float(scores.returns.mean())
        if mean <= tolerance:
            return [0.0 - penalties for penalties in scores.penalties]
        scale, by_std = mean if np.ptp(scores.returns) > tolerance else 1.0, False
    rows = zip(scores.returns, scores.penalties, strict=True)
    return [group_relative(R - penalties, by_std, group=scores.returns) / scale for R, penalties in rows]


def leave_one_out_advantages(scores: Scores) -> list[Array]:
    """Compute `leave_one_out` of each step's score, N times (T_i,); a penalty counts unchanged."""
    rows = zip(leave_one_out(scores.returns), scores.penalties, strict=True)
    return [advantage - penalties for advantage, penalties in rows]


def _to_array(values: ArrayLike) -> Array:
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1 or not np.isfinite(row).all():
        raise ValueError(f"returns must be (N,) finite numbers, got {row.tolist()}")
    return row


def discount_across_episodes(episodes: Sequence[Scores], gamma: float) -> list[Scores]:
    """Let returns go on into later episodes: G_k = R_k + gamma * G_{k+1} (LaMer, 2512.16848).

    `episodes` are K scores of one group, whose N members played K episodes of their task in a row.
    """
    returns = discounted_return([scores.returns for scores in episodes], gamma)
    return [replace(scores, returns=row) for scores, row in zip(episodes, returns, strict=True)]


def discounted_return(rewards: ArrayLike, gamma: float) -> Array:
    """Compute G_t = r_t + gamma * G_{t+1} of (T, ...) rewards."""
    returns = np.asarray(rewards, dtype=np.float64).copy()
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += gamma * returns[t + 1]
    return returns
