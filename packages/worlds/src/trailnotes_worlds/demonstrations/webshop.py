"""Scripted WebShop episodes of training goals: purchases good, hasty and wandering, with tips to act on and to write.

What a start model learns here is how to search and click, to choose what is asked for, to repeat what a tip with a full
score tells and nothing else, to write down what it bought and what it missed, and to answer with advice (REMEMBERER).
No product of an examined goal is shown: an episode with one on its pages is thrown away.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self, cast

from trailnotes.algorithms.rememberer.advice import Example, Situation, Valued, advice_messages, advice_text
from trailnotes.envs import env_tasks, make_env
from trailnotes.envs.tasks import kept_apart
from trailnotes.errors import ConfigError
from trailnotes.prompts import instruction_of, reflection_messages, truncate
from trailnotes.storage.demonstrations import Demonstration
from trailnotes.types import Message, Tip
from trailnotes.warmstart.demonstrations.episodes import actions_of, conversations, follow, of_rehearsal, played
from trailnotes_worlds.demonstrations.webshop_buyers import BUY, Buyer, Page, Wish, faults_of, way_of
from trailnotes_worlds.demonstrations.webshop_words import NEXT, Fault, english_words, spaced, terse_words
from trailnotes_worlds.webshop.protocols import known_title

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trailnotes.config.schema import Config
    from trailnotes.types import Observation, Task, Trajectory
    from trailnotes.warmstart.demonstrations.episodes import Script
    from trailnotes_worlds.webshop.env import WebShopEnv

EXAMINED = ("validation", "test")
PAGES = 3  # of results that a teacher leafs through
PATIENCE = 1000  # goals in a row whose episodes show what is examined, before the search for another one ends


@dataclass(frozen=True, slots=True)
class Attempt:
    """An episode of a script, and what a tip tells of it."""

    trajectory: Trajectory
    way: tuple[str, ...]
    faults: tuple[Fault, ...]

    @property
    def worth(self) -> float:
        """The score, in 0..1."""
        return self.trajectory.score / self.trajectory.max_score


class Visit:
    """The shop as an environment that keeps what its pages have shown since the last reset."""

    def __init__(self, **options: object) -> None:
        self.env = cast("WebShopEnv", make_env("webshop", **options))
        self.page = self.item = self.results = Page()  # the newest; that of a product, and of results
        self.shown: set[str] = set()  # asins

    def reset(self, task: Task) -> Observation:
        """Start a goal."""
        self.item, self.results, self.shown = Page(), Page(), set()
        return self._seen(self.env.reset(task))

    def step(self, action: str) -> Observation:
        """Take an action."""
        return self._seen(self.env.step(action))

    def close(self) -> None:
        """Close the shop."""
        self.env.close()

    def _seen(self, observation: Observation) -> Observation:
        self.page = Page.of(self.env.shop.parts(self.env.state))
        self.shown.update(listing.asin for listing in self.page.listings)
        if self.page.title:
            self.item = self.page
        elif self.page.listings:
            self.results = self.page
        return observation


def examined_asins(env: WebShopEnv, options: Mapping[str, object]) -> Iterator[str]:
    """The products of examined goals, and those of the same title, which by-product takes for the same.

    A split without goals, or one that may not be examined, has none.
    """
    shelves, titles = env.shop.shelves, set[str]()
    for split in EXAMINED:
        with suppress(ConfigError):
            titles.update(
                known_title(shelves[task.options["asin"]].title) for task in env_tasks("webshop", split, options)
            )
    return (product.asin.lower() for product in shelves if known_title(product.title) in titles)


class WebShopDemonstrator:
    """Endless fresh demonstrations of the goals of the train split.

    Args:
        config: prompts, memory, `env.options`, and the shares of `config.warmstart`: `advice` and `write` of the
            demonstrations are of these alone; of the other episodes `obey` follow a tip with a full score, `read` of
            what is left are hasty or wander, and the rest are good.
        count_tokens: of the tokenizer, for the length caps.
        seed: of everything drawn here.

    Raises:
        ConfigError: the catalogue or a split of its goals does not exist; or, while iterating, hardly an episode is
            without examined products.
    """

    def __init__(self, config: Config, count_tokens: Callable[[str], int], seed: int) -> None:
        self.config, self.count_tokens = config, count_tokens
        self.rng = random.Random(seed)
        options = {**config.env.options, "max_steps": config.rollout.max_steps}
        self.visit = Visit(**{**options, "actions": config.rollout.show_actions})
        self.tasks = env_tasks("webshop", "train", options)
        self.forbidden = frozenset(examined_asins(self.visit.env, options))  # asins

    @classmethod
    def apart(cls, config: Config, count_tokens: Callable[[str], int], seed: int) -> Self:
        """Those of the goals in `rehearsal.options` that `config` neither trains on nor examines.

        Raises:
            ConfigError: none is left.
        """
        subject = cls(of_rehearsal(config), count_tokens, seed)
        subject.forbidden |= cls(config, count_tokens, seed).forbidden
        subject.tasks = kept_apart(subject.tasks, config)
        if not subject.tasks:
            raise ConfigError(
                "every training goal is trained on or examined: name another catalogue in rehearsal.options.catalogue"
            )
        return subject

    def __iter__(self) -> Iterator[Demonstration]:
        in_vain = 0
        while in_vain < PATIENCE:
            made = self.episode(self.rng.choice(self.tasks))
            in_vain = 0 if made else in_vain + 1
            yield from made
        raise ConfigError(
            f"each of {PATIENCE} episodes showed a product that is examined: set env.options.products_per_page lower, "
            'or env.options.protocol to "by-product"'
        )

    def episode(self, task: Task) -> list[Demonstration]:
        """One episode's demonstrations: a row to act, and where it acted on tips, a tip-free row to write.

        Or one step of an episode that is advised, or what is written about a careless one.
        """
        warm = self.config.warmstart
        if warm.advice + warm.write:  # without any, nothing is drawn, and models of before come out as they did
            drawn = self.rng.random()
            if drawn < warm.advice:
                return self.advised(task)
            if drawn < warm.advice + warm.write:
                return self.written(task)
        if self.rng.random() < warm.obey:
            attempt, tips = self.told(task)
        else:
            attempt = self.careless(task) if self.rng.random() < warm.read else self.attempt(task, "good")
            others = self.failures(task, attempt) if self.rng.random() < 0.4 else ()
            tips = tuple(self.tip(other, other.worth) for other in others)
        if attempt is None:
            return []
        return conversations(self.said(attempt), self.ranked(tips), self.note(attempt), self.config, self.count_tokens)

    def said(self, attempt: Attempt) -> Trajectory:
        """The episode as it is said, action by action."""
        said = [
            replace(step, completion=replace(step.completion, text=self.say(step.action)))
            for step in attempt.trajectory.steps
        ]
        return replace(attempt.trajectory, steps=tuple(said))

    def say(self, action: str) -> str:
        """An action as it is said."""
        return spaced(action)

    def told(self, task: Task) -> tuple[Attempt | None, tuple[Tip, ...]]:
        """An episode that does what a tip with a full score tells, and the tips that it has seen.

        What is told is half of the time what has earned the full score, else any purchase, so that it is the tip that
        is followed and not the instruction.
        """
        source = self.right(task) if self.rng.random() < 0.5 else self.careless(task)
        if source is None or not source.way or source.way[-1] != BUY:
            return None, ()
        attempt = self.play(task, partial(follow, source.way))
        others = self.failures(task, source) if self.rng.random() < 0.4 else ()
        praised = Attempt(source.trajectory, source.way, ())
        return attempt, (self.tip(praised, 1.0), *(self.tip(other, other.worth) for other in others))

    def written(self, task: Task) -> list[Demonstration]:
        """What is written about a careless episode, which is not imitated itself."""
        attempt = self.careless(task)
        if attempt is None:
            return []
        config = self.config
        asked = reflection_messages(self.said(attempt), config.rollout, config.memory, self.count_tokens)
        messages = (*asked, Message("assistant", self.note(attempt)))
        return [Demonstration(messages, frozenset({len(asked)}), task)]

    def advised(self, task: Task) -> list[Demonstration]:
        """One step under examples of the memory: answered as one of the same page encourages, else as a good buyer.

        The value of an answer is that of the example that it follows, and 0 where it follows none.
        """
        obeys = self.rng.random() < self.config.warmstart.obey
        attempt = self.rng.choice((self.right, self.careless))(task) if obeys else self.attempt(task, "good")
        if attempt is None:
            return []
        present, action = self.situation(attempt, step := self.rng.randrange(len(attempt.trajectory.steps)))
        others = (self.attempt(self.rng.choice((task, self.rng.choice(self.tasks))), "hasty") for _ in range(2))
        examples = [self.example(other, self.rng.randrange(len(other.trajectory.steps))) for other in others if other]
        if obeys:
            examples = [*examples[1:], self.example(attempt, step, self.rng.randint(1, 10) / 10)]
        fitting = (each for each in examples if each.situation.observation == present.observation)
        encouraged = [valued for each in fitting if each.situation.task == present.task for valued in each.encouraged]
        answer = max(encouraged, key=lambda valued: valued.value, default=Valued(action, 0.0))
        messages = advice_messages(present, examples, self.config.rollout.style)
        answered = (*messages, Message("assistant", advice_text([answer])))
        return [Demonstration(answered, frozenset({len(messages)}), task)]

    def situation(self, attempt: Attempt, step: int) -> tuple[Situation, str]:
        """What is known before a step of an episode, and what is done then."""
        config, steps = self.config, attempt.trajectory.steps
        task, text = (
            truncate(whole, config.rollout.max_observation_tokens, self.count_tokens)
            for whole in (instruction_of(attempt.trajectory), steps[step].observation.text)
        )
        *before, action = (self.say(each.action) for each in steps[: step + 1])
        return Situation(task, text, tuple(before[max(0, step - config.rememberer.history) :])), action

    def example(self, attempt: Attempt, step: int, value: float | None = None) -> Example:
        """A step as it is remembered, by default with what its episode earned: encouraged, or discouraged at 0."""
        situation, action = self.situation(attempt, step)
        valued = (Valued(action, attempt.worth if value is None else value),)
        return Example(situation, valued, ()) if valued[0].value else Example(situation, (), valued)

    def right(self, task: Task) -> Attempt | None:
        """An episode that earned the full score: a good buyer's, or that of a teacher who knows the goal's product."""
        attempt = self.attempt(task, "good")
        if attempt is None or attempt.faults:
            attempt = self.play(task, partial(self.teach, task))
        return None if attempt is None or attempt.faults else attempt

    def teach(self, task: Task, _: Observation) -> Script:
        """Searches by words of the title of the goal's product until it finds it, chooses the goal's options, buys."""
        asin = task.options["asin"].lower()
        title = self.visit.env.shop.shelves[task.options["asin"]].title
        yield Buyer(title, lambda: self.visit.page, self.rng).search(5)
        for _page in range(PAGES):
            if any(listing.asin == asin for listing in self.visit.page.listings):
                yield f"click[{asin}]"
                wanted = {value for _, value in task.options["options"]}
                for _name, values in self.visit.page.options:
                    for value in values:
                        if value in wanted:
                            yield f"click[{value}]"
                yield BUY
                return
            if not self.visit.page.more:
                return
            yield NEXT

    def careless(self, task: Task) -> Attempt | None:
        """A hasty episode, or one that wanders."""
        return self.attempt(task, self.rng.choice(("hasty", "wandering")))

    def failures(self, task: Task, beside: Attempt | None) -> tuple[Attempt, ...]:
        """Up to two episodes that did not earn the full score, other purchases than `beside`."""
        told = {beside.way} if beside else set()
        found = []
        for _ in range(self.rng.randint(1, 2)):
            other = self.careless(task)
            if other and other.faults and other.way not in told:
                told.add(other.way)
                found.append(other)
        return tuple(found)

    def attempt(self, task: Task, manner: str) -> Attempt | None:
        """An episode of a scripted buyer: "good", "hasty" or "wandering"; None if it showed what is examined."""

        def script(first: Observation) -> Script:
            buyer = Buyer(first.instruction or "", lambda: self.visit.page, self.rng)
            acting: Script = getattr(buyer, manner)(first)
            return acting

        return self.play(task, script)

    def play(self, task: Task, script: Callable[[Observation], Script]) -> Attempt | None:
        """An episode of any script; None if it showed what is examined, or did nothing."""
        trajectory = played(self.visit, task, script)
        if not trajectory.steps or self.visit.shown & self.forbidden:
            return None
        way, wish = way_of(actions_of(trajectory)), Wish.of(trajectory.steps[0].observation.instruction or "")
        faults = () if trajectory.success else faults_of(way, self.visit.item, self.visit.results, wish)
        return Attempt(trajectory, way, faults)

    def tip(self, attempt: Attempt, worth: float) -> Tip:
        """What a memory would hold of an episode that was worth so much."""
        most = attempt.trajectory.max_score
        return Tip(attempt.trajectory.task.id, self.note(attempt), key="", score=worth * most, max_score=most)

    def note(self, attempt: Attempt) -> str:
        """What a good writer writes about an episode."""
        return terse_words(attempt.way, attempt.faults)

    def ranked(self, tips: Sequence[Tip]) -> tuple[Tip, ...]:
        """As many as are shown, by score, then at random."""
        shuffled = self.rng.sample(tips, len(tips))
        most = min(self.config.warmstart.num_tips, self.config.memory.top_k)
        return tuple(sorted(shuffled, key=lambda tip: -tip.score)[:most])


class EnglishWebShop(WebShopDemonstrator):
    """The same episodes with tips in English."""

    def say(self, action: str) -> str:
        """An action as it is said: as it stands."""
        return action

    def note(self, attempt: Attempt) -> str:
        """What a good writer writes about an episode."""
        return english_words(attempt.way, attempt.faults, attempt.worth, self.rng)
