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

from trailnotes.algorithms.rememberer.advice import (
    Example,
    Situation,
    ValuedAction,
    build_advice_messages,
    format_advice,
)
from trailnotes.envs import list_env_tasks, make_env
from trailnotes.envs.tasks import select_unused
from trailnotes.errors import ConfigError
from trailnotes.prompts import build_reflection_messages, get_instruction, truncate
from trailnotes.storage.demonstrations import Demonstration
from trailnotes.types import Message, Tip
from trailnotes.warmstart.demonstrations.episodes import (
    apply_rehearsal_options,
    build_demonstrations,
    get_actions,
    play_script,
    replay_actions,
)
from trailnotes_worlds.demonstrations.webshop_buyers import (
    BUY,
    Buyer,
    ShopPage,
    ShoppingGoal,
    extract_purchase_path,
    find_faults,
)
from trailnotes_worlds.demonstrations.webshop_words import (
    NEXT,
    Fault,
    format_english_tip,
    format_terse_tip,
    space_brackets,
)
from trailnotes_worlds.webshop.protocols import normalize_title

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trailnotes.config.schema import Config
    from trailnotes.types import Observation, Task, Trajectory
    from trailnotes.warmstart.demonstrations.episodes import Script
    from trailnotes_worlds.webshop.env import WebShopEnv

EVAL_SPLITS = ("validation", "test")
MAX_RESULT_PAGES = 3  # of results that a teacher leafs through
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


class TrackedShop:
    """The shop as an environment that keeps what its pages have shown since the last reset."""

    def __init__(self, **options: object) -> None:
        self.env = cast("WebShopEnv", make_env("webshop", **options))
        self.page = self.item = self.results = ShopPage()  # the newest; that of a product, and of results
        self.shown: set[str] = set()  # asins

    def reset(self, task: Task) -> Observation:
        """Start a goal."""
        self.item, self.results, self.shown = ShopPage(), ShopPage(), set()
        return self._track_page(self.env.reset(task))

    def step(self, action: str) -> Observation:
        """Take an action."""
        return self._track_page(self.env.step(action))

    def close(self) -> None:
        """Close the shop."""
        self.env.close()

    def _track_page(self, observation: Observation) -> Observation:
        self.page = ShopPage.from_parts(self.env.shop.list_elements(self.env.state))
        self.shown.update(listing.asin for listing in self.page.listings)
        if self.page.title:
            self.item = self.page
        elif self.page.listings:
            self.results = self.page
        return observation


def iter_eval_asins(env: WebShopEnv, options: Mapping[str, object]) -> Iterator[str]:
    """The products of examined goals, and those of the same title, which by-product takes for the same.

    A split without goals, or one that may not be examined, has none.
    """
    shelves, titles = env.shop.shelves, set[str]()
    for split in EVAL_SPLITS:
        with suppress(ConfigError):
            titles.update(
                normalize_title(shelves[task.options["asin"]].title)
                for task in list_env_tasks("webshop", split, options)
            )
    return (product.asin.lower() for product in shelves if normalize_title(product.title) in titles)


class WebShopDemonstrator:
    """Endless fresh demonstrations of the goals of the train split.

    Args:
        config: prompts, memory, `env.options`, and the shares of `config.warmstart`: `advice` and `write` of the
            demonstrations are of these alone; of the other episodes `p_follow_tip` follow a tip with a full score,
            `p_explore` of what is left are hasty or wander, and the rest are good.
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
        self.visit = TrackedShop(**{**options, "actions": config.rollout.show_actions})
        self.tasks = list_env_tasks("webshop", "train", options)
        self.forbidden = frozenset(iter_eval_asins(self.visit.env, options))  # asins

    @classmethod
    def build_held_out(cls, config: Config, count_tokens: Callable[[str], int], seed: int) -> Self:
        """Those of the goals in `rehearsal.options` that `config` neither trains on nor examines.

        Raises:
            ConfigError: none is left.
        """
        subject = cls(apply_rehearsal_options(config), count_tokens, seed)
        subject.forbidden |= cls(config, count_tokens, seed).forbidden
        subject.tasks = select_unused(subject.tasks, config)
        if not subject.tasks:
            raise ConfigError(
                "every training goal is trained on or examined: name another catalogue in rehearsal.options.catalogue"
            )
        return subject

    def __iter__(self) -> Iterator[Demonstration]:
        in_vain = 0
        while in_vain < PATIENCE:
            made = self.demonstrate_episode(self.rng.choice(self.tasks))
            in_vain = 0 if made else in_vain + 1
            yield from made
        raise ConfigError(
            f"each of {PATIENCE} episodes showed a product that is examined: set env.options.products_per_page lower, "
            'or env.options.protocol to "by-product"'
        )

    def demonstrate_episode(self, task: Task) -> list[Demonstration]:
        """One episode's demonstrations: a row to act, and where it acted on tips, a tip-free row to write.

        Or one step of an episode that is advised, or what is written about a careless one.
        """
        warm = self.config.warmstart
        if warm.advice + warm.write:  # without any, nothing is drawn, and models of before come out as they did
            drawn = self.rng.random()
            if drawn < warm.advice:
                return self.demonstrate_advice(task)
            if drawn < warm.advice + warm.write:
                return self.demonstrate_writing(task)
        if self.rng.random() < warm.p_follow_tip:
            attempt, tips = self.play_with_tip(task)
        else:
            attempt = (
                self.play_carelessly(task) if self.rng.random() < warm.p_explore else self.play_buyer(task, "good")
            )
            others = self.play_failures(task, attempt) if self.rng.random() < 0.4 else ()
            tips = tuple(self.build_tip(other, other.worth) for other in others)
        if attempt is None:
            return []
        return build_demonstrations(
            self.format_trajectory(attempt),
            self.rank_tips(tips),
            self.write_note(attempt),
            self.config,
            self.count_tokens,
        )

    def format_trajectory(self, attempt: Attempt) -> Trajectory:
        """The episode as it is said, action by action."""
        said = [
            replace(step, completion=replace(step.completion, text=self.format_action(step.action)))
            for step in attempt.trajectory.steps
        ]
        return replace(attempt.trajectory, steps=tuple(said))

    def format_action(self, action: str) -> str:
        """An action as it is said."""
        return space_brackets(action)

    def play_with_tip(self, task: Task) -> tuple[Attempt | None, tuple[Tip, ...]]:
        """An episode that does what a tip with a full score tells, and the tips that it has seen.

        What is told is half of the time what has earned the full score, else any purchase, so that it is the tip that
        is followed and not the instruction.
        """
        source = self.play_perfectly(task) if self.rng.random() < 0.5 else self.play_carelessly(task)
        if source is None or not source.way or source.way[-1] != BUY:
            return None, ()
        attempt = self.play(task, partial(replay_actions, source.way))
        others = self.play_failures(task, source) if self.rng.random() < 0.4 else ()
        praised = Attempt(source.trajectory, source.way, ())
        return attempt, (self.build_tip(praised, 1.0), *(self.build_tip(other, other.worth) for other in others))

    def demonstrate_writing(self, task: Task) -> list[Demonstration]:
        """What is written about a careless episode, which is not imitated itself."""
        attempt = self.play_carelessly(task)
        if attempt is None:
            return []
        config = self.config
        asked = build_reflection_messages(
            self.format_trajectory(attempt), config.rollout, config.memory, self.count_tokens
        )
        messages = (*asked, Message("assistant", self.write_note(attempt)))
        return [Demonstration(messages, frozenset({len(asked)}), task)]

    def demonstrate_advice(self, task: Task) -> list[Demonstration]:
        """One step under examples of the memory: answered as one of the same page encourages, else as a good buyer.

        The value of an answer is that of the example that it follows, and 0 where it follows none.
        """
        obeys = self.rng.random() < self.config.warmstart.p_follow_tip
        attempt = (
            self.rng.choice((self.play_perfectly, self.play_carelessly))(task)
            if obeys
            else self.play_buyer(task, "good")
        )
        if attempt is None:
            return []
        present, action = self.build_situation(attempt, step := self.rng.randrange(len(attempt.trajectory.steps)))
        others = (self.play_buyer(self.rng.choice((task, self.rng.choice(self.tasks))), "hasty") for _ in range(2))
        examples = [
            self.build_example(other, self.rng.randrange(len(other.trajectory.steps))) for other in others if other
        ]
        if obeys:
            examples = [*examples[1:], self.build_example(attempt, step, self.rng.randint(1, 10) / 10)]
        fitting = (each for each in examples if each.situation.observation == present.observation)
        encouraged = [valued for each in fitting if each.situation.task == present.task for valued in each.encouraged]
        answer = max(encouraged, key=lambda valued: valued.value, default=ValuedAction(action, 0.0))
        messages = build_advice_messages(present, examples, self.config.rollout.style)
        answered = (*messages, Message("assistant", format_advice([answer])))
        return [Demonstration(answered, frozenset({len(messages)}), task)]

    def build_situation(self, attempt: Attempt, step: int) -> tuple[Situation, str]:
        """What is known before a step of an episode, and what is done then."""
        config, steps = self.config, attempt.trajectory.steps
        task, text = (
            truncate(whole, config.rollout.max_observation_tokens, self.count_tokens)
            for whole in (get_instruction(attempt.trajectory), steps[step].observation.text)
        )
        *before, action = (self.format_action(each.action) for each in steps[: step + 1])
        return Situation(task, text, tuple(before[max(0, step - config.rememberer.history) :])), action

    def build_example(self, attempt: Attempt, step: int, value: float | None = None) -> Example:
        """A step as it is remembered, by default with what its episode earned: encouraged, or discouraged at 0."""
        situation, action = self.build_situation(attempt, step)
        valued = (ValuedAction(action, attempt.worth if value is None else value),)
        return Example(situation, valued, ()) if valued[0].value else Example(situation, (), valued)

    def play_perfectly(self, task: Task) -> Attempt | None:
        """An episode that earned the full score: a good buyer's, or that of a teacher who knows the goal's product."""
        attempt = self.play_buyer(task, "good")
        if attempt is None or attempt.faults:
            attempt = self.play(task, partial(self.teach, task))
        return None if attempt is None or attempt.faults else attempt

    def teach(self, task: Task, _: Observation) -> Script:
        """Searches by words of the title of the goal's product until it finds it, chooses the goal's options, buys."""
        asin = task.options["asin"].lower()
        title = self.visit.env.shop.shelves[task.options["asin"]].title
        yield Buyer(title, lambda: self.visit.page, self.rng).search(5)
        for _page in range(MAX_RESULT_PAGES):
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

    def play_carelessly(self, task: Task) -> Attempt | None:
        """A hasty episode, or one that wanders."""
        return self.play_buyer(task, self.rng.choice(("hasty", "wandering")))

    def play_failures(self, task: Task, beside: Attempt | None) -> tuple[Attempt, ...]:
        """Up to two episodes that did not earn the full score, other purchases than `beside`."""
        told = {beside.way} if beside else set()
        found = []
        for _ in range(self.rng.randint(1, 2)):
            other = self.play_carelessly(task)
            if other and other.faults and other.way not in told:
                told.add(other.way)
                found.append(other)
        return tuple(found)

    def play_buyer(self, task: Task, manner: str) -> Attempt | None:
        """An episode of a scripted buyer: "good", "hasty" or "wandering"; None if it showed what is examined."""

        def script(first: Observation) -> Script:
            buyer = Buyer(first.instruction or "", lambda: self.visit.page, self.rng)
            acting: Script = getattr(buyer, manner)(first)
            return acting

        return self.play(task, script)

    def play(self, task: Task, script: Callable[[Observation], Script]) -> Attempt | None:
        """An episode of any script; None if it showed what is examined, or did nothing."""
        trajectory = play_script(self.visit, task, script)
        if not trajectory.steps or self.visit.shown & self.forbidden:
            return None
        way, wish = (
            extract_purchase_path(get_actions(trajectory)),
            ShoppingGoal.parse(trajectory.steps[0].observation.instruction or ""),
        )
        faults = () if trajectory.success else find_faults(way, self.visit.item, self.visit.results, wish)
        return Attempt(trajectory, way, faults)

    def build_tip(self, attempt: Attempt, worth: float) -> Tip:
        """What a memory would hold of an episode that was worth so much."""
        most = attempt.trajectory.max_score
        return Tip(attempt.trajectory.task.id, self.write_note(attempt), key="", score=worth * most, max_score=most)

    def write_note(self, attempt: Attempt) -> str:
        """What a good writer writes about an episode."""
        return format_terse_tip(attempt.way, attempt.faults)

    def rank_tips(self, tips: Sequence[Tip]) -> tuple[Tip, ...]:
        """As many as are shown, by score, then at random."""
        shuffled = self.rng.sample(tips, len(tips))
        most = min(self.config.warmstart.num_tips, self.config.memory.top_k)
        return tuple(sorted(shuffled, key=lambda tip: -tip.score)[:most])


class EnglishWebShop(WebShopDemonstrator):
    """The same episodes with tips in English."""

    def format_action(self, action: str) -> str:
        """An action as it is said: as it stands."""
        return action

    def write_note(self, attempt: Attempt) -> str:
        """What a good writer writes about an episode."""
        return format_english_tip(attempt.way, attempt.faults, attempt.worth, self.rng)
