"""Credit for the author of a tip: what the tip was worth to its readers.

A mixed group holds the counterfactual: what members that read tips earned, less what members without tips earned in the
same group. docs/algorithms/empo2.md says why a reader's gain is shared as it is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from trailnotes.config.methods_schema import AlgorithmConfig
from trailnotes.learner.credit.episodes import group_relative, score_group
from trailnotes.types import Trajectory, TrajectoryGroup

TipKey = tuple[str, str]  # a task's id and a text that was written about it
Shares = Mapping[str, float]  # text -> its part in what its reader did, in [0, 1]; of all texts together at most 1


def list_shown_texts(trajectory: Trajectory) -> tuple[str, ...]:
    """List the texts of all tips that the episode was shown, each once, in order."""
    return tuple(dict.fromkeys(tip.text for step in trajectory.steps for tip in step.tips))


def split_equally(texts: Sequence[str]) -> dict[str, float]:
    return dict.fromkeys(texts, 1 / len(texts)) if texts else {}


def split_by_use(gains: Mapping[str, float], gain: float) -> dict[str, float]:
    """Split a reader's gain by how much likelier each tip makes the reader's actions.

    `gains` are log pi(actions | this tip alone) - log pi(actions | no tip) by text, `gain` that of all tips, in nats.
    Parts are positive gains over their sum, times 1 - exp(-gain), the part of the actions due to tips at all: so the
    reader's return estimates the mean effect of tips (importance sampling, truncated at 0). Without a positive gain
    they are equal.
    """
    due = max(0.0, -math.expm1(-gain))
    positive = {text: max(0.0, value) for text, value in gains.items()}
    total = math.fsum(positive.values())
    parts = {text: value / total for text, value in positive.items()} if total else split_equally(tuple(gains))
    return {text: due * part for text, part in parts.items()}


def compute_tip_credits(
    groups: Sequence[TrajectoryGroup], shares: Sequence[Sequence[Shares]], algorithm: AlgorithmConfig
) -> dict[TipKey, float]:
    """Compute each shown text's credit: the mean over its readers of its share of their gain.

    A gain is a return (as in `score_group`) less the mean return of the group's members without tips, over the
    group's deviation with `algorithm.normalize_std`. `shares` has a mapping of texts for each trajectory of each group,
    {} without tips. A text is credited once, however many wrote it; groups without a member of either kind give none.

    Returns (task, text) -> credit, in the order of showing.
    """
    if [len(group.trajectories) for group in groups] != [len(row) for row in shares]:
        raise ValueError("shares must hold a mapping for each trajectory of each group")
    earned: dict[TipKey, list[float]] = defaultdict(list)
    for group, row in zip(groups, shares, strict=True):
        relative = group_relative(score_group(group, algorithm).returns, algorithm.normalize_std).tolist()
        alone = [value for value, share in zip(relative, row, strict=True) if not share]
        if not alone:
            continue
        baseline = math.fsum(alone) / len(alone)
        for value, share in zip(relative, row, strict=True):
            for text, part in share.items():
                earned[group.task.id, text].append(part * (value - baseline))
    return {name: math.fsum(parts) / len(parts) for name, parts in earned.items()}
