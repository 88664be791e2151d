"""Which of several candidate actions to take: what the policy finds likely, mixed with what the critic finds good.

Source: Retrospex (arXiv 2505.11807): pure functions, free of torch. Candidates are lists of actions; numbers stand in
the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from trailnotes.memory.retrieval import Embedder

NUM_RECENT = 3  # actions that the rule `recent_actions` leaves out
FOCUS_PREFIX = "focus on "


def policy_weight(step: int, decay: float, floor: float) -> float:
    """How much the policy counts at step t: lambda_t = max(b, d^t); the critic counts the rest."""
    return max(floor, decay**step)


def min_max_normalize(values: Sequence[float]) -> list[float]:
    """Values moved to [0, 1]; all are 0.5 where they are equal, so that a single one does no harm."""
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.5 for value in values]


def select_candidate(likelihoods: Sequence[float], advantages: Sequence[float], weight: float) -> int:
    """Index of the largest lambda p^ + (1 - lambda) q^, the first one if several are.

    Args:
        likelihoods: exp of the mean log-probability of each action's tokens.
        advantages: Q(s, a) - V(s) of each action.
        weight: lambda, of the policy.
    """
    pairs = zip(min_max_normalize(likelihoods), min_max_normalize(advantages), strict=True)
    mixed = [weight * p + (1 - weight) * q for p, q in pairs]
    return mixed.index(max(mixed))


def map_to_admissible(predicted: Sequence[str], admissible: Sequence[str], num: int, embedder: Embedder) -> list[str]:
    """Up to `num` admissible actions: those that were predicted, then those most like all predictions together.

    Args:
        predicted: what the policy said, in this order, repeats included: what it says twice pulls twice.
        admissible: all that the environment takes; none is returned that is not among them.
        num: k.
        embedder: likeness is the sum of the cosine similarities to all of `predicted`.
    """
    offered = list(dict.fromkeys(admissible))
    exact = [action for action in dict.fromkeys(predicted) if action in set(offered)]
    others = [action for action in offered if action not in exact]
    if others and predicted and len(exact) < num:
        likeness = (embedder.embed(others) @ embedder.embed(list(predicted)).T).sum(axis=1)
        others = [others[index] for index in np.argsort(-np.round(likeness, 6), kind="stable")]
    return (exact + others)[:num]


def apply_heuristics(
    actions: Sequence[str], heuristics: Collection[str], instruction: str, history: Sequence[str]
) -> list[str]:
    """What the named rules of the release leave of `actions`; all of them where nothing would be left.

    `recent_actions` drops the last three actions; `focus_named` drops "focus on X" unless the instruction names X.
    """
    left = list(actions)
    if "recent_actions" in heuristics:
        left = [action for action in left if action not in history[-NUM_RECENT:]]
    if "focus_named" in heuristics:
        left = [
            a
            for a in left
            if not a.startswith(FOCUS_PREFIX) or a.removeprefix(FOCUS_PREFIX).lower() in instruction.lower()
        ]
    return left or list(actions)
