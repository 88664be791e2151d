"""Step advantages: among visits of one state in a group (GiGPO), or by level of history (HGPO).

Sources: GiGPO, arXiv 2505.10978, and HGPO (ICLR 2026), with what verl-agent's code (2716b30) settles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trailnotes.learner.credit.episodes import Array, Scores, discounted_return, group_relative


@dataclass(frozen=True, slots=True)
class Visits:
    """The steps of one group as M samples in any order. One listed twice counts once in every statistic."""

    trajectory: NDArray[np.int64]  # (M,) index of its episode
    step: NDArray[np.int64]  # (M,) t, from 0
    states: tuple[Hashable, ...]  # (M,) equal for visits of the same state
    episode_scores: Array  # (M,) x = R(trajectory) - penalty
    step_scores: Array  # (M,) y = sum_{k >= t} gamma^(k - t) r_k - penalty


def collect_visits(scores: Scores, gamma: float) -> Visits:
    """Collect the steps of all episodes in order; penalties are subtracted after discounting.

    `gamma` discounts the return from a step on.
    """
    lengths = [len(row) for row in scores.rewards]
    returns = [discounted_return(row, gamma) for row in scores.rewards]
    penalties = np.concatenate([np.zeros(0), *scores.penalties])
    return Visits(
        trajectory=np.repeat(np.arange(len(lengths)), lengths),
        step=np.array([t for length in lengths for t in range(length)], dtype=np.int64),
        states=tuple(assign_state_ids([state for row in scores.states for state in row])),
        episode_scores=np.repeat(scores.returns, lengths) - penalties,
        step_scores=np.concatenate([np.zeros(0), *returns]) - penalties,
    )


def assign_state_ids(states: Sequence[Hashable]) -> list[int]:
    """Assign each state (M,) a number from 0, the same to equal ones."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(state, len(known)) for state in states]


def step_relative(visits: Visits, states: Sequence[Hashable], normalize_std: bool = False, *, ddof: int = 1) -> Array:
    """Compute A^S (M,): each visit's score relative to visits of the same state (GiGPO, arXiv 2505.10978).

    `states` (M,) are groups of visits, `visits.states` or longer histories; None belongs to none. Exact zeros where
    fewer than two visits count.
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index, state in enumerate(states):
        if state is not None:
            members[state].append(index)
    advantages = np.zeros(len(visits.step))
    for indices in members.values():
        # Each visit once, ordered so that sums are always the same.
        once = {(visits.trajectory[i], visits.step[i]): i for i in reversed(indices)}
        counted = [once[place] for place in sorted(once)]
        if len(counted) > 1:
            values, group = visits.step_scores[indices], visits.step_scores[counted]
            advantages[indices] = group_relative(values, normalize_std, group=group, ddof=ddof)
    return advantages


def episode_relative(visits: Visits, returns: Array, normalize_std: bool = False) -> Array:
    """Compute A^E (M,): each visit's episode score relative to the returns (N,) (GiGPO, arXiv 2505.10978, eq. 3)."""
    return group_relative(visits.episode_scores, normalize_std, group=returns)


def weigh_levels(levels: Mapping[int, Array]) -> Array:
    """Compute A = sum_k w_k A_k (M,), with w_k ~ k + 1 over the levels k that are not 0 (HGPO); 0 where all are."""
    weights = {k: (k + 1.0) * (values != 0) for k, values in levels.items()}
    total = sum(weights.values(), np.zeros(1))
    nothing = np.zeros_like(total)
    return sum((weights[k] / np.where(total == 0, 1.0, total) * values for k, values in levels.items()), nothing)


def build_histories(visits: Visits, length: int) -> list[Hashable]:
    """Build the last `length` states of each visit (M,), oldest first; None where there were fewer."""
    seen = dict(zip(zip(visits.trajectory.tolist(), visits.step.tolist(), strict=True), visits.states, strict=True))
    return [
        tuple(seen[trajectory, t - back] for back in reversed(range(length))) if t + 1 >= length else None
        for trajectory, t in zip(visits.trajectory.tolist(), visits.step.tolist(), strict=True)
    ]
