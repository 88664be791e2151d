"""One episode as a coroutine, and the actor that shows tips in it.

A method that needs more than tips in the prompt (rescored candidates, examples with advice) brings its own `Actor`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

from trailnotes.config.schema import Config
from trailnotes.errors import EnvError, redact_environment
from trailnotes.memory.base import AsyncMemory, Memory
from trailnotes.policies.base import Policy
from trailnotes.rollout.conversation import MAX_ACTION_CHARS, Conversation, build_memory_query, parse_action
from trailnotes.types import (
    NO_OP,
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
    derive_seed,
)

P = ParamSpec("P")
T = TypeVar("T")
MAX_LOOP_CHARS = 16_384  # of a request that is tokenized in the event loop
MAX_ACTION_SHOWN = 200  # characters of the action that an error names


class AsyncEnv(Protocol):
    """An environment behind a lease; both methods raise `EnvError` when it fails."""

    async def reset(self, task: Task) -> Observation: ...

    async def step(self, action: str) -> Observation: ...


@runtime_checkable
class ForeignAgent(AsyncEnv, Protocol):
    """An agent that asks, as an environment: its requests are observations, and it gets the whole completion."""

    describe_tools: Any  # words its tools as the model knows them, see `ChatFormat.describe_tools`; None: in our words
    sampling: Sampling  # of its answers, and the longest prompt, both set before `reset`
    max_prompt_tokens: int

    async def answer(self, completion: Completion) -> Observation:
        """Answer the agent's request, and wait for its next one or for its report."""

    async def cut(self, asked: Observation) -> Observation:
        """End the episode at a request that is not answered; returns it with what the episode earned."""


class Pool(Protocol):
    """A lender of environments, as many at a time as are asked for."""

    def lease(self) -> AbstractAsyncContextManager[AsyncEnv]:
        """Lend one environment: ``async with pool.lease() as env``."""


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """Everything that an actor may know of its episode before it begins."""

    policy: Policy
    task: Task
    mode: Mode
    member: int  # index in the group, 0..N-1
    seed: int  # with task, member and step it gives the seed of each completion
    episode: str  # its name for the policy, which is open there
    config: Config

    def build_sampling(self, step: int) -> Sampling:
        rollout, seed = self.config.rollout, derive_seed(self.seed, self.task.id, self.member, step)
        return Sampling(
            rollout.temperature, rollout.top_p, max_tokens=rollout.max_action_tokens, stop=rollout.stop, seed=seed
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """An actor's answer to an observation."""

    action: str  # as the environment will receive it
    completion: Completion  # that the action was read from, under the prompt acted on
    plain_prompt_ids: TokenIds = ()  # the same history without any tip; () from a server that returns no ids
    tips: tuple[Tip, ...] = ()  # of this turn
    other_tokens: int = 0  # sampled besides `completion`


class Actor(Protocol):
    """One agent in one episode. It asks the policy under `EpisodeContext.episode`, one request at a time."""

    def start(self, observation: Observation) -> None: ...

    async def act(self, observation: Observation) -> Decision | None:
        """Answer the newest observation, the first one included; None if the next turn does not fit."""


MakeActor = Callable[[EpisodeContext], Actor]
OnStep = Callable[[int], object]  # gets the number of tokens that were sampled for the step


async def run_episode(  # noqa: PLR0913 (what meets here is what an episode is made of)
    policy: Policy, env: AsyncEnv, task: Task, mode: Mode, memory: Memory | None, config: Config, *,
    member: int, seed: int, episode: str = "", make_actor: MakeActor | None = None,
    on_step: OnStep = lambda _: None,
) -> Trajectory:  # fmt: skip
    """Play one episode; a failing environment ends it with outcome "error" and the steps so far.

    The caller announces `episode` (default "task/member") to the policy before, and closes it after. `seed` with task,
    member and step gives the seed of each completion. `make_actor` replaces `TipsActor`, and then uses the memory.
    `on_step` is called after each step.
    """
    context = EpisodeContext(policy, task, mode, member, seed, episode or f"{task.id}/{member}", config)
    actor: Actor = make_actor(context) if make_actor else TipsActor(context, memory)
    agent = env if isinstance(env, ForeignAgent) else None
    if agent is not None and agent.describe_tools is None:
        agent.describe_tools = getattr(policy, "describe_tools", None)
    steps: list[Step] = []
    observation, context_full, error = Observation(""), False, ""
    attempted = None
    try:
        if agent:
            agent.sampling, agent.max_prompt_tokens = context.build_sampling(0), compute_prompt_limit(policy, config)
        observation = await env.reset(task)
        await run_beside_loop(observation, actor.start, observation)
        while not observation.done and len(steps) < config.rollout.max_steps:
            decision = await actor.act(observation)
            if decision is None:
                context_full = True
                break
            attempted = decision.action
            after = await (agent.answer(decision.completion) if agent else env.step(attempted))
            steps.append(
                Step(
                    observation, decision.tips, decision.completion, decision.plain_prompt_ids, attempted, after.reward,
                    policy_version=policy.version, other_tokens=decision.other_tokens,
                )
            )  # fmt: skip
            observation, attempted = after, None
            on_step(steps[-1].num_tokens)
        if agent and not observation.done:
            observation = await agent.cut(observation)
            if steps:
                steps[-1] = replace(steps[-1], reward=steps[-1].reward + observation.reward)
    except EnvError as failure:
        error = " ".join(redact_environment(str(failure)).split()) or type(failure).__name__
        if failure.traceback:
            observation = replace(observation, info={**observation.info, "traceback": failure.traceback})
        if attempted is not None:  # no step of the record holds this action
            error = f"{error} (at the action {attempted[:MAX_ACTION_SHOWN]!r})"
    outcome: Outcome = "error" if error else "terminated" if observation.terminated else "truncated"
    return Trajectory(
        task, tuple(steps), observation, outcome, observation.success, observation.score,
        observation.max_score, mode, member, error, context_full,
    )  # fmt: skip


class TipsActor:
    """The policy as it is, with a memory's tips in all modes but "plain"; memory None gives none."""

    def __init__(
        self, context: EpisodeContext, memory: Memory | None, conversation: Conversation | None = None
    ) -> None:
        self.context, self.memory = context, memory
        config = context.config
        self.conversation = conversation or Conversation(config.rollout, config.memory, context.policy.count_tokens)
        self.num_turns = 0
        self.first_seen = 0  # tokens of the first observation

    def start(self, observation: Observation) -> None:
        self.conversation.start(observation.instruction or "")
        self.first_seen = self.context.policy.count_tokens(self.conversation.cap_text(observation.text))

    async def find(self, observation: Observation) -> list[Tip]:
        """Find the tips for this turn, by the tip-free conversation."""
        context, memory = self.context, self.memory
        config = context.config.memory
        if context.mode == "plain" or memory is None or not config.top_k:
            return []
        query = await run_beside_loop(observation, build_memory_query, self.conversation, config.query, observation)
        if isinstance(memory, AsyncMemory):
            return await memory.search_async(context.task.id, query, config.top_k)
        return memory.search(context.task.id, query, config.top_k)

    def select_affordable(self, limit: int, observation: Observation, tips: Sequence[Tip]) -> Sequence[Tip]:
        """Return the first of the tips that leave room for the remaining turns (`memory.leave_room`).

        A turn to come, answer and observation, is taken to be as long as those of this conversation are on average; of
        the first one that is its observation alone, since the instruction comes only once.
        """
        policy, conversation = self.context.policy, self.conversation
        if not tips or not self.context.config.memory.leave_room:
            return tips
        turn = Message("user", conversation.format_turn(observation))
        used = count_prompt_tokens(policy, [*conversation.acting, turn])
        grown, num_answers = 0, 0  # in this conversation: an agent may open several
        if len(conversation.plain) > conversation.opening:
            start = conversation.plain[: conversation.opening + 1]
            num_answers = sum(m.role == "assistant" for m in conversation.plain[conversation.opening :])
            grown = count_prompt_tokens(policy, [*conversation.plain, turn]) - count_prompt_tokens(policy, start)
        turns_left = self.context.config.rollout.max_steps - self.num_turns - 1
        reserved = math.ceil(turns_left * (self.first_seen + grown) / (num_answers + 1))
        return conversation.fit_tips(tips, limit - used - reserved)

    async def act(self, observation: Observation) -> Decision | None:
        """Find tips, show them, sample, and parse the action."""
        context, conversation = self.context, self.conversation
        policy, config = context.policy, context.config
        limit = compute_prompt_limit(policy, config)
        conversation.follow(observation)
        candidates = await self.find(observation)

        def show_tips() -> tuple[Tip, ...] | None:
            affordable = self.select_affordable(limit, observation, candidates)
            return observe_within_limit(limit, policy, conversation, observation, affordable)

        tips = await run_beside_loop(observation, show_tips)
        if tips is None:
            return None
        sampling = context.build_sampling(self.num_turns)
        sampling = replace(sampling, **(observation.request or {}).get("sampling", {}))
        self.num_turns += 1
        completion = await policy.generate(tuple(conversation.acting), sampling, context.episode)
        plain_ids = policy.encode(conversation.plain) if conversation.tips_shown else completion.prompt_ids
        conversation.act(completion.text, completion.token_ids)
        action = parse_action(completion.text, config.rollout.action_format, config.rollout.style)
        if observation.request and action == NO_OP:  # an agent gets the whole answer, however long its first line
            action = completion.text.strip()[:MAX_ACTION_CHARS]
        return Decision(action, completion, plain_ids, tips)


async def run_beside_loop(observation: Observation, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, which tokenizes, in a thread where an agent's request is long, so that others need not wait."""
    messages = observation.request["messages"] if observation.request else ()
    if sum(len(text) for _, text in messages) <= MAX_LOOP_CHARS:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


def observe_within_limit(
    limit: int, policy: Policy, conversation: Conversation, observation: Observation, candidates: Sequence[Tip]
) -> tuple[Tip, ...] | None:
    """Add the turn and return its tips: none if they do not fit `limit`; None if the turn does not."""
    tips = conversation.observe(observation, candidates)
    if tips and count_prompt_tokens(policy, conversation.acting) > limit:
        conversation.drop_tips(tips)
        tips = ()
    return tips if tips or count_prompt_tokens(policy, conversation.acting) <= limit else None


def compute_prompt_limit(policy: Policy, config: Config) -> int:
    """Compute the tokens of a prompt that leaves room for a whole action."""
    return min(config.rollout.max_context_tokens, policy.context_length) - config.rollout.max_action_tokens


def count_prompt_tokens(policy: Policy, messages: Sequence[Message]) -> int:
    """Count the prompt's tokens; the sum over its contents where an engine gives no ids."""
    return len(policy.encode(messages)) or sum(policy.count_tokens(message.content) for message in messages)
