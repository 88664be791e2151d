"""What a batch of episodes, and of notes, says about itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trailnotes.prompts import NO_OP
from trailnotes.rollout.notes import Note
from trailnotes.types import MODES, Trajectory, TrajectoryGroup


def rollout_metrics(groups: Sequence[TrajectoryGroup], errors: Sequence[Trajectory] = ()) -> dict[str, float]:
    """What a batch of episodes says about itself; {} but for `errors` if there is none.

    ====================  ==================================================================================
    return, success       means over episodes; success/MODE, return/MODE for each mode played
    episode_length        mean number of steps
    env_steps, tokens     sums: actions taken, tokens sampled for them
    truncated             share of episodes cut off by a step limit or a full context
    context_full          share of episodes that ended because the next turn did not fit
    unparsable            share of actions that became the no-op
    cut_actions           share of actions that ran into `max_action_tokens`
    action_changed        share of actions that the environment replaced, as `info` of the observation after says
    restarts              times that environments started their simulator anew, likewise
    tips_per_step         mean number of tips first shown in a turn, over the steps of modes with tips
    errors                failed episodes, as given
    ====================  ==================================================================================
    """
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    metrics = {"errors": float(len(errors))}
    if not episodes:
        return metrics
    steps = [step for episode in episodes for step in episode.steps]
    metrics |= _returns(episodes)
    for mode in MODES:
        played = [episode for episode in episodes if episode.mode == mode]
        metrics |= {f"{name}/{mode}": value for name, value in _returns(played).items() if played}
    seen = [[step.observation for step in episode.steps] + [episode.final_observation] for episode in episodes]
    tips = [len(step.tips) for episode in episodes if episode.mode != "plain" for step in episode.steps]
    return metrics | {
        "episode_length": len(steps) / len(episodes),
        "env_steps": float(len(steps)),
        "tokens": float(sum(episode.num_tokens for episode in episodes)),
        "truncated": _mean([episode.outcome == "truncated" for episode in episodes]),
        "context_full": _mean([episode.context_full for episode in episodes]),
        "unparsable": _mean([step.action == NO_OP for step in steps]),
        "cut_actions": _mean([step.completion.finish_reason == "length" for step in steps]),
        "action_changed": _mean([after.info.get("action_changed") is True for row in seen for after in row[1:]]),
        "restarts": float(sum(n for row in seen for o in row if isinstance(n := o.info.get("restarts"), int))),
        "tips_per_step": _mean(tips),
    }


def note_metrics(notes: Sequence[Note]) -> dict[str, float]:
    """What writing tips cost: notes written, notes without anything usable, tokens read and generated."""
    return {
        "notes": float(len(notes)),
        "notes_unusable": float(sum(not note.tips for note in notes)),
        "note_tokens_read": float(sum(note.completion.num_prompt_tokens for note in notes)),
        "note_tokens": float(sum(note.completion.num_tokens for note in notes)),
    }


def _returns(episodes: Sequence[Trajectory]) -> dict[str, float]:
    return {
        "return": _mean([episode.episode_return for episode in episodes]),
        "success": _mean([episode.success for episode in episodes]),
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
