"""Plays groups of episodes at once, and measures a batch of them; a failed episode costs itself, never the run."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from trailnotes.config.schema import Config
from trailnotes.memory.base import FeedbackMemory, Memory
from trailnotes.policies.base import Policy
from trailnotes.rollout.episode import MakeActor, OnStep, Pool, run_episode
from trailnotes.types import MODES, NO_OP, Mode, Task, Trajectory, TrajectoryGroup, derive_seed

logger = logging.getLogger(__name__)
T = TypeVar("T")
MAX_REPLACEMENTS = 2  # tries of a failed episode after the first, before it is left out
OnTrajectory = Callable[[Trajectory], None]
SelectMemory = Callable[[int, int], Memory]
"""From the index of a group in the batch and a member of it to the memory of that member alone."""


@dataclass(slots=True)
class EpisodeSlot:
    """A member's place in a batch: its task and seed, its failures, and its episode once it is played."""

    task: Task
    mode: Mode
    member: int
    seed: int
    episode: str  # its name for the policy, unique in the batch
    memory: Memory | None
    num_failed: int = 0
    reason: str = ""  # of the last failure
    played: Trajectory | None = None

    @property
    def is_over(self) -> bool:
        return self.played is not None or self.num_failed > MAX_REPLACEMENTS

    def record(self, trajectory: Trajectory) -> None:
        if trajectory.outcome == "error":
            self.num_failed += 1
            self.reason = trajectory.error
        else:
            self.played = trajectory


@dataclass(slots=True)
class GroupRunner:
    """Plays batches of groups, each episode in a slot of its own, at most `env.max_envs` at once.

    A failed episode goes to `on_error` and is tried afresh, `MAX_REPLACEMENTS` times. A group that lost some continues
    while `min_members` are left (or all, of a group of one); else it is dropped. Both are logged as
    warnings. A `FeedbackMemory` hears at the end how its readers fared.
    """

    policy: Policy
    pool: Pool
    memory: Memory | None
    config: Config
    _: KW_ONLY
    seed: int  # a repeated task gets new seeds
    progress: OnTrajectory | None = None
    on_error: OnTrajectory | None = None
    on_step: OnStep = lambda _: None
    make_actor: MakeActor | None = None
    memory_of: SelectMemory | None = None  # gives each member a memory of its own, instead of `memory`
    once: str = ""  # batch id; a memory ignores a second report with the same id
    min_members: int = 2  # that an update compares; a panel takes what it gets

    async def play(
        self, tasks: Sequence[Task], modes: Sequence[Sequence[Mode]], done: Iterable[Trajectory] = ()
    ) -> list[TrajectoryGroup]:
        """Play `modes[i][j]` for task i and member j; results are in this order.

        `done` are episodes of these slots played before a restart, by task and member; failed ones count as attempts,
        and no task may then stand in `tasks` twice.
        """
        rows = self._make_slots(tasks, modes)
        slots = [slot for row in rows for slot in row]
        by_key = {(slot.task.id, slot.member): slot for slot in slots}
        for trajectory in done:
            assert len({task.id for task in tasks}) == len(tasks), "which of the two was played is not known"
            if slot := by_key.get((trajectory.task.id, trajectory.member)):
                slot.record(trajectory)
        left = [slot for slot in slots if not slot.is_over]
        await run_with_limit(
            self.policy, [slot.episode for slot in left], lambda live, index: self._play_slot(live, left[index]),
            limit=self.config.env.max_envs,
        )  # fmt: skip
        # Ahead of the update, timing would decide the order of these counts and of the tips that are stored.
        if not self.config.rollout.max_async_iterations or self.config.memory.is_ranked_by_feedback:
            self._report_results(slots)
        full = [slot.played.context_full for slot in left if slot.played is not None]
        if any(full) and 2 * sum(full) >= len(full):
            rollout = self.config.rollout
            _warn_of_full_contexts(
                rollout.max_context_tokens, self.policy.context_length, rollout.max_observation_tokens
            )
        groups = (_build_group(task, row, self.min_members) for task, row in zip(tasks, rows, strict=True))
        return [group for group in groups if group is not None]

    def _make_slots(self, tasks: Sequence[Task], modes: Sequence[Sequence[Mode]]) -> list[list[EpisodeSlot]]:
        seen: Counter[str] = Counter()
        rows: list[list[EpisodeSlot]] = []
        for index, (task, row) in enumerate(zip(tasks, modes, strict=True)):
            again = seen[task.id]
            seen[task.id] += 1
            seed = derive_seed(self.seed, task.id, again, "again") if again else self.seed
            rows.append([])
            for member, mode in enumerate(row):
                memory = self.memory_of(index, member) if self.memory_of else self.memory
                rows[-1].append(EpisodeSlot(task, mode, member, seed, f"{index}/{task.id}/{member}", memory))
        for memory in {id(slot.memory): slot.memory for row in rows for slot in row}.values():
            if register_tasks := getattr(memory, "register_tasks", None):  # of a memory whose tasks share tips
                register_tasks(tasks)
        return rows

    async def _play_slot(self, live: LiveEpisode, slot: EpisodeSlot) -> None:
        while not slot.is_over:
            if slot.num_failed:
                live.switch_to(f"{slot.episode}+{slot.num_failed}")
            async with self.pool.lease() as env:
                trajectory = await run_episode(
                    self.policy, env, slot.task, slot.mode, slot.memory, self.config,
                    member=slot.member, seed=slot.seed, episode=live.episode, make_actor=self.make_actor,
                    on_step=self.on_step,
                )  # fmt: skip
            slot.record(trajectory)
            if slot.played is None and self.on_error is not None:
                self.on_error(trajectory)
        if slot.played is not None and self.progress is not None:
            self.progress(slot.played)

    def _report_results(self, slots: Iterable[EpisodeSlot]) -> None:
        """Report readers' results to each memory that asks."""
        readers: dict[int, tuple[FeedbackMemory, list[Trajectory]]] = {}
        for slot in slots:
            if slot.played is not None and isinstance(slot.memory, FeedbackMemory):
                readers.setdefault(id(slot.memory), (slot.memory, []))[1].append(slot.played)
        for memory, episodes in readers.values():
            memory.report(episodes, once=self.once)


class LiveEpisode:
    """One of the episodes that are open with the policy at the same time, and its successors."""

    def __init__(self, policy: Policy, episode: str) -> None:
        self.policy, self.episode = policy, episode
        policy.open_episode(episode)

    def switch_to(self, episode: str) -> None:
        """Close the episode after announcing its successor ("" = none), so that the live number never dips."""
        if episode:
            self.policy.open_episode(episode)
        self.policy.close_episode(self.episode)
        self.episode = episode or self.episode


async def run_with_limit(
    policy: Policy, episodes: Sequence[str], work: Callable[[LiveEpisode, int], Awaitable[T]], *, limit: int,
    on_done: Callable[[int, T], object] | None = None,
) -> list[T]:  # fmt: skip
    """Do `work` for each of `episodes`, at most `limit` of them open at a time (0 = all); results in this order.

    Those that begin together are all announced before the first of them begins. Whenever one ends, the next in order
    takes its place, and `on_done` gets the index and the result of the one that ended. The first failure ends them all.
    """
    waiting = iter(range(len(episodes)))
    results: dict[int, T] = {}

    async def work_on(live: LiveEpisode, index: int | None) -> None:
        while index is not None:
            results[index], ended = await work(live, index), index
            index = next(waiting, None)
            live.switch_to("" if index is None else episodes[index])
            if on_done is not None:
                on_done(ended, results[ended])

    first = list(islice(waiting, limit or len(episodes)))
    lives = [LiveEpisode(policy, episodes[index]) for index in first]
    try:
        await gather_or_cancel([work_on(live, index) for live, index in zip(lives, first, strict=True)])
    finally:
        for live in lives:
            live.switch_to("")
    return [results[index] for index in range(len(episodes))]


def _build_group(task: Task, row: Sequence[EpisodeSlot], min_members: int) -> TrajectoryGroup | None:
    members = tuple(slot.played for slot in row if slot.played is not None)
    is_kept = len(members) >= min(min_members, len(row))
    if reasons := [slot.reason for slot in row if slot.played is None]:
        result = "has fewer episodes" if is_kept else "is left out"
        logger.warning("task %s %s: %d of %d failed: %s", task.id, result, len(reasons), len(row), reasons[-1])
    return TrajectoryGroup(task, members) if is_kept else None


@cache  # once for each setting, not at each iteration
def _warn_of_full_contexts(max_context_tokens: int, context_length: int, max_observation_tokens: int) -> None:
    limit, remedy = f"the model's {context_length}", "lower"
    if max_context_tokens < context_length:
        limit = f"rollout.max_context_tokens = {max_context_tokens}"
        remedy = f"raise it (the model takes {context_length}), or lower"
    logger.warning("half of the episodes or more end where the next turn does not fit %s tokens: %s "
                   "rollout.max_observation_tokens = %d", limit, remedy, max_observation_tokens)  # fmt: skip


async def gather_or_cancel(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Gather all results in order; the first failure is raised once all others are cancelled and have ended."""
    running = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def compute_rollout_metrics(groups: Sequence[TrajectoryGroup], errors: Sequence[Trajectory] = ()) -> dict[str, float]:
    """Compute the metrics of a batch of episodes (docs/metrics.md); only `errors` if there is none."""
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    metrics = {"errors": float(len(errors))}
    if not episodes:
        return metrics
    steps = [step for episode in episodes for step in episode.steps]
    for suffix, modes in {"": MODES, **{f"/{mode}": (mode,) for mode in MODES}}.items():
        if played := [episode for episode in episodes if episode.mode in modes]:
            metrics[f"return{suffix}"] = _mean([episode.episode_return for episode in played])
            metrics[f"success{suffix}"] = _mean([episode.success for episode in played])
    seen = [[step.observation for step in episode.steps] + [episode.final_observation] for episode in episodes]
    tips = [len(step.tips) for episode in episodes if episode.mode != "plain" for step in episode.steps]
    return metrics | {
        "episode_length": len(steps) / len(episodes), "env_steps": float(len(steps)),
        "tokens": float(sum(episode.num_tokens for episode in episodes)),
        "truncated": _mean([episode.outcome == "truncated" for episode in episodes]),
        "context_full": _mean([episode.context_full for episode in episodes]),
        "unparsable": _mean([step.action == NO_OP for step in steps]),
        "cut_actions": _mean([step.completion.finish_reason == "length" for step in steps]),
        "action_changed": _mean([after.info.get("action_changed") is True for row in seen for after in row[1:]]),
        "restarts": float(sum(n for row in seen for o in row if isinstance(n := o.info.get("restarts"), int))),
        "tips_per_step": _mean(tips),
    }  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


# --- dynamic sampling: groups whose members all earned the same teach nothing (DAPO, arXiv 2503.14476, section 3.2)


def has_equal_returns(group: TrajectoryGroup, discount: float = 1.0) -> bool:
    """Tell whether all members have the same (discounted) return but for rounding, without novelty and penalties."""
    returns = {math.fsum(discount**t * s.reward for t, s in enumerate(each.steps)) for each in group.trajectories}
    return math.isclose(min(returns), max(returns))


async def replace_equal_groups(
    groups: Sequence[TrajectoryGroup],
    num_rounds: int,
    play: Callable[[int, int], Awaitable[list[TrajectoryGroup]]],
    discount: float = 1.0,
) -> tuple[list[TrajectoryGroup], int]:
    """Replace groups with equal returns by freshly played ones, for at most `num_rounds` rounds (verl-agent, 2716b30).

    ``await play(number, num_groups)`` plays other tasks; `number` counts from 1. Returns the groups to train on, kept
    ones first, and how many were replaced.
    """
    kept = [group for group in groups if not has_equal_returns(group, discount)]
    fresh = [group for group in groups if has_equal_returns(group, discount)]
    replaced = 0
    for number in range(1, num_rounds + 1):
        num_equal = sum(has_equal_returns(group, discount) for group in fresh)
        if not num_equal:
            break
        kept += [group for group in fresh if not has_equal_returns(group, discount)]
        fresh = await play(number, num_equal)
        replaced += num_equal
    return kept + fresh, replaced


def sample_further_tasks(tasks: Sequence[Task], played: Iterable[str], num: int, rng: random.Random) -> list[Task]:
    """Sample `num` tasks in random order, those first that stand least often in `played`."""
    often = Counter(played)
    order = sorted(rng.sample(tasks, len(tasks)), key=lambda task: often[task.id])
    return [order[i % len(order)] for i in range(num)]
