"""Promising states to return to before exploring: Go-Explore's first phase, by replay.

Sources: "Go-Explore" (arXiv 1901.10995) and "First return, then explore" (arXiv 2004.12919). A cell is the text of an
observation, kept with the shortest known actions that lead there. A share of the plain members of a group is played
from such a state: its actions are replayed in silence, and the conversation starts with what is seen there. Replayed
actions are environment steps, but have no tokens: they are not trained on, and their rewards belong to no return.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from trailnotes.config.methods_schema import ArchiveConfig
from trailnotes.rollout import AsyncEnv, Pool
from trailnotes.rollout.groups import count_replayed
from trailnotes.types import Mode, Observation, Task, Trajectory, TrajectoryGroup, hash_state

RETURN_OPTION = "return_to"  # option of a task that is played from a kept state: the actions that lead there
MIN_RETURNING = 2  # members that return together: one alone has nothing to be compared with


@dataclass(frozen=True, slots=True)
class ArchiveCell:
    """A state, and how it was reached."""

    states: tuple[int, ...]  # hashes of the observations on the way, its own at the end; () is the start of the game
    actions: tuple[str, ...]  # as many
    score: float  # there, in the environment's own unit
    visits: int  # episodes that met it, replays not counted

    @property
    def depth(self) -> int:
        """Actions that it is away from the start."""
        return len(self.actions)


class Archive:
    """The cells of each task, what to return to, and how: `plan`, `pool`, `regroup`, `learn` are one iteration."""

    def __init__(self, config: ArchiveConfig) -> None:
        self.config = config
        self._cells: dict[str, dict[int, ArchiveCell]] = {}  # by task and state
        self._targets: dict[str, ArchiveCell] = {}  # by task: where its returning members go, in this iteration
        self._lost: set[str] = set()  # tasks whose target was not found again
        self.replayed_steps = 0  # in this iteration

    def plan(
        self, tasks: Sequence[Task], modes: Sequence[Sequence[Mode]], rng: random.Random
    ) -> tuple[list[Task], list[list[Mode]]]:
        """Split groups: `share` of the plain members become a group of their own, which returns to one cell.

        A group is compared within itself, so all its members start alike. A task without a cell is left as it is, and
        so is one of which fewer than two members would return.

        Returns:
            Tasks and rows of modes for `run_groups`, those that return marked by `RETURN_OPTION` among their options.
        """
        planned: list[tuple[Task, list[Mode]]] = []
        for task, row in zip(tasks, modes, strict=True):
            returning = round(self.config.share * row.count("plain"))
            if returning < MIN_RETURNING or not (cell := self._choose_target(task.id, rng)):
                planned.append((task, list(row)))
                continue
            plain = [i for i, mode in enumerate(row) if mode == "plain"]
            gone = set(plain[-returning:])
            stay: list[Mode] = [mode for i, mode in enumerate(row) if i not in gone]
            planned += [(task, stay)] if stay else []
            marked = replace(task, options={**task.options, RETURN_OPTION: list(cell.actions)})
            planned.append((marked, ["plain"] * returning))
        return [task for task, _ in planned], [row for _, row in planned]

    def _choose_target(self, task: str, rng: random.Random) -> ArchiveCell | None:
        """The highest score first; among those, rarely visited ones by 1/sqrt(visits + 1). One a task and iteration."""
        cells = [cell for cell in self._cells.get(task, {}).values() if cell.depth]
        if not cells or task in self._targets:
            return self._targets.get(task)
        highest = max(cell.score for cell in cells)
        best = [cell for cell in cells if cell.score == highest]
        (chosen,) = rng.choices(best, [1 / math.sqrt(cell.visits + 1) for cell in best])
        self._targets[task] = chosen
        return chosen

    def wrap_pool(self, pool: Pool) -> Pool:
        """`pool`, whose environments go to the target of a task that is marked."""
        return _ReturningPool(pool, self)

    async def reset(self, env: AsyncEnv, task: Task) -> Observation:
        """Start `task`, and replay the way to its target if it is marked.

        Where a replay does not meet what was recorded, the cell is dropped and the game starts afresh.

        Returns:
            The observation there, with the instruction and the briefing of the start, and "returned" in its `info`.

        Raises:
            EnvError: as the environment does.
        """
        if RETURN_OPTION not in task.options:
            return await env.reset(task)
        cell, plain = self._targets[task.id], _remove_mark(task)
        first = seen = await env.reset(plain)
        for action, state in zip(cell.actions, cell.states, strict=True):
            self.replayed_steps += 1
            seen = await env.step(action)
            if seen.done or hash_state(seen.text) != state:
                self._lost.add(task.id)
                return await env.reset(plain)
        if seen.score != cell.score:
            self._lost.add(task.id)
            return await env.reset(plain)
        info = {**seen.info, "returned": cell.depth}
        return replace(seen, reward=0.0, instruction=first.instruction, briefing=first.briefing, info=info)

    def regroup(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """The groups as played, but returning members that had to start afresh in groups of their own."""
        result = []
        for group in groups:
            parts = [
                tuple(t for t in group.trajectories if bool(count_replayed(t)) == there) for there in (True, False)
            ]
            result += [replace(group, trajectories=part) for part in parts if part]
        return result

    def update(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Drop what was not found again, keep what the episodes met, and end the iteration.

        ===============  ==========================================================================
        cells            kept states of all tasks, afterwards
        dropped          of them that a replay did not find again, in this iteration
        returned         episodes that started from a kept state
        replayed_steps   environment steps taken to get there
        return, success  of these episodes, from there on
        ===============  ==========================================================================
        """
        for task in self._lost:
            self._cells[task].pop(self._targets[task].states[-1], None)
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        for trajectory in trajectories:
            self._record_states(trajectory)
        returned = [trajectory for trajectory in trajectories if count_replayed(trajectory)]
        metrics = {
            "cells": float(sum(cell.depth > 0 for cells in self._cells.values() for cell in cells.values())),
            "dropped": float(len(self._lost)),
            "returned": float(len(returned)),
            "replayed_steps": float(self.replayed_steps),
            "return": math.fsum(t.episode_return for t in returned) / max(1, len(returned)),
            "success": sum(t.success for t in returned) / max(1, len(returned)),
        }
        self._targets, self._lost, self.replayed_steps = {}, set(), 0
        return metrics

    def _record_states(self, trajectory: Trajectory) -> None:
        """Record every state of the episode: reached with a higher score, or by fewer actions at the same score."""
        cells = self._cells.setdefault(trajectory.task.id, {})
        start = self._targets[trajectory.task.id] if count_replayed(trajectory) else ArchiveCell((), (), 0.0, 0)
        states, actions = start.states, start.actions
        met: set[int] = set()
        for number, (action, observation) in enumerate(_iter_observations(trajectory)):
            state = hash_state(observation.text)
            if number:
                states, actions = (*states, state), (*actions, action)
            if observation.done or (self.config.max_depth and len(actions) > self.config.max_depth):
                break
            old = cells.get(state)
            visits = (old.visits if old else 0) + (state not in met)
            met.add(state)
            if old and (old.score, -old.depth) >= (observation.score, -len(actions)):
                cells[state] = replace(old, visits=visits)
            else:
                cells[state] = ArchiveCell(states, actions, observation.score, visits)
        self._trim(cells)

    def _trim(self, cells: dict[int, ArchiveCell]) -> None:
        """Forget the lowest scores, and of these the most visited, until the rest fits."""
        kept = [(state, cell) for state, cell in cells.items() if cell.depth]
        kept.sort(key=lambda pair: (pair[1].score, -pair[1].visits))
        for state, _ in kept[: max(0, len(kept) - self.config.capacity)]:
            del cells[state]

    def state_dict(self) -> dict[str, Any]:
        """All cells as JSON values; nothing else outlives an iteration."""
        return {task: [[state, asdict(cell)] for state, cell in cells.items()] for task, cells in self._cells.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._cells = {task: {key: _make_cell(**cell) for key, cell in cells} for task, cells in state.items()}


def select_from_start(groups: Iterable[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """The groups that began as the game does."""
    return [group for group in groups if not any(count_replayed(trajectory) for trajectory in group.trajectories)]


def _make_cell(states: Sequence[int], actions: Sequence[str], score: float, visits: int) -> ArchiveCell:
    return ArchiveCell(tuple(states), tuple(actions), score, visits)


def _iter_observations(trajectory: Trajectory) -> Iterable[tuple[str, Observation]]:
    """Each observation, with the action that led to it ('' for the first)."""
    actions = ["", *(step.action for step in trajectory.steps)]
    return zip(actions, [*(step.observation for step in trajectory.steps), trajectory.final_observation], strict=True)


def _remove_mark(task: Task) -> Task:
    return replace(task, options={name: value for name, value in task.options.items() if name != RETURN_OPTION})


class _ReturningPool:
    """Lends the environments of another pool, reset by an archive."""

    def __init__(self, pool: Pool, archive: Archive) -> None:
        self._pool, self._archive = pool, archive

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[AsyncEnv]:
        """See `Pool.lease`."""
        async with self._pool.lease() as env:
            yield _ReturningEnv(env, self._archive)


class _ReturningEnv:
    def __init__(self, env: AsyncEnv, archive: Archive) -> None:
        self._env, self._archive = env, archive

    async def reset(self, task: Task) -> Observation:
        return await self._archive.reset(self._env, task)

    async def step(self, action: str) -> Observation:
        return await self._env.step(action)
