"""Episodes: one agent's loop, groups of them at once, the notes written afterwards, and what they measure."""

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
from trailnotes.rollout.groups import OnTrajectory, gather, rollout_metrics, run_groups
from trailnotes.rollout.notes import (
    Note,
    Request,
    Written,
    note_metrics,
    note_requests,
    notes_of,
    write_all,
    write_tips,
    written_about,
)

__all__ = [
    "Actor",
    "AsyncEnv",
    "Decision",
    "MakeActor",
    "Note",
    "OnTrajectory",
    "Pool",
    "Request",
    "Seating",
    "TipsActor",
    "Written",
    "action_sampling",
    "context_limit",
    "find_tips",
    "gather",
    "note_metrics",
    "note_requests",
    "notes_of",
    "num_tokens",
    "observe_within",
    "rollout_metrics",
    "run_episode",
    "run_groups",
    "write_all",
    "write_tips",
    "written_about",
]
