"""Prepare one recorded episode for its page: both contexts turn by turn, and the figures of each action.

Contexts are worded again by the run's own settings, as while the episode was played. No tokenizer is loaded for that:
texts that the run cut at its token limits are whole here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trailnotes.config.schema import Config
from trailnotes.errors import RunError
from trailnotes.rollout.conversation import Conversation, get_instruction
from trailnotes.storage.files import trajectory_from_json
from trailnotes.types import Message, Step, Trajectory

MAX_CHARS: Final = 20_000  # of one text on a page
MAX_TOKEN_BARS: Final = 64  # bars of an action


@dataclass(frozen=True, slots=True)
class TurnView:
    """One decision of the agent."""

    number: int  # from 1
    before: str  # the context that was acted on, up to the tips; `after` is the rest
    tips: tuple[tuple[int | None, str], ...]  # id, and the line that quotes it
    heading: str  # the line over the tips
    after: str
    plain: str  # the same turn without tips
    answer: str  # text of the policy
    action: str  # sent to the environment
    reward: float
    novelty: float
    version: int
    logprob: float | None  # of the whole answer under the context that was acted on; None: not recorded
    bars: tuple[float, ...]  # probability of each token, 0 to 1
    read: int  # tokens of the context that was acted on
    read_plain: int | None  # of the one without tips; None: not recorded


@dataclass(frozen=True, slots=True)
class EpisodeView:
    trajectory: Trajectory
    opening: tuple[Message, ...]
    turns: tuple[TurnView, ...]
    final: str  # the last observation
    num_tips: int
    same: bool  # whether both contexts are the same in all turns


def build_episode_view(record: Mapping[str, Any], config: Config | None) -> EpisodeView:
    if "outcome" in record and "final_observation" not in record:
        raise RunError("a record holds no steps, or only their actions and tips: this page needs the run itself")
    try:
        trajectory = trajectory_from_json(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise RunError(f"this line holds no episode that this version can read ({reason})") from None
    config = config or Config()
    conversation = Conversation(config.rollout, config.memory, lambda _: 0)
    conversation.start(get_instruction(trajectory))
    is_foreign = bool(trajectory.steps and trajectory.steps[0].observation.request)  # it words its own opening
    opening, turns = () if is_foreign else tuple(conversation.plain), []
    for number, step in enumerate(trajectory.steps, 1):
        conversation.observe(step.observation, step.tips)
        contexts = conversation.acting[-1].content, conversation.plain[-1].content
        conversation.act(step.completion.text)
        turns.append(_build_turn(number, step, contexts, conversation))
    final, num_tips = truncate_text(trajectory.final_observation.text), sum(len(step.tips) for step in trajectory.steps)
    return EpisodeView(trajectory, opening, tuple(turns), final, num_tips, not num_tips)


def describe_contexts(mode: str) -> tuple[str, str]:
    """Describe the use of both contexts of an episode of a mode: with tips, and without."""
    return {
        "off_policy": ("acted on, with tips", "trained on, without them"),
        "on_policy_tips": ("acted on and trained on, with tips", "the same without tips: not used"),
    }.get(mode, ("acted on and trained on", "the same"))


def truncate_text(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[:MAX_CHARS]}\n[{len(text) - MAX_CHARS:,} more characters are in trajectories.jsonl]"


def _build_turn(number: int, step: Step, contexts: tuple[str, str], conversation: Conversation) -> TurnView:
    acting, plain = contexts
    tips: tuple[tuple[int | None, str], ...] = ()
    before, heading, after = acting, "", ""
    if step.tips and acting != plain:
        lines = conversation.format_tips(step.tips)
        own = [conversation.format_tip(tip) for tip in step.tips]
        before, _, after = acting.partition("\n".join(lines))
        tips = tuple((tip.id, truncate_text(line)) for tip, line in zip(step.tips, own, strict=True))
        heading = lines[0]
    logprobs = step.completion.logprobs
    return TurnView(
        number=number,
        before=truncate_text(before.rstrip("\n")),
        tips=tips,
        heading=heading,
        after=truncate_text(after.lstrip("\n")),
        plain=truncate_text(plain),
        answer=truncate_text(step.completion.text),
        action=truncate_text(step.action),
        reward=step.reward,
        novelty=step.reward_intrinsic,
        version=step.policy_version,
        logprob=math.fsum(logprobs) if logprobs else None,
        bars=tuple(math.exp(min(0.0, logprob)) for logprob in logprobs[:MAX_TOKEN_BARS]),
        read=step.completion.num_prompt_tokens,
        read_plain=step.num_plain_tokens,
    )
