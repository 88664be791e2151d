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
    EXTRACT,
    CompletionRequest,
    TipBatch,
    WrittenTip,
    build_tip_requests,
    complete_requests,
    compute_tip_metrics,
    extract_tips,
    parse_tips,
    select_usable,
    write_tips,
)

__all__ = [
    "EXTRACT", "AsyncEnv", "CompletionRequest", "Decision", "EpisodeContext", "MakeActor", "OnTrajectory", "Pool",
    "SelectMemory", "TipBatch", "TipsActor", "WrittenTip", "build_tip_requests", "complete_requests",
    "compute_prompt_limit", "compute_rollout_metrics", "compute_tip_metrics", "count_prompt_tokens", "extract_tips",
    "gather_or_cancel", "observe_within_limit", "parse_tips", "run_episode", "run_groups", "select_usable",
    "write_tips",
]  # fmt: skip
