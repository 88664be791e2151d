"""Reflexion in words: the request for a new plan after a failure, and plans shown (arXiv 2303.11366, section 3).

The request comes after the failed episode and holds two worked examples of failure and plan: without them a model of
moderate size keeps acting instead of reflecting. Earlier plans are quoted, oldest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from trailnotes.prompts import Conversation, quoted, replay_conversation, truncate
from trailnotes.rollout import EpisodeContext, TipsActor
from trailnotes.types import Message, Observation, Tip, Trajectory

if TYPE_CHECKING:
    from trailnotes.algorithms.reflexion.memory import ReflectionMemory
    from trailnotes.config.memory_schema import MemoryConfig
    from trailnotes.config.schema import RolloutConfig
    from trailnotes.prompts import CountTokens, FormatTips

_REQUEST: Final = (
    "The episode has ended without success, with a score of {score:g} of {max_score:g}. Do not act any more, and do "
    "not describe the environment. Think about what went wrong, and write a new plan for the next attempt at the same "
    "task: which actions should have been taken instead, in which order. One line, under 100 words."
)
_EXAMPLES: Final = {  # (task, what happened, plan)
    "full": (
        (
            "put a clean mug on the desk",
            "take mug; go to desk; put mug on desk; the episode ended, the mug was dirty",
            "I carried a dirty mug. Next time: take mug, go to sink, clean mug with sink, go to desk, put mug on desk.",
        ),
        (
            "find the measuring tape in the workshop",
            "open drawer 1; open drawer 2; open drawer 1; open drawer 2; out of steps",
            "I opened the same drawers again. Next time: open each once; if empty, go to shelf and take tape.",
        ),
    ),
    "terse": (
        ("find the way through the dusk maze", "north > a dead end .", "dusk : east south east north"),
        ("unlock the boxes of the kelp vault", "west > nothing found", "nothing found"),
    ),
}
_WORDS: Final = {
    "full": {
        "header": "Two examples of a failed attempt and the plan made after it, quoted from other tasks:",
        "example": '- Task: "{}" What happened: "{}" New plan: "{}"',
        "shown": "Your plans for this task, each made after a failed trial, oldest first (quoted; they may be wrong):",
        "previous": "Your plans so far for this task, oldest first (quoted; they failed or were not followed):",
        "plan": '- Trial {}: "{}"',
        "end": "New plan:",
    },
    "terse": {
        "header": "example :",
        "example": '- " {} " > " {} " > " {} "',
        "previous": "notes :",
        "plan": '- " {1} "',
    },
}


class PlansActor(TipsActor):
    """The policy with the newest plans for its task in the first turn, and with nothing in later ones.

    `eval.show_tips` may put something else in their place.
    """

    def __init__(self, seating: EpisodeContext, memory: ReflectionMemory) -> None:
        config, count_tokens = seating.config, seating.policy.count_tokens
        cap = config.reflexion.max_shown_tokens
        # Two failures may have been followed by the same words; each trial is shown with its own.
        shown = config.memory.model_copy(update={"max_tip_tokens": cap, "repeat_shown": True})
        introduce = make_plan_introduction(config.rollout, count_tokens, cap)
        super().__init__(seating, memory, Conversation(config.rollout, shown, count_tokens, introduce))
        self.plans = memory

    def affordable(self, limit: int, observation: Observation, found: Sequence[Tip]) -> Sequence[Tip]:  # noqa: ARG002
        """All of them: a window of plans is shown whole or not at all."""
        return found

    async def find(self, observation: Observation) -> list[Tip]:  # noqa: ARG002 (a task has one window)
        """The plans for this turn."""
        seating = self.seating
        if seating.mode == "plain" or self.num_turns:
            return []
        return self.plans.get_prompt_plans(seating.task.id, seating.config.eval.show_tips)


def build_plan_messages(
    trajectory: Trajectory,
    plans: Sequence[Tip],
    rollout: RolloutConfig,
    memory: MemoryConfig,
    count_tokens: CountTokens,
    max_plan_tokens: int,
) -> list[Message]:
    """The tip-free conversation of a failed episode, its end, two examples, the plans so far, and the request.

    Args:
        trajectory: a failed episode.
        plans: those shown to it, oldest first; `Tip.step` is the trial that each was written after.
        rollout: wording and caps.
        memory: caps.
        count_tokens: of the reflector.
        max_plan_tokens: a quoted plan is cut here.
    """
    (*_, conversation) = replay_conversation(trajectory, rollout, memory, count_tokens)
    words, style = _WORDS[rollout.style], rollout.style
    lines = [conversation.format_turn(trajectory.final_observation)]
    if style == "full":
        lines += ["", _REQUEST.format(score=trajectory.score, max_score=trajectory.max_score), ""]
    lines += [words["header"], *(words["example"].format(*example) for example in _EXAMPLES[style])]
    if plans:
        lines += [words["previous"], *format_plans(plans, rollout, count_tokens, max_plan_tokens)]
    if style == "terse":
        lines.append(f"score {trajectory.score:g} / {trajectory.max_score:g} . plan ?")
    else:
        lines.append(words["end"])
    return [*conversation.plain, Message("user", "\n".join(lines))]


def make_plan_introduction(
    rollout: RolloutConfig, count_tokens: CountTokens, max_plan_tokens: int
) -> FormatTips | None:
    """How plans stand in the actor's first turn; None in terse style, where they are tips like any other."""
    if rollout.style == "terse":
        return None

    def introduce(plans: Sequence[Tip]) -> list[str]:
        return [_WORDS["full"]["shown"], *format_plans(plans, rollout, count_tokens, max_plan_tokens), ""]

    return introduce


def format_plans(
    plans: Sequence[Tip], rollout: RolloutConfig, count_tokens: CountTokens, max_plan_tokens: int
) -> list[str]:
    """Each plan as quoted data, with the trial that it was written after, counted from 1."""
    line = _WORDS[rollout.style]["plan"]
    return [line.format(plan.step + 1, truncate(quoted(plan.text), max_plan_tokens, count_tokens)) for plan in plans]
