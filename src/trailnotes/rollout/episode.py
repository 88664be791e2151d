"""One episode as a coroutine that reads like one agent's loop.

Whatever fails in an environment ends its episode with outcome "error"; what fails in the policy is a fault of the
whole run and is raised.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from trailnotes.config.schema import Config
from trailnotes.errors import EnvError
from trailnotes.memory.base import Memory
from trailnotes.policies.base import Policy
from trailnotes.rollout.acting import Actor, MakeActor, NotesActor, Seating
from trailnotes.types import Mode, Observation, Outcome, Step, Task, Trajectory

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
        policy: acts. Whoever calls announces `episode` to it before, and closes it after.
        env: an environment for this episode alone.
        task: the game.
        mode: in all but "plain" the memory is searched before every action.
        memory: None shows no tips.
        config: `rollout`, `memory`.
        member: index in the group, 0..N-1.
        seed: with task, member and step it gives the seed of each completion.
        episode: name for the policy; default "task/member".
        make_actor: who acts instead of `NotesActor`; `memory` is then the actor's own business.

    Raises:
        PolicyError: the policy cannot answer.
    """
    seating = Seating(policy, task, mode, member, seed, episode or f"{task.id}/{member}", config)
    actor: Actor = make_actor(seating) if make_actor else NotesActor(seating, memory)
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
        error = _error_text(failure, attempted)
    return Trajectory(
        task, tuple(steps), observation, _outcome(observation, error), observation.success, observation.score,
        observation.max_score, mode, member, error, context_full,
    )  # fmt: skip


def _error_text(failure: EnvError, action: str | None) -> str:
    """One line: what failed, and at which action, which no step of the record holds; None where there was none."""
    text = " ".join(str(failure).split()) or type(failure).__name__
    return text if action is None else f"{text} (at the action {action[:ACTION_SHOWN]!r})"


def _outcome(final: Observation, error: str) -> Outcome:
    if error:
        return "error"
    return "terminated" if final.terminated else "truncated"
