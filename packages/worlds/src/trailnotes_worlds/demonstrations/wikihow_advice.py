"""REMEMBERER's single steps on WikiHow: a situation, examples with advice, and an answer that is advice itself.

An example of the very situation is followed, whatever it encourages; those of other goals are not, since where they tap
is of their own screens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from trailnotes.algorithms.rememberer.advice import (
    Example,
    Situation,
    ValuedAction,
    build_advice_messages,
    format_advice,
)
from trailnotes.prompts import truncate
from trailnotes.storage.demonstrations import Demonstration
from trailnotes.types import Message
from trailnotes.warmstart.demonstrations.episodes import get_actions, play_script
from trailnotes_worlds.demonstrations.wikihow_readers import Reader, space_arguments

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from trailnotes.config.schema import Config
    from trailnotes.types import Task
    from trailnotes_worlds.wikihow.env import WikiHowEnv

MAX_BEFORE = 3  # actions before a step that is advised
MAX_MATCH_TRIES = 4  # situations of other goals that are looked at for one with as many actions before it


@dataclass(frozen=True, slots=True)
class DecisionPoint:
    """A step of an episode, and what is best there."""

    situation: Situation
    right: ValuedAction
    others: tuple[str, ...]  # what else can be done


class Adviser:
    """Makes such steps, of the goals that it is given.

    Args:
        env: plays the episodes.
        config: `rollout` and `rememberer`: how a prompt is worded, and how long it may be.
        count_tokens: of the tokenizer.
        rng: draws.
    """

    def __init__(self, env: WikiHowEnv, config: Config, count_tokens: Callable[[str], int], rng: random.Random) -> None:
        self.env, self.config, self.count_tokens, self.rng = env, config, count_tokens, rng

    def demonstrate_advice(self, task: Task, tasks: Sequence[Task]) -> Demonstration:
        """A step of `task` under up to two examples, answered as the same situation advises, else by the screen."""
        present = self.draw_decision(task)
        examples = [self.build_other_example(present, tasks) for _ in range(self.rng.choice((0, 1, 1, 2)))]
        answer = present.right
        if examples and self.rng.random() < 0.5:
            examples[-1] = known = self.build_matching_example(present)
            answer = max(known.encouraged, key=lambda valued: valued.value, default=answer)
        messages = build_advice_messages(present.situation, examples, self.config.rollout.style)
        while examples and self._count_message_tokens(messages) > self._get_token_limit():
            examples = examples[1:]
            answer = answer if examples else present.right
            messages = build_advice_messages(present.situation, examples, self.config.rollout.style)
        answered = (*messages, Message("assistant", format_advice([answer])))
        return Demonstration(answered, frozenset({len(messages)}), task)

    def draw_decision(self, task: Task) -> DecisionPoint:
        """Some step of a hasty episode; its value is what can still be earned."""
        while True:
            reader = Reader(self.env, self.rng)
            episode = play_script(self.env, task, partial(reader.start_hastily, num=self.rng.randint(0, MAX_BEFORE)))
            seen = episode.final_observation
            if not seen.done:
                break
        first = episode.steps[0].observation if episode.steps else seen
        right, most = reader.choose_action(seen), self.config.rollout.max_observation_tokens
        history = tuple(map(space_arguments, get_actions(episode)))[-self.config.rememberer.history :]
        told, text = (truncate(each, most, self.count_tokens) for each in (first.instruction or "", seen.text))
        others = tuple(space_arguments(action) for action in seen.actions or () if action != right)
        left = episode.max_score - episode.score
        return DecisionPoint(Situation(told, text, history), ValuedAction(space_arguments(right), left), others)

    def build_matching_example(self, moment: DecisionPoint) -> Example:
        """The same situation: half of the time the best action is encouraged, now and then any, or none."""
        drawn = self.rng.random()
        best = moment.right
        if drawn > 0.5 and moment.others:
            best = ValuedAction(self.rng.choice(moment.others), self.rng.choice((1.0, 2.0, self.rng.uniform(0, 0.5))))
        encouraged = () if drawn > 0.9 else (best,)
        return Example(moment.situation, encouraged, self._draw_bad_actions(moment, best.action))

    def build_other_example(self, moment: DecisionPoint, tasks: Sequence[Task]) -> Example:
        """A situation of another goal, if possible with as many actions before it."""
        for _ in range(MAX_MATCH_TRIES):
            other = self.draw_decision(self.rng.choice(tasks))
            if len(other.situation.history) == len(moment.situation.history):
                break
        encouraged = (other.right,) if self.rng.random() < 0.7 else ()
        return Example(other.situation, encouraged, self._draw_bad_actions(other, other.right.action))

    def _draw_bad_actions(self, moment: DecisionPoint, but: str) -> tuple[ValuedAction, ...]:
        """Up to two of the other actions, with nothing to be earned."""
        bad = [action for action in moment.others if action != but]
        return tuple(
            ValuedAction(action, 0.0) for action in self.rng.sample(bad, min(len(bad), self.rng.randint(0, 2)))
        )

    def _count_message_tokens(self, messages: Sequence[Message]) -> int:
        return sum(self.count_tokens(message.content) for message in messages)

    def _get_token_limit(self) -> int:
        return self.config.rollout.max_context_tokens - self.config.rememberer.max_write_tokens
