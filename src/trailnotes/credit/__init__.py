"""Who deserves what: returns and advantages, on numbers alone.

Statistics are taken over the episodes of a group, before anything is padded, split into rows or dropped.
"""

from trailnotes.credit.episodes import (
    EPSILON,
    Scores,
    across_episodes,
    discounted_return,
    episode_return,
    group_advantages,
    group_relative,
    leave_one_out,
    leave_one_out_advantages,
)
from trailnotes.credit.steps import (
    Visits,
    episode_relative,
    hierarchical,
    histories,
    state_ids,
    step_relative,
    visits_of,
)

__all__ = [
    "EPSILON",
    "Scores",
    "Visits",
    "across_episodes",
    "discounted_return",
    "episode_relative",
    "episode_return",
    "group_advantages",
    "group_relative",
    "hierarchical",
    "histories",
    "leave_one_out",
    "leave_one_out_advantages",
    "state_ids",
    "step_relative",
    "visits_of",
]
