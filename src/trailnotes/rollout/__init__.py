"""Plays episodes in groups, has tips written afterwards, and measures both."""

from trailnotes.rollout.episode import (
    AsyncEnv,
    Decision,
    EpisodeContext,
    MakeActor,
    Pool,
    TipsActor,
    compute_prompt_limit,
    count_prompt_tokens,
    observe_within_limit,
    run_episode,
)
from trailnotes.rollout.groups import OnTrajectory, SelectMemory, compute_rollout_metrics, gather_or_cancel, run_groups
from trailnotes.rollout.tips import (
    CompletionRequest,
    TipBatch,
    WrittenTip,
    build_tip_requests,
    complete_requests,
    compute_tip_metrics,
    parse_tips,
    select_usable,
    write_tips,
)

__all__ = [
    "AsyncEnv", "CompletionRequest", "Decision", "EpisodeContext", "MakeActor", "OnTrajectory", "Pool",
    "SelectMemory", "TipBatch", "TipsActor", "WrittenTip", "build_tip_requests", "complete_requests",
    "compute_prompt_limit", "compute_rollout_metrics", "compute_tip_metrics", "count_prompt_tokens",
    "gather_or_cancel", "observe_within_limit", "parse_tips", "run_episode", "run_groups", "select_usable",
    "write_tips",
]  # fmt: skip
