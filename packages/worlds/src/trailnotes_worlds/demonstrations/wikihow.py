"""Scripted WikiHow episodes of training goals: straight ones and hasty ones, with tips to act on and to write.

The initial model learns to search, to tap the target of the instruction, to scroll down to it, to repeat a tip with a
full score and nothing else, and to write down its way and the missed target. The scripts play goals of the train split
alone, in a library without the articles of evaluation goals.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, cast

from trailnotes.config.schema import Config
from trailnotes.envs import list_env_tasks, make_env
from trailnotes.envs.tasks import select_unused
from trailnotes.errors import ConfigError
from trailnotes.rollout.advice import (
    MAX_ADVICE_TOKENS,
    NUM_LAST_ACTIONS,
    Example,
    Situation,
    ValuedAction,
    build_advice_messages,
    format_advice,
)
from trailnotes.rollout.conversation import truncate
from trailnotes.storage.demonstrations import Demonstration
from trailnotes.types import Message, Observation, Task, Tip, Trajectory
from trailnotes.warmstart.demonstrations.episodes import (
    Demonstrator,
    Script,
    build_demonstrations,
    get_actions,
    play_script,
    replay_actions,
)
from trailnotes_worlds.wikihow.app import parse_action
from trailnotes_worlds.wikihow.articles import ABOUT, Article
from trailnotes_worlds.wikihow.env import WikiHowEnv
from trailnotes_worlds.wikihow.pages import REFERENCES_TAP, SEARCH_TAP, View
from trailnotes_worlds.wikihow.protocols import extract_keywords

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
        rememberer = getattr(self.config, "rememberer", None)  # a section of trailnotes-lab, if it is set
        max_answer_tokens = rememberer.max_write_tokens if rememberer else MAX_ADVICE_TOKENS
        limit = self.config.rollout.max_context_tokens - max_answer_tokens
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
        history = tuple(map(space_arguments, get_actions(episode)))[-NUM_LAST_ACTIONS:]
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


_TITLES: Final = re.compile(r'learn how to (.+?)\.?$|article "how to (.+)"', re.IGNORECASE | re.MULTILINE)
EVAL_SPLITS: Final = ("validation", "test")


def extract_titles(env: WikiHowEnv, tasks: Iterable[Task]) -> set[str]:
    instructions = (env.reset(task).instruction or "" for task in tasks)
    return {(match[1] or match[2]).lower() for text in instructions for match in _TITLES.finditer(text)}


def collect_eval_titles(options: Mapping[str, object]) -> set[str]:
    """Collect the titles in all evaluation goals of `options`, of any template."""
    options = {**options, "templates": ()}
    env, tasks = cast("WikiHowEnv", make_env("wikihow", **options)), list[Task]()
    for split in EVAL_SPLITS:
        with suppress(ConfigError):  # the split is empty
            tasks += list_env_tasks("wikihow", split, options)
    return extract_titles(env, tasks)


class WikiHowDemonstrator(Demonstrator):
    """Endless fresh demonstrations of the goals of the train split."""

    def __init__(self, config: Config, count_tokens: Callable[[str], int], seed: int) -> None:
        super().__init__(config, count_tokens, seed)
        options = {**config.env.options, "max_steps": config.rollout.max_steps}
        self.env = cast("WikiHowEnv", make_env("wikihow", **{**options, "actions": True}))
        self.tasks = list_env_tasks("wikihow", "train", options)
        self.exclude_titles(collect_eval_titles(options))
        if not self.tasks:
            raise ConfigError("every training goal names an evaluation article: name other env.options.tasks")
        self.adviser = Adviser(self.env, config, count_tokens, self.rng)

    def exclude_titles(self, titles: AbstractSet[str]) -> None:
        """Hide the articles with these titles, in lower case, and drop the goals that name one."""
        self.env.hide_articles(
            page.path for page in self.env.library if isinstance(page, Article) and page.title.lower() in titles
        )
        self.tasks = [task for task in self.tasks if not titles & extract_titles(self.env, [task])]

    def hold_out(self, config: Config) -> None:
        """Keep the unused goals, as `Demonstrator.hold_out`, and hide the articles of those that are evaluated."""
        self.exclude_titles(collect_eval_titles(config.env.options))
        self.tasks = select_unused(self.tasks, config)
        if not self.tasks:
            fix = "name another library in rehearsal.options.library"
            raise ConfigError(f"every training goal is trained on or evaluated: {fix}")

    def __iter__(self) -> Iterator[Demonstration]:
        while True:
            yield from self.demonstrate_episode(self.rng.choice(self.tasks))

    def demonstrate_episode(self, task: Task) -> list[Demonstration]:
        """Demonstrate an episode: a row to act, and after tips a tip-free row to write; or one step with advice."""
        warm = self.config.warmstart
        if self.rng.random() < warm.advice:
            return [self.adviser.demonstrate_advice(task, self.tasks)]
        tips: tuple[Tip, ...] = ()
        if self.rng.random() < warm.p_follow_tip:
            trajectory, tips = self.play_with_tip(task)
        else:
            manner = "hasty" if self.rng.random() < warm.p_explore else "straight"
            trajectory = self.play(task, manner)
            if self.rng.random() < 0.4:
                tips = (self.build_tip(self.play(task, "hasty")),)
        texts = [replace(step.completion, text=space_arguments(step.action)) for step in trajectory.steps]
        steps = (replace(step, completion=text) for step, text in zip(trajectory.steps, texts, strict=True))
        spoken, note = replace(trajectory, steps=tuple(steps)), self.write_note(trajectory)
        return build_demonstrations(spoken, self.rank_tips(tips), note, self.config, self.count_tokens)

    def play_with_tip(self, task: Task) -> tuple[Trajectory, tuple[Tip, ...]]:
        """Play an episode that follows a tip with a full score, and return it with its tips.

        Half of the tips tell a way that earns the full score, the others any way: the model must follow the tip and not
        the instruction.
        """
        source = self.play(task, "straight" if self.rng.random() < 0.5 else "hasty")
        trajectory = play_script(self.env, task, partial(replay_actions, get_actions(source)))
        others = [self.build_tip(self.play(task, "hasty"))] if self.rng.random() < 0.4 else []
        praised = Tip(task.id, self.format_actions(source), key="", score=source.max_score, max_score=source.max_score)
        return trajectory, (praised, *(tip for tip in others if tip.score < praised.score))

    def play(self, task: Task, manner: str) -> Trajectory:
        return play_script(self.env, task, getattr(Reader(self.env, self.rng), manner))

    def build_tip(self, trajectory: Trajectory) -> Tip:
        most = trajectory.max_score
        return Tip(trajectory.task.id, self.write_note(trajectory), key="", score=trajectory.score, max_score=most)

    def format_actions(self, trajectory: Trajectory) -> str:
        return " ; ".join(map(space_arguments, get_actions(trajectory))) or "nothing"

    def write_note(self, trajectory: Trajectory) -> str:
        """Write the note about an episode: its actions, and after a full stop the missed target."""
        missed = trajectory.final_observation.info.get("instruction", "")
        way = self.format_actions(trajectory)
        return way if trajectory.success else f"{way} . not yet : {missed.lower() or 'nothing was found'}"
