"""Scripted readers of WikiHow, and REMEMBERER's single steps: a situation, examples with advice, an answer with advice.

A reader knows the instruction and the screen. A step follows an example of its own situation, whatever that encourages,
but not examples of other goals, whose taps belong to other screens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from trailnotes.algorithms.rememberer.advice import (
    Example,
    Situation,
    ValuedAction,
    build_advice_messages,
    format_advice,
)
from trailnotes.algorithms.rememberer.table import RemembererConfig
from trailnotes.rollout.conversation import truncate
from trailnotes.storage.demonstrations import Demonstration
from trailnotes.types import Message
from trailnotes.warmstart.demonstrations.episodes import get_actions, play_script
from trailnotes_worlds.wikihow.app import parse_action
from trailnotes_worlds.wikihow.articles import ABOUT
from trailnotes_worlds.wikihow.pages import REFERENCES_TAP, SEARCH_TAP
from trailnotes_worlds.wikihow.protocols import extract_keywords

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from trailnotes.config.schema import Config
    from trailnotes.types import Observation, Task
    from trailnotes.warmstart.demonstrations.episodes import Script
    from trailnotes_worlds.wikihow.env import WikiHowEnv
    from trailnotes_worlds.wikihow.views import View

MAX_BEFORE = 3  # actions before a step with advice
MAX_MATCH_TRIES = 4  # to find a situation of another goal after as many actions
_NAMED: Final = re.compile(
    r'article "How to (?P<article>.*)"|author page of (?P<author>.*)\.$|category (?P<category>.*)$'
)
_SEARCHED: Final = re.compile(r"how to (.+?)\.?\s*$", re.MULTILINE)
_ACTION: Final = re.compile(r"(\w+)\((.+)\)", re.DOTALL)


def space_arguments(action: str) -> str:
    """Put blanks into an action, so that its words are the same tokens as on a screen."""
    match = _ACTION.fullmatch(action)
    return f"{match[1]}( {match[2].replace(', ', ' , ', 1)} )" if match else action


class Reader:
    """Script that follows the newest instruction by the screen."""

    def __init__(self, env: WikiHowEnv, rng: random.Random) -> None:
        self.env, self.rng = env, rng

    def straight(self, first: Observation) -> Script:
        """Play to the end without a detour."""
        self.title = self._parse_title(first)
        observation = first
        while True:
            observation = yield self.choose_action(observation)

    def hasty(self, first: Observation) -> Script:
        return self.start_hastily(first, self.rng.randint(2, 4))

    def start_hastily(self, first: Observation, num: int) -> Script:
        """Take `num` actions, some of them at random."""
        self.title = self._parse_title(first)
        observation = first
        for _ in range(num):
            offers = observation.actions or ()
            at_random = offers and self.rng.random() < 0.4
            observation = yield self.rng.choice(offers) if at_random else self.choose_action(observation)

    def choose_action(self, observation: Observation) -> str:
        wanted = observation.info.get("instruction", "")
        if not wanted:
            place = self._find_element(lambda view: view.target == SEARCH_TAP)
            words = self.title if self.rng.random() < 0.7 else " ".join(extract_keywords(self.title))
            return f"INPUT({place}, {words})"
        place = self._find_element(partial(_is_named, wanted))
        if place is not None:
            return f"CLICK({place})"
        further = self.env.app.step(self.env.app_state, parse_action("SCROLL(DOWN)"))
        return "GOBACK" if further.refused else "SCROLL(DOWN)"

    def _find_element(self, fits: Callable[[View], bool]) -> int | None:
        listed = self.env.app.leaves(self.env.app_state)
        return next((place for place, leaf in enumerate(listed) if fits(leaf.view)), None)

    def _parse_title(self, first: Observation) -> str:
        match = _SEARCHED.search(first.instruction or "")
        return match[1] if match else ""


def _is_named(wanted: str, view: View) -> bool:
    if "about page" in wanted or "reference list" in wanted:
        return view.target == (ABOUT if "about page" in wanted else REFERENCES_TAP)
    named = _NAMED.search(wanted)
    if named is None or not view.target:
        return False
    name, text = str(named[named.lastgroup or 0]).lower(), view.text.lower()
    return text in (name, f"how to {name}")


@dataclass(frozen=True, slots=True)
class DecisionPoint:
    """Step of an episode, with its best action."""

    situation: Situation
    right: ValuedAction
    others: tuple[str, ...]  # other admissible actions


class Adviser:
    """Maker of demonstrations of single steps."""

    def __init__(self, env: WikiHowEnv, config: Config, count_tokens: Callable[[str], int], rng: random.Random) -> None:
        self.env, self.config, self.count_tokens, self.rng = env, config, count_tokens, rng

    def demonstrate_advice(self, task: Task, tasks: Sequence[Task]) -> Demonstration:
        """Demonstrate a step of `task` with up to two examples: by the example of its situation, else by the screen."""
        present = self.draw_decision(task)
        examples = [self.build_other_example(present, tasks) for _ in range(self.rng.choice((0, 1, 1, 2)))]
        answer = present.right
        if examples and self.rng.random() < 0.5:
            examples[-1] = known = self.build_matching_example(present)
            answer = max(known.encouraged, key=lambda valued: valued.value, default=answer)
        limit = self.config.rollout.max_context_tokens - self.config.section(RemembererConfig).max_write_tokens
        messages = build_advice_messages(present.situation, examples, self.config.rollout.style)
        while examples and sum(self.count_tokens(message.content) for message in messages) > limit:
            examples = examples[1:]
            answer = answer if examples else present.right
            messages = build_advice_messages(present.situation, examples, self.config.rollout.style)
        answered = (*messages, Message("assistant", format_advice([answer])))
        return Demonstration(answered, frozenset({len(messages)}), task)

    def draw_decision(self, task: Task) -> DecisionPoint:
        """Draw a step of a hasty episode; its value is the reward still to earn."""
        while True:
            reader = Reader(self.env, self.rng)
            episode = play_script(self.env, task, partial(reader.start_hastily, num=self.rng.randint(0, MAX_BEFORE)))
            seen = episode.final_observation
            if not seen.done:
                break
        first = episode.steps[0].observation if episode.steps else seen
        right, most = reader.choose_action(seen), self.config.rollout.max_observation_tokens
        history = tuple(map(space_arguments, get_actions(episode)))[-self.config.section(RemembererConfig).history :]
        instruction, text = (truncate(each, most, self.count_tokens) for each in (first.instruction or "", seen.text))
        others = tuple(space_arguments(action) for action in seen.actions or () if action != right)
        left = episode.max_score - episode.score
        return DecisionPoint(Situation(instruction, text, history), ValuedAction(space_arguments(right), left), others)

    def build_matching_example(self, moment: DecisionPoint) -> Example:
        """Build an example of the same situation, which encourages the best action, another one or none."""
        drawn = self.rng.random()
        best = moment.right
        if drawn > 0.5 and moment.others:
            best = ValuedAction(self.rng.choice(moment.others), self.rng.choice((1.0, 2.0, self.rng.uniform(0, 0.5))))
        encouraged = () if drawn > 0.9 else (best,)
        return Example(moment.situation, encouraged, self._draw_bad_actions(moment, best.action))

    def build_other_example(self, moment: DecisionPoint, tasks: Sequence[Task]) -> Example:
        """Build an example of another goal, if possible after as many actions."""
        for _ in range(MAX_MATCH_TRIES):
            other = self.draw_decision(self.rng.choice(tasks))
            if len(other.situation.history) == len(moment.situation.history):
                break
        encouraged = (other.right,) if self.rng.random() < 0.7 else ()
        return Example(other.situation, encouraged, self._draw_bad_actions(other, other.right.action))

    def _draw_bad_actions(self, moment: DecisionPoint, but: str) -> tuple[ValuedAction, ...]:
        bad = [action for action in moment.others if action != but]
        return tuple(
            ValuedAction(action, 0.0) for action in self.rng.sample(bad, min(len(bad), self.rng.randint(0, 2)))
        )
