"""Finished episodes in words: rebuilt turn by turn, the keys that find their states, and the request for a note."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from trailnotes.config.schema import MemoryConfig, RolloutConfig
from trailnotes.prompts.conversation import Conversation, memory_query
from trailnotes.prompts.quoting import CUT, CountTokens
from trailnotes.types import Message, Trajectory

_REQUEST: Final = (
    "The episode has ended with a score of {score:g} of {max_score:g}. Do not act any more. Write one note for the "
    "next attempt at this task: what was tried, what was learned, and how far from completing the task it ended. "
    "One line, under 100 words; name places, objects and actions, so that the note can be used from a fresh start."
)


def instruction_of(trajectory: Trajectory) -> str:
    """The instruction given at reset, '' if there was none."""
    first = trajectory.steps[0].observation if trajectory.steps else trajectory.final_observation
    return first.instruction or ""


def replay(
    trajectory: Trajectory, rollout: RolloutConfig, memory: MemoryConfig, count_tokens: CountTokens
) -> Iterator[Conversation]:
    """Rebuild an episode: one growing conversation, yielded before each observation, the final one too (T + 1 times).

    It is the same object every time, so read what is needed before going on.
    """
    conversation = Conversation(rollout, memory, count_tokens)
    conversation.start(instruction_of(trajectory))
    for step in trajectory.steps:
        yield conversation
        conversation.observe(step.observation, step.tips)
        conversation.act(step.completion.text, step.completion.token_ids)
    yield conversation


def memory_keys(
    trajectory: Trajectory, rollout: RolloutConfig, memory: MemoryConfig, count_tokens: CountTokens
) -> list[str]:
    """`memory_query` of every state of the episode: one before each action, then that of the final observation."""
    observations = [*(step.observation for step in trajectory.steps), trajectory.final_observation]
    stages = replay(trajectory, rollout, memory, count_tokens)
    return [
        memory_query(stage, memory.query, observation) for stage, observation in zip(stages, observations, strict=True)
    ]


def reflection_messages(
    trajectory: Trajectory, rollout: RolloutConfig, memory: MemoryConfig, count_tokens: CountTokens
) -> list[Message]:
    """The tip-free conversation of an episode, its last observation and outcome, and the request for one note."""
    (*_, conversation) = replay(trajectory, rollout, memory, count_tokens)
    final = conversation.turn(trajectory.final_observation)
    score, max_score = trajectory.score, trajectory.max_score
    if rollout.style == "terse":
        request = f"{final}\nscore {score:g} / {max_score:g} . note ?"
    else:
        request = f"{final}\n\n{_REQUEST.format(score=score, max_score=max_score)}"
    return [*conversation.plain, Message("user", request)]


def forget_turn(messages: Sequence[Message]) -> list[Message]:
    """The conversation without its oldest answer and the observation after the first one, marked where.

    The first user turn keeps the instruction; the result is not longer than `messages`, and as long if there is
    nothing left to forget. Only for requests that stand alone: it breaks the append-only property.
    """
    first = next((i for i, message in enumerate(messages) if message.role == "user"), len(messages))
    if len(messages) - first < 3:
        return list(messages)
    mark, later = CUT.strip(), messages[first + 2].content
    opening = messages[first].content.partition(f"\n{mark}\n")[0]
    return [*messages[:first], Message("user", f"{opening}\n{mark}\n{later}"), *messages[first + 3 :]]
