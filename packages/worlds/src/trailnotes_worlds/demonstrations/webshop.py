"""Scripted WebShop episodes of training goals: good, hasty and wandering purchases, with tips to act on and to write.

They teach an initial model to search and click, to choose the requested options, to repeat exactly the actions of a tip
with a full score, to write down its purchase and its faults, and to answer with advice (REMEMBERER). They show no
product of an evaluation goal: an episode with one on its pages is discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from trailnotes.config.schema import Config
from trailnotes.envs import list_env_tasks, make_env
from trailnotes.envs.tasks import select_unused
from trailnotes.errors import ConfigError
from trailnotes.rollout.advice import (
    NUM_LAST_ACTIONS,
    Example,
    Situation,
    ValuedAction,
    build_advice_messages,
    format_advice,
)
from trailnotes.rollout.conversation import build_reflection_messages, get_instruction, truncate
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
from trailnotes_worlds.demonstrations.webshop_buyers import (
    BUY,
    NEXT,
    Buyer,
    Fault,
    ShopPage,
    ShoppingGoal,
    extract_purchase_path,
    find_faults,
    format_english_tip,
    format_terse_tip,
    space_brackets,
)
from trailnotes_worlds.webshop.protocols import normalize_title

if TYPE_CHECKING:
    from trailnotes_worlds.webshop.env import WebShopEnv

EVAL_SPLITS = ("validation", "test")
MAX_RESULT_PAGES = 3  # pages of results that a teacher reads
MAX_TRIES = 1000  # failed episodes in a row, after which the search for another one ends


@dataclass(frozen=True, slots=True)
class Attempt:
    """Episode of a script, with its actions and faults for tips."""

    trajectory: Trajectory
    way: tuple[str, ...]
    faults: tuple[Fault, ...]

    @property
    def worth(self) -> float:
        return self.trajectory.score / self.trajectory.max_score


class TrackedShop:
    """Shop environment that records the pages since the last reset."""

    def __init__(self, **options: object) -> None:
        self.env = cast("WebShopEnv", make_env("webshop", **options))
        self.page = self.item = self.results = ShopPage()  # the newest; that of a product, and of results
        self.listed: set[str] = set()  # asins

    def reset(self, task: Task) -> Observation:
        self.item, self.results, self.listed = ShopPage(), ShopPage(), set()
        return self._track_page(self.env.reset(task))

    def step(self, action: str) -> Observation:
        return self._track_page(self.env.step(action))

    def close(self) -> None:
        self.env.close()

    def _track_page(self, observation: Observation) -> Observation:
        self.page = ShopPage.from_parts(self.env.shop.list_elements(self.env.state))
        self.listed.update(listing.asin for listing in self.page.listings)
        if self.page.title:
            self.item = self.page
        elif self.page.listings:
            self.results = self.page
        return observation


def iter_eval_asins(env: WebShopEnv, options: Mapping[str, object]) -> Iterator[str]:
    """Iterate over the products of evaluation goals, and those of equal title, which by-product counts as the same.

    A split without goals, or one whose evaluation is not allowed, has none.
    """
    shelves, titles = env.shop.shelves, set[str]()
    for split in EVAL_SPLITS:
        with suppress(ConfigError):
            tasks = list_env_tasks("webshop", split, options)
            titles.update(normalize_title(shelves[task.options["asin"]].title) for task in tasks)
    return (product.asin.lower() for product in shelves if normalize_title(product.title) in titles)


class WebShopDemonstrator(Demonstrator):
    """Endless fresh demonstrations of the goals of the train split."""

    def __init__(self, config: Config, count_tokens: Callable[[str], int], seed: int) -> None:
        super().__init__(config, count_tokens, seed)
        options = {**config.env.options, "max_steps": config.rollout.max_steps}
        self.visit = TrackedShop(**{**options, "actions": config.rollout.show_actions})
        self.tasks = list_env_tasks("webshop", "train", options)
        self.forbidden = frozenset(iter_eval_asins(self.visit.env, options))  # asins

    def hold_out(self, config: Config) -> None:
        """Keep the unused goals, as `Demonstrator.hold_out`, and show no product of those that are evaluated."""
        self.forbidden |= type(self)(config, self.count_tokens, 0).forbidden
        self.tasks = select_unused(self.tasks, config)
        if not self.tasks:
            raise ConfigError("no goal is left for rehearsal: name another catalogue in rehearsal.options.catalogue")

    def __iter__(self) -> Iterator[Demonstration]:
        in_vain = 0
        while in_vain < MAX_TRIES:
            made = self.demonstrate_episode(self.rng.choice(self.tasks))
            in_vain = 0 if made else in_vain + 1
            yield from made
        raise ConfigError(
            f"each of {MAX_TRIES} episodes showed a product of an evaluation goal: set env.options.products_per_page "
            'lower, or env.options.protocol to "by-product"'
        )

    def demonstrate_episode(self, task: Task) -> list[Demonstration]:
        """Make an episode's demonstrations: a row to act, and if it acted on tips, a row without tips to write.

        Or one step of an episode with advice, or the tip about a careless episode.
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
            attempt = self.play_carelessly(task) if self.rng.random() < warm.p_explore else self.play_well(task)
            others = self.play_failures(task, attempt) if self.rng.random() < 0.4 else ()
            tips = tuple(self.build_tip(other, other.worth) for other in others)
        if attempt is None:
            return []
        trajectory, ranked = self.format_trajectory(attempt), self.rank_tips(tips)
        return build_demonstrations(trajectory, ranked, self.write_note(attempt), self.config, self.count_tokens)

    def format_trajectory(self, attempt: Attempt) -> Trajectory:
        steps = attempt.trajectory.steps
        texts = [self.format_action(step.action) for step in steps]
        formatted = (
            replace(x, completion=replace(x.completion, text=text)) for x, text in zip(steps, texts, strict=True)
        )
        return replace(attempt.trajectory, steps=tuple(formatted))

    def format_action(self, action: str) -> str:
        return space_brackets(action)

    def play_with_tip(self, task: Task) -> tuple[Attempt | None, tuple[Tip, ...]]:
        """Play an episode that follows a tip with a full score, and return it with its tips.

        Half of the tips tell a purchase with the full score, the others any purchase, so that the model follows the
        tip and not the instruction.
        """
        source = self.play_perfectly(task) if self.rng.random() < 0.5 else self.play_carelessly(task)
        if source is None or not source.way or source.way[-1] != BUY:
            return None, ()
        attempt = self.play(task, partial(replay_actions, source.way))
        others = self.play_failures(task, source) if self.rng.random() < 0.4 else ()
        praised = Attempt(source.trajectory, source.way, ())
        return attempt, (self.build_tip(praised, 1.0), *(self.build_tip(other, other.worth) for other in others))

    def demonstrate_writing(self, task: Task) -> list[Demonstration]:
        """Demonstrate the tip about a careless episode, whose actions are not imitated."""
        attempt = self.play_carelessly(task)
        if attempt is None:
            return []
        config, trajectory = self.config, self.format_trajectory(attempt)
        request = build_reflection_messages(trajectory, config.rollout, config.memory, self.count_tokens)
        messages = (*request, Message("assistant", self.write_note(attempt)))
        return [Demonstration(messages, frozenset({len(request)}), task)]

    def demonstrate_advice(self, task: Task) -> list[Demonstration]:
        """Demonstrate a step with examples of the memory: follow one of the same page, else act as a good buyer.

        The value of an answer is that of the example that it follows, else 0.
        """
        obeys = self.rng.random() < self.config.warmstart.p_follow_tip
        play = self.rng.choice((self.play_perfectly, self.play_carelessly)) if obeys else self.play_well
        attempt = play(task)
        if attempt is None:
            return []
        present, action = self.build_situation(attempt, step := self.rng.randrange(len(attempt.trajectory.steps)))
        others = (self.play_buyer(self.rng.choice((task, self.rng.choice(self.tasks))), "hasty") for _ in range(2))
        played = (other for other in others if other)
        examples = [self.build_example(other, self.rng.randrange(len(other.trajectory.steps))) for other in played]
        if obeys:
            examples = [*examples[1:], self.build_example(attempt, step, self.rng.randint(1, 10) / 10)]
        fitting = (each for each in examples if each.situation.observation == present.observation)
        encouraged = [valued for each in fitting if each.situation.task == present.task for valued in each.encouraged]
        answer = max(encouraged, key=lambda valued: valued.value, default=ValuedAction(action, 0.0))
        messages = build_advice_messages(present, examples, self.config.rollout.style)
        answered = (*messages, Message("assistant", format_advice([answer])))
        return [Demonstration(answered, frozenset({len(messages)}), task)]

    def build_situation(self, attempt: Attempt, step: int) -> tuple[Situation, str]:
        config, steps = self.config, attempt.trajectory.steps
        task, text = (
            truncate(whole, config.rollout.max_observation_tokens, self.count_tokens)
            for whole in (get_instruction(attempt.trajectory), steps[step].observation.text)
        )
        *before, action = (self.format_action(each.action) for each in steps[: step + 1])
        return Situation(task, text, tuple(before[max(0, step - NUM_LAST_ACTIONS) :])), action

    def build_example(self, attempt: Attempt, step: int, value: float | None = None) -> Example:
        """Build the memory of a step, by default valued as its episode: encouraged, or discouraged at 0."""
        situation, action = self.build_situation(attempt, step)
        valued = (ValuedAction(action, attempt.worth if value is None else value),)
        return Example(situation, valued, ()) if valued[0].value else Example(situation, (), valued)

    def play_perfectly(self, task: Task) -> Attempt | None:
        """Play an episode with the full score: a good buyer's, or that of a teacher who knows the goal's product."""
        attempt = self.play_well(task)
        if attempt is None or attempt.faults:
            attempt = self.play(task, partial(self.teach, task))
        return None if attempt is None or attempt.faults else attempt

    def teach(self, task: Task, _: Observation) -> Script:
        """Search by words of the title of the goal's product until it is found, choose the goal's options, and buy."""
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

    def play_well(self, task: Task) -> Attempt | None:
        return self.play_buyer(task, "good")

    def play_carelessly(self, task: Task) -> Attempt | None:
        return self.play_buyer(task, self.rng.choice(("hasty", "wandering")))

    def play_failures(self, task: Task, attempt: Attempt | None) -> tuple[Attempt, ...]:
        """Play up to two episodes without the full score, of other purchases than `attempt`."""
        ways = {attempt.way} if attempt else set()
        failures = []
        for _ in range(self.rng.randint(1, 2)):
            other = self.play_carelessly(task)
            if other and other.faults and other.way not in ways:
                ways.add(other.way)
                failures.append(other)
        return tuple(failures)

    def play_buyer(self, task: Task, manner: str) -> Attempt | None:
        """Play an episode of a scripted buyer: "good", "hasty" or "wandering". Returns None as `play` does."""

        def script(first: Observation) -> Script:
            buyer = Buyer(first.instruction or "", lambda: self.visit.page, self.rng)
            return cast("Script", getattr(buyer, manner)(first))

        return self.play(task, script)

    def play(self, task: Task, script: Callable[[Observation], Script]) -> Attempt | None:
        """Play an episode of any script; None if it showed a product of an evaluation goal, or did nothing."""
        trajectory = play_script(self.visit, task, script)
        if not trajectory.steps or self.visit.listed & self.forbidden:
            return None
        way = extract_purchase_path(get_actions(trajectory))
        wish = ShoppingGoal.parse(trajectory.steps[0].observation.instruction or "")
        faults = () if trajectory.success else find_faults(way, self.visit.item, self.visit.results, wish)
        return Attempt(trajectory, way, faults)

    def build_tip(self, attempt: Attempt, worth: float) -> Tip:
        most = attempt.trajectory.max_score
        return Tip(attempt.trajectory.task.id, self.write_note(attempt), key="", score=worth * most, max_score=most)

    def write_note(self, attempt: Attempt) -> str:
        return format_terse_tip(attempt.way, attempt.faults)

    def rank_tips(self, tips: Sequence[Tip]) -> tuple[Tip, ...]:
        """Select the tips for the prompt, by score, then at random."""
        return super().rank_tips(self.rng.sample(tips, len(tips)))


class EnglishWebShop(WebShopDemonstrator):
    """Demonstrator of the same episodes with tips in English."""

    def format_action(self, action: str) -> str:
        return action

    def write_note(self, attempt: Attempt) -> str:
        return format_english_tip(attempt.way, attempt.faults, attempt.worth, self.rng)
