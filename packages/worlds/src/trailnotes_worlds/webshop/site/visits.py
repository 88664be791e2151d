"""Visits of the site: one person with one goal; and the service that plays and scores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from trailnotes.types import Task
from trailnotes_worlds.webshop.goals import NO_LIMIT, Goal, draw_price
from trailnotes_worlds.webshop.reward import Reward, judge_purchase
from trailnotes_worlds.webshop.shop import Shop, ShopState
from trailnotes_worlds.webshop.site.pages import SitePage, build_site_page
from trailnotes_worlds.webshop.texts import sanitize_text

MAX_VISIT_STEPS: Final = 200  # of one visit, so that none grows without end
VISIT_OVER: Final = "You have bought something, and this visit is over: begin another."
VISIT_FULL: Final = f"A visit has {MAX_VISIT_STEPS} steps at most, and this one has had them: begin another."
_MAX_WANTED_CHARS: Final = 1_000  # characters of a wanted value
_TYPE_FACTOR_WORDS: Final = {1.0: "the same", 0.5: "hardly the same", 0.1: "another", 0.0: "quite another"}
_HEADINGS: Final = ((1.0, "Just what was wanted"), (0.5, "Nearly"), (1e-9, "Not quite"), (0.0, "Something else"))


@dataclass(slots=True)
class ShopVisit:
    """State of one visitor's session."""

    task: Task
    goal: Goal
    instruction: str  # as shown
    state: ShopState = field(default_factory=ShopState)
    actions: list[str] = field(default_factory=list)  # those that had an effect, as the text environment takes them
    notice: str = ""  # shown on the next page, once

    @property
    def step(self) -> int:
        """Number of actions so far, by which a form of an earlier page is known."""
        return len(self.actions)

    @property
    def has_bought(self) -> bool:
        """Whether the purchase is made."""
        return self.state.page == "done"


class ScorePart(NamedTuple):
    """Part of the score."""

    name: str
    wanted: str
    found: str
    met: bool


class ScoreReport(NamedTuple):
    """Score of a purchase, explained."""

    total: float  # 0..1
    heading: str
    parts: tuple[ScorePart, ...]
    sum: str  # how the parts make the total


class ShopService:
    """Shop with the goals of one split. It keeps nothing of a visit.

    Args:
        shop: page machine of the text environment.
        tasks: tasks of the environment, one or more, all of one split.
    """

    def __init__(self, shop: Shop, tasks: Sequence[Task]) -> None:
        self.shop, self.tasks = shop, tasks

    @property
    def split(self) -> str:
        """Split of the goals."""
        return self.tasks[0].split

    def start_visit(self, number: int) -> ShopVisit:
        """Start a visit with the goal at this place of the split."""
        task, rules = self.tasks[number], self.shop.rules
        goal = Goal.from_json(task.options)
        return ShopVisit(task, goal, sanitize_text(goal.instruction, rules.max_text, rules.brackets))

    def act(self, visit: ShopVisit, action: str) -> bool:
        """Take one action and return whether it had an effect; if not, the visit gets a notice that says why."""
        if visit.has_bought or visit.step >= MAX_VISIT_STEPS:
            visit.notice = VISIT_OVER if visit.has_bought else VISIT_FULL
            return False
        turn = self.shop.step(visit.state, action)
        if turn.refused:
            visit.notice = f"Nothing was done: {turn.refused}."
            return False
        visit.state = turn.state
        visit.actions.append(action)
        return True

    def build_page(self, visit: ShopVisit) -> SitePage:
        """Build the current page of a visit."""
        tells = visit.has_bought and self.shop.rules.compat == "original"
        return build_site_page(self.shop, visit.state, self.reward(visit).total if tells else None)

    def reward(self, visit: ShopVisit) -> Reward:
        """Compute the reward of the purchase, as the environment does."""
        return judge_purchase(self.shop.shelves, visit.goal, visit.state, visit.task.seed)

    def score(self, visit: ShopVisit) -> ScoreReport | None:
        """Explain the reward of the purchase; None before the purchase."""
        if not visit.has_bought:
            return None
        reward, goal, title = self.reward(visit), visit.goal, self.shop.shelves[visit.goal.asin].title
        price = draw_price(self.shop.shelves[visit.state.asin], visit.task.seed)
        return _explain_reward(reward, goal, title, price)


def _explain_reward(reward: Reward, goal: Goal, title: str, price: float) -> ScoreReport:
    wanted = len(goal.attributes), len(goal.options)
    found = reward.num_attributes, reward.num_options
    attributes = sanitize_text("; ".join(goal.attributes), _MAX_WANTED_CHARS)
    said = "; ".join(f"{name}: {value}" if name else value for name, value in goal.options)
    options = sanitize_text(said, _MAX_WANTED_CHARS)
    limit = "any" if goal.price_upper == NO_LIMIT else f"${goal.price_upper:,.2f} at most"
    kind = f"{_TYPE_FACTOR_WORDS[reward.type_factor]} (times {reward.type_factor:g})"
    parts = (
        ScorePart("kind of product", sanitize_text(title, _MAX_WANTED_CHARS), kind, reward.type_factor == 1.0),
        ScorePart("attributes", attributes, f"{found[0]} of {wanted[0]}", found[0] == wanted[0]),
        ScorePart("options", options or "none", f"{found[1]} of {wanted[1]}", found[1] == wanted[1]),
        ScorePart("price", limit, f"${price:,.2f}", reward.price_fits),
    )
    arithmetic = (
        f"({found[0]} + {found[1]} + {int(reward.price_fits)}) / ({wanted[0]} + {wanted[1]} + 1) "
        f"\N{MULTIPLICATION SIGN} {reward.type_factor:g} = {reward.total:.2f}"
    )
    heading = next(words for least, words in _HEADINGS if reward.total >= least)
    return ScoreReport(reward.total, heading, parts, arithmetic)
