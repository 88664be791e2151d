"""From episodes to the numbers that credit is made of: returns, states, and fines for invalid actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trailnotes.credit import Scores, episode_return
from trailnotes.prompts import NO_OP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trailnotes.config.schema import AlgorithmConfig
    from trailnotes.types import Step, TrajectoryGroup


def scores_of(group: TrajectoryGroup, algorithm: AlgorithmConfig) -> Scores:
    """What the episodes of a group earned, with `algorithm.beta` times their novelty.

    A state is the raw text of an observation, without history or instruction. Each invalid action is fined
    `algorithm.invalid_penalty`: before advantages are taken, or off the advantage of its step.
    """
    episodes = group.trajectories
    fines = tuple(
        algorithm.invalid_penalty * np.array([is_invalid(step, algorithm.invalid) for step in t.steps], dtype=float)
        for t in episodes
    )
    none = tuple(np.zeros(len(t.steps)) for t in episodes)
    before = algorithm.penalty_stage == "before"
    return Scores(
        returns=np.array([episode_return(t, algorithm.beta) for t in episodes]),
        rewards=tuple(
            np.array([step.reward + algorithm.beta * step.reward_intrinsic for step in t.steps]) for t in episodes
        ),
        states=tuple(tuple(step.observation.text for step in t.steps) for t in episodes),
        penalties=fines if before else none,
        deductions=none if before else fines,
    )


def is_invalid(step: Step, rule: str) -> bool:
    """Whether the action could not be read; by the rule "inadmissible" also whether the environment ruled it out.

    That is judged where the environment offers its admissible actions, without regard to case and blanks.
    """
    offered = step.observation.actions
    if step.action == NO_OP or rule == "format" or offered is None:
        return step.action == NO_OP
    return _plain(step.action) not in map(_plain, offered)


def valid_share(groups: Sequence[TrajectoryGroup], rule: str) -> float:
    """Share of the actions that are not invalid; 0 of none."""
    steps = [step for group in groups for trajectory in group.trajectories for step in trajectory.steps]
    return sum(not is_invalid(step, rule) for step in steps) / max(1, len(steps))


def _plain(action: str) -> str:
    return " ".join(action.lower().split())
