"""Episodes: one agent's loop as a coroutine, groups of them at once, and the notes written afterwards.

Whatever fails in an environment costs one episode, never the run: it is handed to `on_error` with its error text and
tried afresh. What fails in the policy is a fault of the whole run and is raised.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from trailnotes.config import Config
from trailnotes.errors import EnvError
from trailnotes.memory.base import Memory
from trailnotes.memory.tips import tips_of
from trailnotes.policies.base import Policy
from trailnotes.prompts import (
    NO_OP,
    Conversation,
    forget_turn,
    memory_keys,
    memory_query,
    parse_action,
    reflection_messages,
)
from trailnotes.types import (
    MODES,
    Completion,
    Message,
    Mode,
    Observation,
    Outcome,
    Sampling,
    Step,
    Task,
    Tip,
    Trajectory,
    TrajectoryGroup,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")
OnTrajectory = Callable[[Trajectory], None]

ACTION_SHOWN = 200  # characters of the action that an error names


class AsyncEnv(Protocol):
    """An environment behind a lease; both methods raise `EnvError` when it fails."""

    async def reset(self, task: Task) -> Observation:
        """Start `task`."""
        ...

    async def step(self, action: str) -> Observation:
        """Take one action."""
        ...


class Pool(Protocol):
    """Lends environments, as many at a time as are asked for."""

    def lease(self) -> AbstractAsyncContextManager[AsyncEnv]:
        """``async with pool.lease() as env``."""
        ...


# --- one episode ------------------------------------------------------------------------------------------------


async def run_episode(  # noqa: PLR0913 (what meets here is what an episode is made of)
    policy: Policy,
    env: AsyncEnv,
    task: Task,
    mode: Mode,
    memory: Memory | None,
    config: Config,
    *,
    member: int,
    seed: int,
    episode: str = "",
) -> Trajectory:
    """Play one episode; an environment that fails ends it with outcome "error" and the steps so far.

    Args:
        policy: acts. Whoever calls announces `episode` to it before, and closes it after.
        env: an environment for this episode alone.
        task: the game.
        mode: in all but "plain" the memory is searched before every action.
        memory: None shows no tips.
        config: `rollout`, `memory`.
        member: index in the group, 0..N-1.
        seed: with task, member and step it gives the seed of each completion.
        episode: name for the policy; default "task/member".

    Raises:
        PolicyError: the policy cannot answer.
    """
    rollout = config.rollout
    conversation = Conversation(rollout, config.memory, policy.count_tokens)
    steps: list[Step] = []
    observation, context_full, error = Observation(""), False, ""
    attempted = None
    try:
        observation = await env.reset(task)
        conversation.start(observation.instruction or "")
        while not observation.done and len(steps) < rollout.max_steps:
            found = [] if mode == "plain" else find_tips(memory, task, conversation, observation, config)
            tips = observe_within(context_limit(policy, config), policy, conversation, observation, found)
            if tips is None:
                context_full = True
                break
            sampling = action_sampling(config, completion_seed(seed, task.id, member, len(steps)))
            completion = await policy.generate(tuple(conversation.acting), sampling, episode or f"{task.id}/{member}")
            plain_ids = policy.encode(conversation.plain) if conversation.shown else completion.prompt_ids
            conversation.act(completion.text, completion.token_ids)
            attempted = parse_action(completion.text, rollout.action_format).action
            after = await env.step(attempted)
            steps.append(
                Step(observation, tips, completion, plain_ids, attempted, after.reward, policy_version=policy.version)
            )
            observation, attempted = after, None
    except EnvError as failure:
        error = _error_text(failure, attempted)
    return Trajectory(
        task, tuple(steps), observation, _outcome(observation, error), observation.success, observation.score,
        observation.max_score, mode, member, error, context_full,
    )  # fmt: skip


def find_tips(
    memory: Memory | None, task: Task, conversation: Conversation, observation: Observation, config: Config
) -> list[Tip]:
    """Tips of the task for the state that `observation` makes, by the tip-free conversation."""
    if memory is None or not config.memory.top_k:
        return []
    query = memory_query(conversation, config.memory.query, observation)
    return memory.search(task.id, query, config.memory.top_k)


def observe_within(
    limit: int, policy: Policy, conversation: Conversation, observation: Observation, found: Sequence[Tip]
) -> tuple[Tip, ...] | None:
    """Add the turn and return the tips it shows: none if they do not fit `limit` tokens; None if the turn does not."""
    tips = conversation.observe(observation, found)
    if tips and num_tokens(policy, conversation.acting) > limit:
        conversation.drop_tips(tips)
        tips = ()
    return tips if tips or num_tokens(policy, conversation.acting) <= limit else None


def context_limit(policy: Policy, config: Config) -> int:
    """Tokens that a prompt may have, so that a whole action still fits behind it."""
    return min(config.rollout.max_context_tokens, policy.context_length) - config.rollout.max_action_tokens


def num_tokens(policy: Policy, messages: Sequence[Message]) -> int:
    """Length of the prompt; the sum over its contents where an engine gives no ids."""
    return len(policy.encode(messages)) or sum(policy.count_tokens(message.content) for message in messages)


def action_sampling(config: Config, seed: int) -> Sampling:
    """How actions are drawn."""
    rollout = config.rollout
    return Sampling(
        rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_action_tokens, rollout.stop, seed=seed
    )


def completion_seed(seed: int, task: str, member: int, step: int | str) -> int:
    """A 63-bit seed for one completion: the same in every process and on every platform."""
    text = "\x1f".join(map(str, (seed, task, member, step)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _error_text(failure: EnvError, action: str | None) -> str:
    """One line: what failed, and at which action, which no step of the record holds; None where there was none."""
    text = " ".join(str(failure).split()) or type(failure).__name__
    return text if action is None else f"{text} (at the action {action[:ACTION_SHOWN]!r})"


def _outcome(final: Observation, error: str) -> Outcome:
    if error:
        return "error"
    return "terminated" if final.terminated else "truncated"


# --- groups -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place in a batch: what one episode is to play, whoever fails in between."""

    task: Task
    mode: Mode
    member: int
    seed: int
    episode: str  # its name for the policy, unique in the batch


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
) -> list[TrajectoryGroup]:
    """Play `modes[i][j]` for task i, member j, all at once; results in this order, whichever ends first.

    With `env.max_envs`, so many at once: whenever one ends, the next in order begins.

    An episode that fails is handed to `on_error` and tried afresh, `env.max_replacements` times. A group goes on
    without a member that failed for good while at least two are left (or all, of a group of one); else it is dropped
    with a warning, so the result may be shorter than `tasks`. Episodes that begin together are all announced to the
    policy before the first of them begins, and each later one before the one that it follows is closed. A task that
    stands in `tasks` twice gets other seeds the second time.

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
    """
    rows = _seats(tasks, modes, seed)
    seats = [seat for row in rows for seat in row]

    waiting = iter(seats)
    played: dict[str, Trajectory | None] = {}

    async def play_on(live: _Live, seat: Seat | None) -> None:
        try:
            while seat is not None:
                trajectory = played[seat.episode] = await _play_seat(live, pool, seat, memory, config, on_error)
                seat = next(waiting, None)
                live.give_way(seat.episode if seat else "")
                if trajectory is not None and progress is not None:
                    progress(trajectory)
        finally:
            live.give_way("")

    first = list(islice(waiting, config.env.max_envs or len(seats)))
    lives = [_Live(policy, seat.episode) for seat in first]
    try:
        await _gather([play_on(live, seat) for live, seat in zip(lives, first, strict=True)])
    finally:
        for live in lives:
            live.give_way("")
    groups = (_group(task, [played[seat.episode] for seat in row]) for task, row in zip(tasks, rows, strict=True))
    return [group for group in groups if group is not None]


def _seats(tasks: Sequence[Task], modes: Sequence[Sequence[Mode]], seed: int) -> list[list[Seat]]:
    """A row of seats for each task."""
    seen: Counter[str] = Counter()
    rows = []
    for index, (task, row) in enumerate(zip(tasks, modes, strict=True)):
        again = seen[task.id]
        seen[task.id] += 1
        base = completion_seed(seed, task.id, again, "again") if again else seed
        rows.append([Seat(task, mode, member, base, f"{index}/{task.id}/{member}") for member, mode in enumerate(row)])
    return rows


class _Live:
    """One of the episodes that are open with the policy at the same time, and those that follow it one by one."""

    def __init__(self, policy: Policy, episode: str) -> None:
        self.policy, self.episode = policy, episode
        policy.open_episode(episode)

    def give_way(self, episode: str) -> None:
        """Close the episode; `episode` ("" = none) is announced before, so that the number of live ones never dips."""
        if episode:
            self.policy.open_episode(episode)
        self.policy.close_episode(self.episode)
        self.episode = episode or self.episode


async def _play_seat(
    live: _Live, pool: Pool, seat: Seat, memory: Memory | None, config: Config, on_error: OnTrajectory | None
) -> Trajectory | None:
    """The first attempt that does not fail, or None. The policy sees each attempt as an episode of its own."""
    for attempt in range(1 + config.env.max_replacements):
        if attempt:
            live.give_way(f"{seat.episode}+{attempt}")
        async with pool.lease() as env:
            trajectory = await run_episode(
                live.policy, env, seat.task, seat.mode, memory, config,
                member=seat.member, seed=seat.seed, episode=live.episode,
            )  # fmt: skip
        if trajectory.outcome != "error":
            return trajectory
        if on_error is not None:
            on_error(trajectory)
    return None


def _group(task: Task, members: Sequence[Trajectory | None]) -> TrajectoryGroup | None:
    """The members that are left, if they are enough to be a group."""
    left = tuple(member for member in members if member is not None)
    if not left or len(left) < min(2, len(members)):
        logger.warning("task %s is left out: %d of %d episodes failed", task.id, len(members) - len(left), len(members))
        return None
    return TrajectoryGroup(task, left)


async def _gather(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order. The first failure is raised once all other coroutines are cancelled and have ended."""
    running = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


# --- notes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Note:
    """What the policy wrote after an episode, and the memory entries made of it: none if nothing was usable."""

    trajectory: Trajectory
    completion: Completion
    tips: tuple[Tip, ...]


class Written(NamedTuple):
    """The tips of a batch in task order, and what they cost."""

    tips: list[Tip]
    num_tokens: int  # generated for all notes, unusable ones included


async def write_tips(
    policy: Policy,
    groups: Sequence[TrajectoryGroup],
    config: Config,
    *,
    seed: int,
    step: int,
    on_note: Callable[[Note], None] | None = None,
) -> Written:
    """Have the policy write one note about each episode, all together, from the conversation without tips.

    Nothing is stored here. Episodes without a step are passed over. Notes of which `clean_tip` leaves nothing give no
    tip, but count in `num_tokens` and reach `on_note`.

    Args:
        policy: the author.
        groups: the episodes.
        config: `memory` (limits and temperature of writing), `rollout` (wording), `run.name`.
        seed: of the batch; each note's seed follows from it, its task and member.
        step: training iteration or adaptation trial, kept with each tip.
        on_note: called with every note in task order; `note_metrics` counts them.
    """
    trajectories = [t for group in groups for t in group.trajectories if t.steps and t.outcome != "error"]
    names = [f"note/{index}" for index in range(len(trajectories))]
    for name in names:
        policy.open_episode(name)
    try:
        completions = await _gather(
            [_write(policy, t, config, seed, name) for t, name in zip(trajectories, names, strict=True)]
        )
    finally:
        for name in names:
            policy.close_episode(name)
    notes = [_note(policy, t, done, config, step) for t, done in zip(trajectories, completions, strict=True)]
    for note in notes:
        if on_note is not None:
            on_note(note)
    return Written([tip for note in notes for tip in note.tips], sum(len(n.completion.token_ids) for n in notes))


async def _write(policy: Policy, trajectory: Trajectory, config: Config, seed: int, episode: str) -> Completion:
    """One note. Where the whole episode leaves no room for it, the oldest turns are forgotten."""
    memory = config.memory
    messages = reflection_messages(trajectory, config.rollout, memory, policy.count_tokens)
    while (room := policy.context_length - num_tokens(policy, messages)) < memory.max_write_tokens:
        if len(shorter := forget_turn(messages)) == len(messages):
            break
        messages = shorter
    try:
        if room < 1:
            return Completion((), (), (), "", "length")
        note_seed = completion_seed(seed, trajectory.task.id, trajectory.member, "note")
        sampling = Sampling(memory.write_temperature, max_tokens=min(room, memory.max_write_tokens), seed=note_seed)
        return await policy.generate(messages, sampling, episode)
    finally:
        policy.close_episode(episode)


def _note(policy: Policy, trajectory: Trajectory, completion: Completion, config: Config, step: int) -> Note:
    """The note with its tips, found by the final state or, with entries = "step", by each step's."""
    keys = memory_keys(trajectory, config.rollout, config.memory, policy.count_tokens)
    tips = tips_of(
        trajectory, completion.text, config.memory, keys=keys[-1:] if config.memory.entries == "episode" else keys[:-1],
        model=policy.name, version=policy.version, run=config.run.name, step=step,
    )  # fmt: skip
    return Note(trajectory, completion, tuple(tips))


# --- metrics ----------------------------------------------------------------------------------------------------


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
        "note_tokens_read": float(sum(len(note.completion.prompt_ids) for note in notes)),
        "note_tokens": float(sum(len(note.completion.token_ids) for note in notes)),
    }


def _returns(episodes: Sequence[Trajectory]) -> dict[str, float]:
    return {
        "return": _mean([episode.episode_return for episode in episodes]),
        "success": _mean([episode.success for episode in episodes]),
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
