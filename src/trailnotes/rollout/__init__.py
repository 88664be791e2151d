"""Episodes: one agent's loop, groups of them at once, the tips written afterwards, and what they measure."""

from __future__ import annotations

from trailnotes.rollout.episode import (
    Actor,
    AsyncEnv,
    Decision,
    MakeActor,
    Pool,
    Seating,
    TipsActor,
    action_sampling,
    context_limit,
    find_tips,
    num_tokens,
    observe_within,
    run_episode,
)
from trailnotes.rollout.groups import MemoryOf, OnTrajectory, gather, rollout_metrics, run_groups
from trailnotes.rollout.tips import (
    Request,
    Written,
    WrittenTip,
    tip_metrics,
    tip_requests,
    write_all,
    write_tips,
    written_about,
    written_tips,
)

__all__ = [
    "Actor",
    "AsyncEnv",
    "Decision",
    "MakeActor",
    "MemoryOf",
    "OnTrajectory",
    "Pool",
    "Request",
    "Seating",
    "TipsActor",
    "Written",
    "WrittenTip",
    "action_sampling",
    "context_limit",
    "find_tips",
    "gather",
    "num_tokens",
    "observe_within",
    "rollout_metrics",
    "run_episode",
    "run_groups",
    "tip_metrics",
    "tip_requests",
    "write_all",
    "write_tips",
    "written_about",
    "written_tips",
]
