"""The arithmetic of the experience table: running means, targets, and what a record knows. No storage here.

Source: REMEMBERER, "Large Language Models Are Semi-Parametric Reinforcement Learning Agents" (arXiv 2306.07929),
section 3.3, and its release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Experience:
    """One readable decision: situation, action, and reward. Rewards are in the environment's own unit."""

    task: str  # the goal in words, not the id: tasks with the same goal share the record
    observation: str  # o_t, whole
    action: str  # a_t, the text alone
    reward: float  # r_t, until the next readable decision
    history: tuple[str, ...] = ()  # readable actions before, oldest first
    admissible: tuple[str, ...] = ()  # offered at o_t
    last_reward: float = 0.0  # that came with o_t
    total_reward: float = 0.0  # of the episode until o_t


class QEstimate(NamedTuple):
    """A value and the number of updates that made it."""

    q: float = 0.0
    number: int = 0


@dataclass(frozen=True, slots=True)
class ActionValue:
    """The estimated value of one action in one situation."""

    action: str
    reward: float  # running mean of the immediate reward
    estimates: tuple[QEstimate, QEstimate] = (QEstimate(), QEstimate())  # the second is used by double Q-learning only

    @property
    def number(self) -> int:
        """Return the number of updates of both estimates."""
        return sum(estimate.number for estimate in self.estimates)

    @property
    def value(self) -> float:
        """Return Q: the mean of the estimates that exist."""
        known = [estimate.q for estimate in self.estimates if estimate.number]
        return math.fsum(known) / len(known)


@dataclass(frozen=True, slots=True)
class ExperienceRecord:
    """A situation (task, observation) with the context needed to print it again, and its actions."""

    id: int
    task: str
    observation: str
    history: tuple[str, ...] = ()  # the shortest that led here
    admissible: tuple[str, ...] = ()  # at the latest visit that offered any
    last_reward: float = 0.0  # running means over the visits
    total_reward: float = 0.0
    visits: int = 0
    age: int = 0  # of the latest update, counted in updates of the whole table
    values: Mapping[str, ActionValue] = field(default_factory=dict)  # by action

    @property
    def samples(self) -> int:
        """Return the number of updates of all actions."""
        return sum(value.number for value in self.values.values())

    def max_value(self, table: int | None = None) -> float | None:
        """Return the highest Q, or that of one of the two tables alone; None without any estimate."""
        if table is None:
            return max((value.value for value in self.values.values()), default=None)
        estimates = (value.estimates[table] for value in self.values.values())
        return max((estimate.q for estimate in estimates if estimate.number), default=None)


def update_mean(old: float, new: float, number: int, lr: float) -> float:
    """Move `old` towards `new` after `number` earlier values: by 1 / (number + 1), or by `lr` if that is not 0.

    The first value is taken as it is.
    """
    rate = lr if lr and number else 1 / (number + 1)
    return old + rate * (new - old)


def n_step_target(rewards: Sequence[float], gamma: float, bootstrap: float) -> float:
    """Compute ``sum_i gamma^i r_{t+i} + gamma^n max_a Q(g, o_{t+n}, a)``, with n the number of rewards."""
    discounted = math.fsum(gamma**i * reward for i, reward in enumerate(rewards))
    return discounted + gamma ** len(rewards) * bootstrap


def update_record(
    record: ExperienceRecord, experience: Experience, target: float, turn: int, lr: float
) -> ExperienceRecord:
    """Update a record by one more visit: the value of the action moves towards `target` in table `turn`."""
    old = record.values.get(experience.action, ActionValue(experience.action, 0.0))
    q, number = old.estimates[turn]
    estimate = QEstimate(update_mean(q, target, number, lr), number + 1)
    estimates = (estimate, old.estimates[1]) if turn == 0 else (old.estimates[0], estimate)
    value = ActionValue(old.action, update_mean(old.reward, experience.reward, old.number, lr), estimates)
    shorter = not record.visits or len(experience.history) <= len(record.history)
    return replace(
        record,
        history=experience.history if shorter else record.history,
        admissible=experience.admissible or record.admissible,
        last_reward=update_mean(record.last_reward, experience.last_reward, record.visits, lr),
        total_reward=update_mean(record.total_reward, experience.total_reward, record.visits, lr),
        visits=record.visits + 1,
        values={**record.values, value.action: value},
    )


def drop_worst_actions(values: Mapping[str, ActionValue], capacity: int) -> dict[str, ActionValue]:
    """Keep at most `capacity` actions: those of the smallest Q are dropped, of equal ones the least updated first."""
    ranked = sorted(values.values(), key=lambda value: (-value.value, -value.number, value.action))
    kept = {value.action for value in ranked[:capacity]}
    return {action: value for action, value in values.items() if action in kept}
