"""Exploration baselines that the related work of EMPO2 names: Random Network Distillation and Go-Explore.

The first is a novelty reward (`algorithm.intrinsic`), as are the counters of `learner/credit/steps.py`. The archive of
states (`archive.share`) is Go-Explore's first phase, by replay (arXiv 1901.10995, arXiv 2004.12919).
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trailnotes.config.methods_schema import ArchiveConfig
from trailnotes.learner.credit.steps import Estimator
from trailnotes.memory import Embedder
from trailnotes.rollout.episode import AsyncEnv, Pool
from trailnotes.rollout.groups import GroupRunner
from trailnotes.storage.checkpoint import Arrays, ComponentState, read_json, write_json
from trailnotes.types import Mode, Observation, Task, Trajectory, TrajectoryGroup, hash_state

ARCHIVE_FILE = "archive.json"  # in a checkpoint
RETURN_OPTION = "return_to"  # option of a task that is played from a kept state: the actions that lead there
MIN_RETURNING = 2  # members that return together: one alone has nothing to be compared with
WIDTHS = (64, 32)  # of the networks: hidden layers, and the random features that are predicted
LEARNING_RATE = 1e-3
MINIBATCH = 64  # states
MIN_SCALE = 0.1  # of the mean error


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
        pairs = [(t.steps[0].observation, step.observation) for t in trajectories for step in t.steps]
        texts = [f"{first.instruction or ''}\n{seen.text}" for first, seen in pairs]  # one predictor serves all goals
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
        tensors = dict(self._networks.state_dict())
        for index, moments in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
        errors = [self._num_errors, self._mean, self._squares]
        rest = {"embedder": self.embedder.name, "num_batches": self._num_batches, "errors": errors}
        return {name: value.numpy().copy() for name, value in tensors.items()}, rest

    def load_state_dict(self, arrays: Arrays, rest: Mapping[str, Any]) -> None:
        if rest["embedder"] != self.embedder.name:
            raise ValueError(f"novelty of {rest['embedder']} does not fit {self.embedder.name}: keep memory.embedder")
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
        self._networks.load_state_dict({name: tensors.pop(name) for name in self._networks.state_dict()})
        moments: dict[int, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():  # optimizer.PARAMETER.MOMENT
            _, index, own = name.split(".")
            moments[int(index)][own] = tensor
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
    """The cells of each task, by the hash of their observation; `play` and `update` make one iteration.

    Some episodes start from a promising cell: its actions are replayed, and the conversation starts with the
    observation there. Replayed actions are steps without tokens: they are not trained on, nor are their rewards.
    """

    def __init__(self, config: ArchiveConfig) -> None:
        self.config = config
        self.cells: dict[str, dict[int, ArchiveCell]] = {}  # by task and state
        self._targets: dict[str, ArchiveCell] = {}  # by task: where its returning members go, in this iteration
        self._lost: set[str] = set()  # tasks whose target was not reached again
        self._replayed_steps = 0  # in this iteration

    async def play(
        self, runner: GroupRunner, tasks: Sequence[Task], modes: Sequence[Sequence[Mode]], rng: random.Random
    ) -> list[TrajectoryGroup]:
        """Play a batch whose returning members have groups of their own, since all members of a group start alike."""
        rows = [part for task, row in zip(tasks, modes, strict=True) for part in self.split_group(task, row, rng)]
        pool: Any = SimpleNamespace(lease=partial(self._lease, runner.pool))
        groups = await replace(runner, pool=pool).play(*zip(*rows, strict=True))
        parts = [
            replace(group, trajectories=tuple(t for t in group.trajectories if bool(t.num_replayed) == returned))
            for group in groups for returned in (True, False)  # False: those that had to start afresh
        ]  # fmt: skip
        return [part for part in parts if part.trajectories]

    def split_group(self, task: Task, row: Sequence[Mode], rng: random.Random) -> list[tuple[Task, list[Mode]]]:
        """Split off `share` of the plain members of a group: their task has the option `RETURN_OPTION`.

        A task without a cell, or of which fewer than two members would return, stays as it is.
        """
        num = round(self.config.share * row.count("plain"))
        if num < MIN_RETURNING or not (cell := self._choose_target(task.id, rng)):
            return [(task, list(row))]
        returning = [i for i, mode in enumerate(row) if mode == "plain"][-num:]
        staying = [mode for i, mode in enumerate(row) if i not in returning]
        marked = replace(task, options={**task.options, RETURN_OPTION: list(cell.actions)})
        return [*([(task, staying)] if staying else []), (marked, ["plain"] * num)]

    def _choose_target(self, task: str, rng: random.Random) -> ArchiveCell | None:
        """Choose the highest score; of those, rarely visited ones by 1/sqrt(visits + 1). One a task and iteration."""
        cells = [cell for cell in self.cells.get(task, {}).values() if cell.actions]
        if cells and task not in self._targets:
            highest = max(cell.score for cell in cells)
            best = [cell for cell in cells if cell.score == highest]
            (self._targets[task],) = rng.choices(best, [1 / math.sqrt(cell.visits + 1) for cell in best])
        return self._targets.get(task)

    @asynccontextmanager
    async def _lease(self, pool: Pool) -> AsyncIterator[Any]:
        async with pool.lease() as env:
            yield SimpleNamespace(reset=partial(self._reset, env), step=env.step)

    async def _reset(self, env: AsyncEnv, task: Task) -> Observation:
        """Start `task`; if it is marked, replay the way to its target, which is lost where that differs."""
        options = dict(task.options)
        if options.pop(RETURN_OPTION, None) is None:
            return await env.reset(task)
        cell, plain = self._targets[task.id], replace(task, options=options)
        first = seen = await env.reset(plain)
        for action, state in zip(cell.actions, cell.states, strict=True):
            self._replayed_steps += 1
            seen = await env.step(action)
            if seen.done or hash_state(seen.text) != state:
                break
        else:
            if seen.score == cell.score:
                info = {**seen.info, "returned": len(cell.actions)}
                return replace(seen, reward=0.0, instruction=first.instruction, briefing=first.briefing, info=info)
        self._lost.add(task.id)
        return await env.reset(plain)

    def update(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Drop cells not reached again, record the states of the episodes, and end the iteration; returns metrics."""
        for task in self._lost:
            self.cells[task].pop(self._targets[task].states[-1], None)
        for trajectory in (episodes := [each for group in groups for each in group.trajectories]):
            self._record_states(trajectory)
        returned = [each for each in episodes if each.num_replayed]
        metrics = {
            "cells": float(sum(bool(cell.actions) for cells in self.cells.values() for cell in cells.values())),
            "dropped": float(len(self._lost)), "returned": float(len(returned)),
            "replayed_steps": float(self._replayed_steps),
            "return": math.fsum(t.episode_return for t in returned) / max(1, len(returned)),
            "success": sum(t.success for t in returned) / max(1, len(returned)),
        }  # fmt: skip
        self._targets, self._lost, self._replayed_steps = {}, set(), 0
        return metrics

    def _record_states(self, trajectory: Trajectory) -> None:
        """Record every state reached with a higher score, or by fewer actions at the same score."""
        cells = self.cells.setdefault(trajectory.task.id, {})
        start = self._targets[trajectory.task.id] if trajectory.num_replayed else ArchiveCell((), (), 0.0, 0)
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
        ranked = sorted(cells, key=lambda state: (cells[state].score, -cells[state].visits))
        kept = [state for state in ranked if cells[state].actions]
        for state in kept[: max(0, len(kept) - self.config.capacity)]:
            del cells[state]

    def save(self, path: Path) -> None:
        tasks = {task: [[state, asdict(cell)] for state, cell in cells.items()] for task, cells in self.cells.items()}
        write_json(path / ARCHIVE_FILE, tasks)

    def load(self, path: Path) -> None:
        """Read the cells of a checkpoint, if it has any: the archive may have been off until then."""
        if (file := path / ARCHIVE_FILE).exists():
            tasks = read_json(file)
            self.cells = {task: {key: ArchiveCell(**cell) for key, cell in cells} for task, cells in tasks.items()}
