"""Exploration baselines that the related work of EMPO2 names: visit counts, Random Network Distillation, Go-Explore.

The first two are novelty rewards (`algorithm.intrinsic`). The archive of states (`archive.share`) is Go-Explore's first
phase, by replay: "Go-Explore" (arXiv 1901.10995) and "First return, then explore" (arXiv 2004.12919).
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trailnotes.config.methods_schema import ArchiveConfig
from trailnotes.config.schema import Config
from trailnotes.learner.credit.steps import Estimator, Novelty, RetrievalNovelty, StateCounter
from trailnotes.memory import Embedder
from trailnotes.rollout.episode import AsyncEnv, Pool
from trailnotes.rollout.groups import count_replayed
from trailnotes.storage.checkpoint import Arrays, ComponentState
from trailnotes.types import Mode, Observation, Task, Trajectory, TrajectoryGroup, hash_state

RETURN_OPTION = "return_to"  # option of a task that is played from a kept state: the actions that lead there
MIN_RETURNING = 2  # members that return together: one alone has nothing to be compared with
WIDTHS = (64, 32)  # of the networks: hidden layers, and the random features that are predicted
LEARNING_RATE = 1e-3
MINIBATCH = 64  # states
MIN_SCALE = 0.1  # of the mean error


def make_novelty(config: Config, seed: int, make_embedder: Callable[[], Embedder]) -> Novelty:
    """Make the novelty service that `algorithm.intrinsic` names; `seed` is of the networks of "rnd"."""
    kind = config.algorithm.intrinsic
    if kind == "tips":
        return Novelty(kind, RetrievalNovelty(config.memory))
    if kind == "states":
        return Novelty(kind, StateCounter(make_embedder(), config.algorithm.novelty_threshold))
    if kind == "counts":
        return Novelty(kind, VisitCounter())
    return Novelty(kind, RandomNetworkDistillation(make_embedder(), seed) if kind == "rnd" else None)


class VisitCounter(Estimator):
    """1/n, n = visits of this very state of the task, the whole batch included, so equal episodes earn the same."""

    def __init__(self) -> None:
        self._visits: Counter[tuple[str, int]] = Counter()  # by task and state

    def rate(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        rows = [[(t.task.id, hash_state(step.observation.text)) for step in t.steps] for t in trajectories]
        self._visits.update(itertools.chain.from_iterable(rows))
        return [[1.0 / self._visits[state] for state in row] for row in rows]

    def state_dict(self) -> ComponentState:
        visits = sorted(self._visits.items())
        sizes = Counter(task for (task, _), _ in visits)
        arrays = {
            "states": np.array([state for (_, state), _ in visits], np.uint64),
            "visits": np.array([num for _, num in visits], np.int64),
        }
        return arrays, {"namespaces": [*sizes], "sizes": [*sizes.values()]}

    def load_state_dict(self, arrays: Arrays, rest: Mapping[str, Any]) -> None:
        tasks = [task for task, size in zip(rest["namespaces"], rest["sizes"], strict=True) for _ in range(size)]
        states = zip(tasks, arrays["states"].tolist(), strict=True)
        self._visits = Counter(dict(zip(states, arrays["visits"].tolist(), strict=True)))


class RandomNetworkDistillation(Estimator):
    """Error of a trained network that predicts a fixed random one (Burda et al., arXiv 1810.12894).

    Both read the embedder's vector of the instruction and the observation. The bonus is the mean squared error over the
    running deviation of all errors, this batch's included (section 2.4 divides by that of the returns), and at least a
    tenth of the mean error. After rating, the predictor takes one pass over the batch.
    """

    def __init__(self, embedder: Embedder, seed: int) -> None:
        self.embedder, self.seed = embedder, seed
        generator = torch.Generator().manual_seed(seed)
        hidden, features = WIDTHS
        self.target = _make_mlp((embedder.dim, hidden, features), generator).requires_grad_(False)
        self.predictor = _make_mlp((embedder.dim, hidden, hidden, features), generator)
        self._networks = nn.ModuleDict({"target": self.target, "predictor": self.predictor})
        self._optimizer = torch.optim.Adam(self.predictor.parameters(), lr=LEARNING_RATE)
        self._num_batches = 0
        self._num_errors, self._mean, self._squares = 0, 0.0, 0.0  # squares: sum of squared distances from the mean

    def rate(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        goals = [t.steps[0].observation.instruction or "" for t in trajectories for _ in t.steps]
        steps = [step for t in trajectories for step in t.steps]
        # With the goal one predictor serves all tasks.
        texts = [f"{goal}\n{step.observation.text}" for goal, step in zip(goals, steps, strict=True)]
        if not texts:
            return [[] for _ in trajectories]
        distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        vectors = torch.from_numpy(self.embedder.embed(list(distinct)) * math.sqrt(self.embedder.dim))
        which = [distinct[text] for text in texts]
        with torch.no_grad():
            errors = self._compute_errors(vectors).double().numpy()[which]
        num, mean = len(errors), float(errors.mean())  # merged into the running moments (Chan et al. 1979)
        total, shift = self._num_errors + num, mean - self._mean
        self._squares += float(((errors - mean) ** 2).sum()) + shift**2 * self._num_errors * num / total
        self._mean += shift * num / total
        self._num_errors = total
        scale = max(math.sqrt(self._squares / total), MIN_SCALE * self._mean) or 1.0
        self._train(vectors[which])
        bonuses = iter((errors / scale).tolist())
        return [list(itertools.islice(bonuses, len(t.steps))) for t in trajectories]

    def _compute_errors(self, vectors: Tensor) -> Tensor:  # (n, dim) -> (n,)
        difference: Tensor = self.predictor(vectors) - self.target(vectors)
        return difference.square().mean(-1)

    def _train(self, vectors: Tensor) -> None:
        generator = torch.Generator().manual_seed((self.seed + self._num_batches) % 2**63)
        self._num_batches += 1
        for chosen in torch.randperm(len(vectors), generator=generator).split(MINIBATCH):  # type: ignore[no-untyped-call]
            self._optimizer.zero_grad()
            self._compute_errors(vectors[chosen]).mean().backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()

    def state_dict(self) -> ComponentState:
        moments = self._optimizer.state_dict()["state"]
        tensors = self._networks.state_dict() | {
            f"optimizer.{i}.{name}": value for i, kept in moments.items() for name, value in kept.items()
        }
        rest = {"num_batches": self._num_batches, "errors": [self._num_errors, self._mean, self._squares]}
        arrays = {name: value.numpy().copy() for name, value in tensors.items()}
        return arrays, {"embedder": self.embedder.name, **rest}

    def load_state_dict(self, arrays: Arrays, rest: Mapping[str, Any]) -> None:
        if rest["embedder"] != self.embedder.name:
            raise ValueError(f"novelty of {rest['embedder']} does not fit {self.embedder.name}: keep memory.embedder")
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
        self._networks.load_state_dict({name: tensors[name] for name in self._networks.state_dict()})
        moments: dict[int, dict[str, Tensor]] = defaultdict(dict)
        for name in tensors.keys() - self._networks.state_dict().keys():  # optimizer.PARAMETER.MOMENT
            _, index, own = name.split(".")
            moments[int(index)][own] = tensors[name]
        self._optimizer.load_state_dict(self._optimizer.state_dict() | {"state": moments})
        self._num_batches = int(rest["num_batches"])
        self._num_errors, self._mean, self._squares = rest["errors"]


def _make_mlp(widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Make linear layers with ReLU, orthogonal as in the paper's code, without the global generator."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        linear = nn.utils.skip_init(nn.Linear, inputs, outputs)  # type: ignore[no-untyped-call]
        nn.init.orthogonal_(linear.weight, math.sqrt(2), generator)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@dataclass(frozen=True, slots=True)
class ArchiveCell:
    """A kept state, and the shortest known actions that lead there."""

    states: Sequence[int]  # hashes of the observations on the way, its own at the end; () is the start of the game
    actions: Sequence[str]  # as many
    score: float  # there, in the environment's own unit
    visits: int  # episodes that met it, replays not counted


class Archive:
    """The cells of each task, by the hash of their observation.

    A share of the plain members of a group starts from a promising cell: its actions are replayed, and the conversation
    starts with the observation there. Replayed actions are environment steps without tokens: they are not trained on,
    and their rewards belong to no return. `plan`, a `ReturningPool`, `regroup` and `update` make one iteration.
    """

    def __init__(self, config: ArchiveConfig) -> None:
        self.config = config
        self._cells: dict[str, dict[int, ArchiveCell]] = {}  # by task and state
        self.targets: dict[str, ArchiveCell] = {}  # by task: where its returning members go, in this iteration
        self.lost: set[str] = set()  # tasks whose target was not reached again
        self.replayed_steps = 0  # in this iteration

    def plan(
        self, tasks: Sequence[Task], modes: Sequence[Sequence[Mode]], rng: random.Random
    ) -> tuple[list[Task], list[list[Mode]]]:
        """Split groups: `share` of the plain members become a group of their own, which returns to one cell.

        A group is compared within itself, so all its members start alike. A task without a cell, or of which fewer than
        two members would return, stays as it is. Tasks that return have the option `RETURN_OPTION`.
        """
        planned: list[tuple[Task, list[Mode]]] = []
        for task, row in zip(tasks, modes, strict=True):
            returning = round(self.config.share * row.count("plain"))
            if returning < MIN_RETURNING or not (cell := self._choose_target(task.id, rng)):
                planned.append((task, list(row)))
                continue
            plain = [i for i, mode in enumerate(row) if mode == "plain"]
            staying: list[Mode] = [mode for i, mode in enumerate(row) if i not in plain[-returning:]]
            planned += [(task, staying)] if staying else []
            marked = replace(task, options={**task.options, RETURN_OPTION: list(cell.actions)})
            planned.append((marked, ["plain"] * returning))
        return [task for task, _ in planned], [row for _, row in planned]

    def _choose_target(self, task: str, rng: random.Random) -> ArchiveCell | None:
        """Choose the highest score; of those, rarely visited ones by 1/sqrt(visits + 1). One a task and iteration."""
        cells = [cell for cell in self._cells.get(task, {}).values() if cell.actions]
        if cells and task not in self.targets:
            highest = max(cell.score for cell in cells)
            best = [cell for cell in cells if cell.score == highest]
            (self.targets[task],) = rng.choices(best, [1 / math.sqrt(cell.visits + 1) for cell in best])
        return self.targets.get(task)

    def regroup(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """Put returning members that had to start afresh into groups of their own."""
        result = []
        for group in groups:
            members = group.trajectories
            parts = [tuple(t for t in members if bool(count_replayed(t)) == returned) for returned in (True, False)]
            result += [replace(group, trajectories=part) for part in parts if part]
        return result

    def update(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Drop cells not reached again, record the states of the episodes, and end the iteration; returns metrics."""
        for task in self.lost:
            self._cells[task].pop(self.targets[task].states[-1], None)
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        for trajectory in trajectories:
            self._record_states(trajectory)
        returned = [trajectory for trajectory in trajectories if count_replayed(trajectory)]
        metrics = {
            "cells": float(sum(bool(cell.actions) for cells in self._cells.values() for cell in cells.values())),
            "dropped": float(len(self.lost)),
            "returned": float(len(returned)),
            "replayed_steps": float(self.replayed_steps),
            "return": math.fsum(t.episode_return for t in returned) / max(1, len(returned)),
            "success": sum(t.success for t in returned) / max(1, len(returned)),
        }
        self.targets, self.lost, self.replayed_steps = {}, set(), 0
        return metrics

    def _record_states(self, trajectory: Trajectory) -> None:
        """Record every state reached with a higher score, or by fewer actions at the same score."""
        cells = self._cells.setdefault(trajectory.task.id, {})
        start = self.targets[trajectory.task.id] if count_replayed(trajectory) else ArchiveCell((), (), 0.0, 0)
        states, actions = start.states, start.actions
        met: set[int] = set()
        seen = [*(step.observation for step in trajectory.steps), trajectory.final_observation]
        taken = ["", *(step.action for step in trajectory.steps)]
        for number, (action, observation) in enumerate(zip(taken, seen, strict=True)):
            state = hash_state(observation.text)
            if number:
                states, actions = (*states, state), (*actions, action)
            if observation.done:
                break
            old = cells.get(state)
            visits = (old.visits if old else 0) + (state not in met)
            met.add(state)
            if old and (old.score, -len(old.actions)) >= (observation.score, -len(actions)):
                cells[state] = replace(old, visits=visits)
            else:
                cells[state] = ArchiveCell(states, actions, observation.score, visits)
        kept = [(state, cell) for state, cell in cells.items() if cell.actions]
        kept.sort(key=lambda pair: (pair[1].score, -pair[1].visits))
        for state, _ in kept[: max(0, len(kept) - self.config.capacity)]:
            del cells[state]

    def state_dict(self) -> dict[str, Any]:
        return {task: [[state, asdict(cell)] for state, cell in cells.items()] for task, cells in self._cells.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._cells = {task: {key: ArchiveCell(**cell) for key, cell in cells} for task, cells in state.items()}


class ReturningPool:
    """A pool whose environments go to the target of a marked task."""

    def __init__(self, pool: Pool, archive: Archive) -> None:
        self.pool, self.archive = pool, archive

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Any]:
        async with self.pool.lease() as env:
            yield SimpleNamespace(reset=partial(self._reset, env), step=env.step)

    async def _reset(self, env: AsyncEnv, task: Task) -> Observation:
        """Start `task`, and replay the way to its target if it is marked, or start afresh where that fails.

        A cell is lost where its replay differs from the record.
        """
        options = dict(task.options)
        if options.pop(RETURN_OPTION, None) is None:
            return await env.reset(task)
        cell, plain = self.archive.targets[task.id], replace(task, options=options)
        first = seen = await env.reset(plain)
        for action, state in zip(cell.actions, cell.states, strict=True):
            self.archive.replayed_steps += 1
            seen = await env.step(action)
            if seen.done or hash_state(seen.text) != state:
                break
        else:
            if seen.score == cell.score:
                info = {**seen.info, "returned": len(cell.actions)}
                return replace(seen, reward=0.0, instruction=first.instruction, briefing=first.briefing, info=info)
        self.archive.lost.add(task.id)
        return await env.reset(plain)
