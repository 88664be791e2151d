"""Returns and advantages, from numbers alone.

Statistics are taken over the episodes of a group, before anything is padded, split into rows or dropped.
"""

from trailnotes.credit.episodes import (
    Scores,
    discount_across_episodes,
    discounted_return,
    episode_return,
    group_advantages,
    group_relative,
    leave_one_out,
    leave_one_out_advantages,
)
from trailnotes.credit.steps import (
    Visits,
    assign_state_ids,
    build_histories,
    collect_visits,
    episode_relative,
    step_relative,
    weigh_levels,
)

__all__ = [
    "Scores", "Visits", "assign_state_ids", "build_histories", "collect_visits", "discount_across_episodes",
    "discounted_return", "episode_relative", "episode_return", "group_advantages", "group_relative",
    "leave_one_out", "leave_one_out_advantages", "step_relative", "weigh_levels",
]  # fmt: skip
