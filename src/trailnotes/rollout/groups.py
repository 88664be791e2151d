"""Groups of episodes, played at once, and what a batch of them says about itself.

A failed episode costs itself, never the run: it is handed to `on_error` with its error text and tried afresh.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from trailnotes.config.schema import Config
from trailnotes.memory.base import FeedbackMemory, Memory, ScopedMemory
from trailnotes.policies.base import Policy
from trailnotes.rollout.episode import AsyncEnv, MakeActor, Pool, run_episode
from trailnotes.seeds import derive_seed
from trailnotes.types import MODES, NO_OP, Mode, Task, Trajectory, TrajectoryGroup

logger = logging.getLogger(__name__)
T = TypeVar("T")
OnTrajectory = Callable[[Trajectory], None]
SelectMemory = Callable[[int, int], Memory]
"""From the index of a group in the batch and a member of it to the memory of that member alone."""


@dataclass(frozen=True, slots=True)
class EpisodeSlot:
    """A member's place in a batch: what one episode is to play, whatever fails in between."""

    task: Task
    mode: Mode
    member: int
    seed: int
    episode: str  # its name for the policy, unique in the batch
    memory: Memory | None

    @property
    def episode_key(self) -> tuple[str, int]:
        """Task and member, by which an episode is known again."""
        return self.task.id, self.member


async def run_groups(  # noqa: PLR0913 (see `run_episode`)
    policy: Policy,
    pool: Pool,
    tasks: Sequence[Task],
    modes: Sequence[Sequence[Mode]],
    memory: Memory | None,
    config: Config,
    *,
    seed: int,
    progress: OnTrajectory | None = None,
    on_error: OnTrajectory | None = None,
    make_actor: MakeActor | None = None,
    memory_of: SelectMemory | None = None,
    done: Iterable[Trajectory] = (),
    once: str = "",
) -> list[TrajectoryGroup]:
    """Play `modes[i][j]` for task i, member j, all at once; results in this order, whichever ends first.

    With `env.max_envs`, so many at once: whenever one ends, the next in order begins.

    An episode that fails is handed to `on_error` and tried afresh, `env.max_replacements` times. A group continues
    without a member that failed for good while at least two are left (or all, of a group of one); else it is dropped
    with a warning, so the result may be shorter than `tasks`. Episodes that begin together are all announced to the
    policy before the first of them begins, and each later one before the one that it follows is closed. A task that
    stands in `tasks` twice gets other seeds the second time. A memory that asks for it (`FeedbackMemory`) hears at the
    end how its readers fared, so that it is the same for all of them.

    Args:
        policy: acts for all.
        pool: lends each attempt an environment.
        tasks: B tasks.
        modes: a row of modes for each task.
        memory: shared; None shows no tips.
        config: `rollout`, `memory`, `env.max_envs`, `env.max_replacements`.
        seed: of the whole batch.
        progress: called with each trajectory as it ends well.
        on_error: called with each failed trajectory as it ends.
        make_actor: who acts, see `run_episode`.
        memory_of: gives each member a memory of its own, instead of `memory`.
        done: episodes of these very seats that were played before a restart, by task and member: they are taken as
            they are, and failed ones count as attempts. No task may then stand in `tasks` twice.
        once: names the batch for the memory, so that it hears of it once only, whatever was played before a restart.
    """
    rows = _make_slots(tasks, modes, memory_of or (lambda _, __: memory), seed)
    _register_tasks(tasks, rows)
    attempts = 1 + config.env.max_replacements
    failed: Counter[tuple[str, int]] = Counter()
    reasons: dict[tuple[str, int], str] = {}  # of each seat the last one
    before: dict[tuple[str, int], Trajectory | None] = {}
    for trajectory in done:
        place = trajectory.task.id, trajectory.member
        failed[place] += trajectory.outcome == "error"
        reasons[place] = trajectory.error or reasons.get(place, "")
        if trajectory.outcome != "error" or failed[place] >= attempts:
            before[place] = None if trajectory.outcome == "error" else trajectory
    assert not failed or len({task.id for task in tasks}) == len(tasks), "which of the two was played is not known"
    played = {seat.episode: before[seat.episode_key] for row in rows for seat in row if seat.episode_key in before}
    seats = [seat for row in rows for seat in row if seat.episode not in played]

    async def play(live: LiveEpisode, env: AsyncEnv, seat: EpisodeSlot) -> Trajectory:
        return await run_episode(
            policy, env, seat.task, seat.mode, seat.memory, config,
            member=seat.member, seed=seat.seed, episode=live.episode, make_actor=make_actor,
        )  # fmt: skip

    async def play_seat(live: LiveEpisode, index: int) -> Trajectory | None:
        seat = seats[index]

        def fail(trajectory: Trajectory) -> None:
            reasons[seat.episode_key] = trajectory.error
            if on_error is not None:
                on_error(trajectory)

        return await _play_slot(live, pool, seat, range(failed[seat.episode_key], attempts), play, fail)

    def keep(index: int, trajectory: Trajectory | None) -> None:
        played[seats[index].episode] = trajectory
        if trajectory is not None and progress is not None:
            progress(trajectory)

    await run_with_limit(policy, [seat.episode for seat in seats], play_seat, keep, limit=config.env.max_envs)
    # Ahead of the update, what is counted here and what is stored there would stand in the order that timing gives.
    if not config.rollout.ahead or config.memory.is_ranked_by_feedback:
        _report_results([(seat.memory, played[seat.episode]) for row in rows for seat in row], once)
    groups = (_build_group(task, row, played, reasons) for task, row in zip(tasks, rows, strict=True))
    return [group for group in groups if group is not None]


def _make_slots(
    tasks: Sequence[Task], modes: Sequence[Sequence[Mode]], memory_of: Callable[[int, int], Memory | None], seed: int
) -> list[list[EpisodeSlot]]:
    """A row of seats for each task."""
    seen: Counter[str] = Counter()
    rows = []
    for index, (task, row) in enumerate(zip(tasks, modes, strict=True)):
        again = seen[task.id]
        seen[task.id] += 1
        base = derive_seed(seed, task.id, again, "again") if again else seed
        rows.append(
            [
                EpisodeSlot(task, mode, member, base, f"{index}/{task.id}/{member}", memory_of(index, member))
                for member, mode in enumerate(row)
            ]
        )
    return rows


def _register_tasks(tasks: Sequence[Task], rows: Sequence[Sequence[EpisodeSlot]]) -> None:
    """Tell each memory that asks for it which tasks are about to be played."""
    memories = {id(seat.memory): seat.memory for row in rows for seat in row}
    for memory in memories.values():
        if isinstance(memory, ScopedMemory):
            memory.register_tasks(tasks)


def _report_results(played: Iterable[tuple[Memory | None, Trajectory | None]], once: str) -> None:
    """Tell each memory that asks for it how those fared who could read in it.

    Who returned to a kept state had part of the way behind it: readers are not compared with that.
    """
    readers: dict[int, tuple[FeedbackMemory, list[Trajectory]]] = {}
    for memory, trajectory in played:
        if trajectory is not None and isinstance(memory, FeedbackMemory) and not count_replayed(trajectory):
            readers.setdefault(id(memory), (memory, []))[1].append(trajectory)
    for memory, episodes in readers.values():
        memory.report(episodes, once=once)


def count_replayed(trajectory: Trajectory) -> int:
    """Actions that were replayed before the episode (`archive.py`); 0 for one that began as the game does."""
    first = trajectory.steps[0].observation if trajectory.steps else trajectory.final_observation
    return int(first.info.get("returned", 0))


class LiveEpisode:
    """One of the episodes that are open with the policy at the same time, and those that follow it one by one."""

    def __init__(self, policy: Policy, episode: str) -> None:
        self.policy, self.episode = policy, episode
        policy.open_episode(episode)

    def switch_to(self, episode: str) -> None:
        """Close the episode; `episode` ("" = none) is announced before, so that the number of live ones never dips."""
        if episode:
            self.policy.open_episode(episode)
        self.policy.close_episode(self.episode)
        self.episode = episode or self.episode


async def run_with_limit(
    policy: Policy,
    episodes: Sequence[str],
    work: Callable[[LiveEpisode, int], Awaitable[T]],
    on_done: Callable[[int, T], None],
    *,
    limit: int,
) -> None:
    """Do `work` for each of `episodes`, at most `limit` of them open with the policy at a time; 0 = all at once.

    Those that begin together are all announced before the first of them begins. Whenever one ends, the next in order
    takes its place, and `on_done` gets the index and the result of the one that ended. The first failure ends them all.
    """
    waiting = iter(range(len(episodes)))

    async def work_on(live: LiveEpisode, index: int | None) -> None:
        try:
            while index is not None:
                result, ended = await work(live, index), index
                index = next(waiting, None)
                live.switch_to("" if index is None else episodes[index])
                on_done(ended, result)
        finally:
            live.switch_to("")

    first = list(islice(waiting, limit or len(episodes)))
    lives = [LiveEpisode(policy, episodes[index]) for index in first]
    try:
        await gather_or_cancel([work_on(live, index) for live, index in zip(lives, first, strict=True)])
    finally:
        for live in lives:
            live.switch_to("")


async def _play_slot(
    live: LiveEpisode,
    pool: Pool,
    seat: EpisodeSlot,
    attempts: Iterable[int],
    play: Callable[[LiveEpisode, AsyncEnv, EpisodeSlot], Awaitable[Trajectory]],
    on_error: OnTrajectory,
) -> Trajectory | None:
    """The first attempt that does not fail, or None. The policy sees each attempt as an episode of its own."""
    for attempt in attempts:
        if attempt:
            live.switch_to(f"{seat.episode}+{attempt}")
        async with pool.lease() as env:
            trajectory = await play(live, env, seat)
        if trajectory.outcome != "error":
            return trajectory
        on_error(trajectory)
    return None


def _build_group(
    task: Task,
    row: Sequence[EpisodeSlot],
    played: Mapping[str, Trajectory | None],
    reasons: Mapping[tuple[str, int], str],
) -> TrajectoryGroup | None:
    """The members that are left, if they are enough to be a group; else a warning says why the last one failed."""
    members = [played[seat.episode] for seat in row]
    left = tuple(member for member in members if member is not None)
    if not left or len(left) < min(2, len(members)):
        num, why = len(members), [reasons[seat.episode_key] for seat in row if played[seat.episode] is None][-1]
        logger.warning("task %s is left out: %d of %d episodes failed: %s", task.id, num - len(left), num, why)
        return None
    return TrajectoryGroup(task, left)


async def gather_or_cancel(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order. The first failure is raised once all other coroutines are cancelled and have ended."""
    running = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def compute_rollout_metrics(groups: Sequence[TrajectoryGroup], errors: Sequence[Trajectory] = ()) -> dict[str, float]:
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
    metrics |= _compute_return_metrics(episodes)
    for mode in MODES:
        played = [episode for episode in episodes if episode.mode == mode]
        metrics |= {f"{name}/{mode}": value for name, value in _compute_return_metrics(played).items() if played}
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


def _compute_return_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    return {
        "return": _mean([episode.episode_return for episode in episodes]),
        "success": _mean([episode.success for episode in episodes]),
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
