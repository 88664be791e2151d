"""Who deserves what: returns and advantages, on numbers alone.

Statistics are taken over the trajectories of a group, before anything is padded, split into rows or dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trailnotes.types import Trajectory

EPSILON = 1e-6  # keeps a group of nearly equal returns from dividing by nothing (EMPO2, release 0b40cb72)


def episode_return(trajectory: Trajectory, beta: float = 0.0) -> float:
    """R = sum_t r_t + beta * sum_t r_int_t, undiscounted (EMPO2, section 4.3).

    Args:
        trajectory: a whole episode; extrinsic and intrinsic rewards are read from its steps.
        beta: weight of the intrinsic rewards.

    Returns:
        The return in the environment's own unit. Summed exactly, so equal rewards give equal returns in any order.
    """
    rewards = [step.reward for step in trajectory.steps]
    bonuses = [beta * step.reward_intrinsic for step in trajectory.steps] if beta else []
    return math.fsum(rewards + bonuses)


def group_relative(returns: ArrayLike, normalize_std: bool = True) -> NDArray[np.float64]:
    """A_i = (R_i - mean R) / (std R + 1e-6), with the sample standard deviation (GRPO, arXiv 2402.03300, eq. 3).

    Args:
        returns: (N,) returns of the trajectories of one group.
        normalize_std: divide by the standard deviation (ddof 1); otherwise only the mean is taken off.

    Returns:
        (N,) advantages; exact zeros where all returns are equal, and for a group of one.

    Raises:
        ValueError: the returns are not one finite number for each trajectory.
    """
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(f"returns must be (N,) finite numbers, got {values.tolist()}")
    if values.size < 2 or np.ptp(values) == 0.0:
        return np.zeros_like(values)
    centred: NDArray[np.float64] = values - values.mean()
    if normalize_std:
        centred /= values.std(ddof=1) + EPSILON
    return centred


def novelty_bonus(counts: Sequence[int]) -> float:
    """Sum over an episode of 1/n_t, n_t being how often a state like s_t has been seen, itself included (EMPO2, 4.3).

    Args:
        counts: (T,) counts, each at least 1.

    Raises:
        ValueError: a count below 1.
    """
    if any(count < 1 for count in counts):
        raise ValueError(f"a state that was visited has a count of at least 1, got {list(counts)}")
    return math.fsum(1.0 / count for count in counts)


def discounted_return(rewards: ArrayLike, gamma: float) -> NDArray[np.float64]:
    """G_t = r_t + gamma * G_{t+1}, the discounted return from each step on.

    Args:
        rewards: (T,) rewards.
        gamma: discount in [0, 1].

    Returns:
        (T,) returns; the first is the episode's.

    Raises:
        ValueError: gamma is outside [0, 1].
    """
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must be in [0, 1], got {gamma}")
    returns = np.asarray(rewards, dtype=np.float64).copy()
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += gamma * returns[t + 1]
    return returns
