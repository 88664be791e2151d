"""Dynamic sampling: groups whose members all earned the same teach nothing, and others are played in their place.

Source: DAPO, arXiv 2503.14476, section 3.2, with a limit of rounds as in verl-agent (2716b30).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

from trailnotes.types import Task, TrajectoryGroup

PlayRound = Callable[[int, int], Awaitable[list[TrajectoryGroup]]]


def has_equal_returns(group: TrajectoryGroup) -> bool:
    """Tell whether all members have the same return, novelty and penalties aside."""
    return len({trajectory.episode_return for trajectory in group.trajectories}) == 1


async def replace_equal_groups(
    groups: Sequence[TrajectoryGroup], num_rounds: int, play: PlayRound
) -> tuple[list[TrajectoryGroup], int]:
    """Replace groups with equal returns by freshly played ones, for at most `num_rounds` rounds.

    ``await play(number, num_groups)`` plays other tasks; `number` counts from 1. Returns the groups to train on, kept
    ones first, and how many were replaced.
    """
    kept = [group for group in groups if not has_equal_returns(group)]
    fresh = [group for group in groups if has_equal_returns(group)]
    replaced = 0
    for number in range(1, num_rounds + 1):
        num_equal = sum(map(has_equal_returns, fresh))
        if not num_equal:
            break
        kept += [group for group in fresh if not has_equal_returns(group)]
        fresh = await play(number, num_equal)
        replaced += num_equal
    return kept + fresh, replaced


def sample_further_tasks(tasks: Sequence[Task], played: Iterable[str], num: int, rng: random.Random) -> list[Task]:
    """Sample `num` tasks in random order, those first that stand least often in `played`."""
    often = Counter(played)
    order = sorted(rng.sample(tasks, len(tasks)), key=lambda task: often[task.id])
    return [order[i % len(order)] for i in range(num)]
