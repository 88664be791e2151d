"""One episode as a coroutine that reads like one agent's loop, and how the agent acts in it.

A method that needs more than tips in the prompt (candidates that are rescored, examples with advice) brings an `Actor`
of its own; the loop of the episode stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from trailnotes.config.schema import Config
from trailnotes.errors import EnvError
from trailnotes.memory.base import AsyncMemory, Memory
from trailnotes.policies.base import Policy
from trailnotes.prompts import Conversation, build_memory_query, parse_action
from trailnotes.seeds import derive_seed
from trailnotes.types import (
    Completion,
    Message,
    Mode,
    Observation,
    Outcome,
    Sampling,
    Step,
    Task,
    Tip,
    TokenIds,
    Trajectory,
)

MAX_ACTION_SHOWN = 200  # characters of the action that an error names


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


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """All that an actor may know of its episode before it begins."""

    policy: Policy
    task: Task
    mode: Mode
    member: int  # index in the group, 0..N-1
    seed: int  # with task, member and step it gives the seed of each completion
    episode: str  # its name for the policy, which is open there
    config: Config

    def build_sampling(self, step: int) -> Sampling:
        """How the action of `step` is drawn."""
        return build_action_sampling(self.config, derive_seed(self.seed, self.task.id, self.member, step))


@dataclass(frozen=True, slots=True)
class Decision:
    """What an actor answers to an observation."""

    action: str  # as the environment will receive it
    completion: Completion  # that the action was read from, under the prompt acted on
    plain_prompt_ids: TokenIds = ()  # the same history without any tip; () from a server that returns no ids
    tips: tuple[Tip, ...] = ()  # shown in this turn
    other_tokens: int = 0  # sampled besides `completion`


class Actor(Protocol):
    """One agent in one episode. What it asks the policy goes under `EpisodeContext.episode`, one request at a time."""

    def start(self, observation: Observation) -> None:
        """The environment has been reset; its instruction and briefing are in this observation only."""
        ...

    async def act(self, observation: Observation) -> Decision | None:
        """Answer the newest observation, the first one included; None if the next turn does not fit the context."""
        ...


MakeActor = Callable[[EpisodeContext], Actor]


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
    make_actor: MakeActor | None = None,
) -> Trajectory:
    """Play one episode; an environment that fails ends it with outcome "error" and the steps so far.

    Args:
        policy: acts. The caller announces `episode` to it before, and closes it after.
        env: an environment for this episode alone.
        task: the game.
        mode: in all but "plain" the memory is searched before every action.
        memory: None shows no tips.
        config: `rollout`, `memory`.
        member: index in the group, 0..N-1.
        seed: with task, member and step it gives the seed of each completion.
        episode: name for the policy; default "task/member".
        make_actor: who acts instead of `TipsActor`; `memory` is then the actor's own business.

    Raises:
        PolicyError: the policy cannot answer.
    """
    seating = EpisodeContext(policy, task, mode, member, seed, episode or f"{task.id}/{member}", config)
    actor: Actor = make_actor(seating) if make_actor else TipsActor(seating, memory)
    steps: list[Step] = []
    observation, context_full, error = Observation(""), False, ""
    attempted = None
    try:
        observation = await env.reset(task)
        actor.start(observation)
        while not observation.done and len(steps) < config.rollout.max_steps:
            decision = await actor.act(observation)
            if decision is None:
                context_full = True
                break
            attempted = decision.action
            after = await env.step(attempted)
            steps.append(
                Step(
                    observation, decision.tips, decision.completion, decision.plain_prompt_ids, attempted, after.reward,
                    policy_version=policy.version, other_tokens=decision.other_tokens,
                )
            )  # fmt: skip
            observation, attempted = after, None
    except EnvError as failure:
        error = _format_error(failure, attempted)
    return Trajectory(
        task, tuple(steps), observation, _determine_outcome(observation, error), observation.success, observation.score,
        observation.max_score, mode, member, error, context_full,
    )  # fmt: skip


def _format_error(failure: EnvError, action: str | None) -> str:
    """One line: what failed, and at which action, which no step of the record holds; None where there was none."""
    text = " ".join(str(failure).split()) or type(failure).__name__
    return text if action is None else f"{text} (at the action {action[:MAX_ACTION_SHOWN]!r})"


def _determine_outcome(final: Observation, error: str) -> Outcome:
    if error:
        return "error"
    return "terminated" if final.terminated else "truncated"


class TipsActor:
    """The policy as it is, with the tips of a memory in its turns in all modes but "plain"; None shows no tips.

    A method that words its tips otherwise brings the `conversation`.
    """

    def __init__(
        self, seating: EpisodeContext, memory: Memory | None, conversation: Conversation | None = None
    ) -> None:
        self.seating, self.memory = seating, memory
        config = seating.config
        self.conversation = conversation or Conversation(config.rollout, config.memory, seating.policy.count_tokens)
        self.num_turns = 0
        self.first_seen = 0  # tokens of the first observation

    def start(self, observation: Observation) -> None:
        """Open the conversation."""
        self.conversation.start(observation.instruction or "")
        self.first_seen = self.seating.policy.count_tokens(self.conversation.cap_text(observation.text))

    async def find(self, observation: Observation) -> list[Tip]:
        """The tips for this turn."""
        seating = self.seating
        if seating.mode == "plain":
            return []
        return await find_tips(self.memory, seating.task, self.conversation, observation, seating.config)

    def affordable(self, limit: int, observation: Observation, found: Sequence[Tip]) -> Sequence[Tip]:
        """The first of the tips that leave room for the turns that are left (`memory.leave_room`).

        A turn to come, answer and observation, is taken to be as long as those so far are on average; of the first one
        that is its observation alone, since the instruction comes only once.
        """
        policy, conversation = self.seating.policy, self.conversation
        if not found or not self.seating.config.memory.leave_room:
            return found
        turn = Message("user", conversation.format_turn(observation))
        used = count_prompt_tokens(policy, [*conversation.acting, turn])
        grown = 0
        if self.num_turns:
            start = conversation.plain[: conversation.opening + 1]
            grown = count_prompt_tokens(policy, [*conversation.plain, turn]) - count_prompt_tokens(policy, start)
        turns_left = self.seating.config.rollout.max_steps - self.num_turns - 1
        reserved = math.ceil(turns_left * (self.first_seen + grown) / (self.num_turns + 1))
        return conversation.fit_tips(found, limit - used - reserved)

    async def act(self, observation: Observation) -> Decision | None:
        """Find tips, show them, sample, read the action."""
        seating, conversation = self.seating, self.conversation
        policy, config = seating.policy, seating.config
        limit = compute_prompt_limit(policy, config)
        found = self.affordable(limit, observation, await self.find(observation))
        tips = observe_within_limit(limit, policy, conversation, observation, found)
        if tips is None:
            return None
        sampling = seating.build_sampling(self.num_turns)
        self.num_turns += 1
        completion = await policy.generate(tuple(conversation.acting), sampling, seating.episode)
        plain_ids = policy.encode(conversation.plain) if conversation.shown else completion.prompt_ids
        conversation.act(completion.text, completion.token_ids)
        action = parse_action(completion.text, config.rollout.action_format, config.rollout.style).action
        return Decision(action, completion, plain_ids, tips)


async def find_tips(
    memory: Memory | None, task: Task, conversation: Conversation, observation: Observation, config: Config
) -> list[Tip]:
    """Tips of the task for the state that `observation` makes, by the tip-free conversation."""
    if memory is None or not config.memory.top_k:
        return []
    query = build_memory_query(conversation, config.memory.query, observation)
    if isinstance(memory, AsyncMemory):
        return await memory.search_async(task.id, query, config.memory.top_k)
    return memory.search(task.id, query, config.memory.top_k)


def observe_within_limit(
    limit: int, policy: Policy, conversation: Conversation, observation: Observation, found: Sequence[Tip]
) -> tuple[Tip, ...] | None:
    """Add the turn and return the tips it shows: none if they do not fit `limit` tokens; None if the turn does not."""
    tips = conversation.observe(observation, found)
    if tips and count_prompt_tokens(policy, conversation.acting) > limit:
        conversation.drop_tips(tips)
        tips = ()
    return tips if tips or count_prompt_tokens(policy, conversation.acting) <= limit else None


def compute_prompt_limit(policy: Policy, config: Config) -> int:
    """Tokens that a prompt may have, so that a whole action still fits behind it."""
    return min(config.rollout.max_context_tokens, policy.context_length) - config.rollout.max_action_tokens


def count_prompt_tokens(policy: Policy, messages: Sequence[Message]) -> int:
    """Length of the prompt; the sum over its contents where an engine gives no ids."""
    return len(policy.encode(messages)) or sum(policy.count_tokens(message.content) for message in messages)


def build_action_sampling(config: Config, seed: int) -> Sampling:
    """How actions are drawn."""
    rollout = config.rollout
    return Sampling(
        rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_action_tokens, rollout.stop, seed=seed
    )
