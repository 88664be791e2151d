"""Scripts in an environment, and the conversations of their episodes."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from typing import Self

from trailnotes.config.schema import Config
from trailnotes.envs import Env
from trailnotes.errors import ConfigError
from trailnotes.rollout.conversation import Conversation, build_reflection_messages
from trailnotes.storage.demonstrations import Demonstration, list_assistant_turns
from trailnotes.types import Completion, Message, Observation, Outcome, Step, Task, Tip, Trajectory

Script = Generator[str, Observation, None]  # is sent the newest observation and yields the next action


def replay_actions(actions: Sequence[str], _: Observation) -> Script:
    for action in actions:  # noqa: UP028 (a list cannot be sent the observations)
        yield action


def play_script(env: Env, task: Task, script: Callable[[Observation], Script], member: int = 0) -> Trajectory:
    """Play one episode of a script, until it or the game ends."""
    observation = env.reset(task)
    acting, steps = script(observation), []
    action = next(acting, None)
    while action is not None:
        after = env.step(action)
        steps.append(Step(observation, (), Completion((), (), (), action), (), action, after.reward))
        observation = after
        if observation.done:
            break
        try:
            action = acting.send(observation)
        except StopIteration:
            action = None
    outcome: Outcome = "terminated" if observation.terminated else "truncated"
    success, score = observation.success, observation.score
    return Trajectory(task, tuple(steps), observation, outcome, success, score, observation.max_score, member=member)


def get_actions(trajectory: Trajectory) -> list[str]:
    return [step.action for step in trajectory.steps]


class Demonstrator:
    """Base of demonstrators that can hold games out. `seed` is of all draws."""

    def __init__(self, config: Config, count_tokens: Callable[[str], int], seed: int) -> None:
        self.config, self.count_tokens = config, count_tokens
        self.rng = random.Random(seed)

    @property
    def max_tips(self) -> int:
        """The most tips in a prompt."""
        return min(self.config.warmstart.num_tips, self.config.memory.top_k)

    def rank_tips(self, tips: Sequence[Tip]) -> tuple[Tip, ...]:
        """Select the tips for the prompt, by score."""
        return tuple(sorted(tips, key=lambda tip: -tip.score)[: self.max_tips])

    @classmethod
    def build_held_out(cls, config: Config, count_tokens: Callable[[str], int], seed: int) -> Self:
        """Build the demonstrator of games in `rehearsal.options` that `config` neither trains nor evaluates on."""
        options = {**config.env.options, **config.rehearsal.options}
        env = config.env.model_copy(update={"options": options})
        subject = cls(config.model_copy(update={"env": env}), count_tokens, seed)
        subject.hold_out(config)
        return subject

    def hold_out(self, config: Config) -> None:
        """Leave out the games that `config` trains or evaluates on. Raises `ConfigError` if none is left."""
        fix = "let the start model play instead: trailnotes rehearsal record"
        raise ConfigError(f"the scripted episodes of {config.env.name} cannot hold games out: {fix}")


def build_demonstrations(
    trajectory: Trajectory, tips: Sequence[Tip], note: str, config: Config, count_tokens: Callable[[str], int]
) -> list[Demonstration]:
    """Build the demonstrations of an episode whose first turn showed `tips`, and after which `note` was written.

    Without tips one row, which acts and then writes; with tips a row that acts on them, and a tip-free one that only
    writes: nothing in it explains the actions.
    """
    rollout, memory = config.rollout, config.memory
    written = (*build_reflection_messages(trajectory, rollout, memory, count_tokens), Message("assistant", note))
    if not tips:
        return pair_demonstrations(None, written, trajectory.task)
    conversation = Conversation(rollout, memory, count_tokens)
    conversation.start(trajectory.steps[0].observation.instruction or "")
    for step in trajectory.steps:
        conversation.observe(step.observation, () if conversation.tips_shown else tips)
        conversation.act(step.completion.text)
    return pair_demonstrations(tuple(conversation.acting), written, trajectory.task)


def pair_demonstrations(
    acted: tuple[Message, ...] | None, written: tuple[Message, ...], task: Task
) -> list[Demonstration]:
    """Teach the whole conversation `written`, or `acted` on tips, and of the tip-free `written` the last turn alone."""
    if acted is None:
        return [Demonstration(written, list_assistant_turns(written), task)]
    last = frozenset({len(written) - 1})
    return [Demonstration(acted, list_assistant_turns(acted), task), Demonstration(written, last, task)]
