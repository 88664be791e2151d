"""WebShop as an environment: an instruction, a shop in text, fifteen actions, and a reward for the purchase.

Source: Yao et al. 2022, "WebShop: Towards Scalable Real-World Web Interaction with Grounded Language Agents" (arXiv
2207.01206). See ``docs/envs/webshop.md``.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from typing import Any, cast

from trailnotes.envs.base import require_choice, require_int, require_type
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task
from trailnotes_worlds.webshop.goals import Goal, split_price_limit
from trailnotes_worlds.webshop.protocols import (
    GoalSelection,
    build_identity,
    compute_splits,
    make_tasks,
    require_leak_free_split,
)
from trailnotes_worlds.webshop.reward import judge_purchase
from trailnotes_worlds.webshop.shop import MAX_LABEL_CHARS, Compat, Shop, ShopRules, ShopState, sanitize_text
from trailnotes_worlds.webshop.synthetic import open_catalogue
from trailnotes_worlds.webshop.views import REMEMBERER_NUM_PRODUCTS, VIEWS

MAX_STEPS = 15
COMPATS = ("fixed", "original")
REWARDS = ("score", "success")
FORMATS = ["search[WORDS]", "click[WHAT IS SHOWN]"]
_MAX_QUERY = 400  # characters of the search that is offered


open_cached_catalogue = lru_cache(4)(open_catalogue)
_load_splits = lru_cache(8)(compute_splits)


def webshop_tasks(
    split: str,
    catalogue: str = "synthetic",
    protocol: str = "by-product",
    goals: str = "",
    dataset_seed: int = 0,
    train_set: str = "S0",
    allow_leak: bool = False,
) -> list[Task]:
    """List the goals of one split, in the protocol's order: a pure function of the catalogue and the arguments.

    Args:
        split: train, validation or test.
        catalogue: folder, or "synthetic".
        protocol: a name in `protocols.PROTOCOLS`.
        goals: "human", "synthetic" or "both"; "" is the protocol's default.
        dataset_seed: seed of prices and price limits; of by-product, also of the goals of a product.
        train_set: "S0" or "S1", of the protocol rememberer.
        allow_leak: allow to evaluate on goals that a leaking protocol trains on.

    Raises:
        ConfigError: an unknown name, a value of the wrong type, no catalogue, a split without goals, or one that leaks.
    """
    choice = GoalSelection(protocol, goals, dataset_seed, train_set)
    require_leak_free_split(split, protocol, require_type(bool, "allow_leak", allow_leak))
    shelves = open_cached_catalogue(require_type(str, "catalogue", catalogue))
    return make_tasks(_load_splits(shelves, choice), split, protocol)


class WebShopEnv:
    """A shop in text: products to search, compare and buy by an instruction.

    Environments of one process share one open catalogue.
    """

    def __init__(  # noqa: PLR0913 (the user's options, by their names)
        self,
        *,
        catalogue: str = "synthetic",
        compat: str = "fixed",
        view: str = "text",
        products_per_page: int = 10,
        show_attributes: bool = False,
        repeat_instruction: bool | None = None,
        max_title: int = 300,
        max_text: int = 20_000,
        max_steps: int = MAX_STEPS,
        reward: str = "score",
        actions: bool = True,
    ) -> None:
        """Set the rules of the shop and the view of its pages.

        Args:
            catalogue: folder of `trailnotes webshop import`, or "synthetic".
            compat: "original" has every quirk of the release; "fixed" mends them.
            view: "text", "text_rich", "rememberer", which shows the first three products of a page, or "short".
            products_per_page: products on a results page.
            show_attributes: offer the page of the hidden attributes that the reward judges.
            repeat_instruction: show the instruction on each page; None: with compat "original" only.
            max_title: characters of a title, an option or another short text; 480 at most.
            max_text: characters of a description, or of all features, reviews or option values.
            max_steps: actions until the episode is truncated.
            reward: "score", 0 to 1, or "success", which is 1 for a score of 1, else 0.
            actions: offer the admissible actions with each observation.
        """
        self._catalogue = require_type(str, "catalogue", catalogue)
        self._rules = ShopRules(
            compat=cast("Compat", require_choice("compat", compat, COMPATS)),
            products_per_page=require_int("products_per_page", products_per_page),
            products_shown=REMEMBERER_NUM_PRODUCTS if view == "rememberer" else 0,
            show_attributes=require_type(bool, "show_attributes", show_attributes),
            max_title=require_int("max_title", max_title, most=MAX_LABEL_CHARS),
            max_text=require_int("max_text", max_text),
        )
        self._view = VIEWS[require_choice("view", view, VIEWS)]
        repeats = compat == "original" if repeat_instruction is None else repeat_instruction
        self._repeats = require_type(bool, "repeat_instruction", repeats)
        self._max_steps = require_int("max_steps", max_steps)
        self._pays_score = require_choice("reward", reward, REWARDS) == "score"
        self._offers = require_type(bool, "actions", actions)
        self._shop: Shop | None = None
        self._goal: Goal | None = None
        self._instruction, self.state = "", ShopState()
        self._seed = self._steps_left = 0

    tasks = staticmethod(webshop_tasks)

    @staticmethod
    def identity(
        catalogue: str = "synthetic",
        protocol: str = "by-product",
        goals: str = "",
        dataset_seed: int = 0,
        train_set: str = "S0",
        compat: str = "fixed",
        show_attributes: bool = False,
    ) -> dict[str, Any]:
        """Describe, as JSON, the properties that comparable results share: catalogue, protocol, goals, rules."""
        choice = GoalSelection(protocol, goals, dataset_seed, train_set)
        shelves = open_cached_catalogue(require_type(str, "catalogue", catalogue))
        rules = {"compat": compat, "show_attributes": show_attributes}
        return {"catalogue": shelves.name, **build_identity(_load_splits(shelves, choice), choice), **rules}

    @property
    def shop(self) -> Shop:
        if self._shop is None:
            self._shop = Shop(open_cached_catalogue(self._catalogue), self._rules)
        return self._shop

    def reset(self, task: Task) -> Observation:
        self._steps_left = 0
        try:
            self._goal = Goal.from_json(task.options)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"task {task.id} is none of webshop_tasks: {error!r}") from error
        if self._goal.asin not in self.shop.shelves:
            fix = "name the catalogue that its list was made of"
            raise ConfigError(f"task {task.id} wants a product that the catalogue {self._catalogue} lacks: {fix}")
        self._seed, self.state = task.seed, ShopState()
        self._instruction = sanitize_text(self._goal.instruction, self._rules.max_text, self._rules.brackets)
        self._steps_left = self._max_steps
        return Observation(
            self._render_page(), actions=self._get_admissible_actions(), instruction=self._instruction,
            briefing={"action_formats": FORMATS},
        )  # fmt: skip

    def step(self, action: str) -> Observation:
        """Take one action.

        Returns:
            An observation with ``info``: ``action_refused`` and the reason ``refused`` if the action did nothing;
            ``purchase``, the parts of the reward, at the end of a visit.
        """
        if not self._steps_left:
            raise EnvError("the episode is over, or none has begun: call reset before step")
        assert self._shop is not None
        assert self._goal is not None
        self._steps_left -= 1
        self.state, refused = self._shop.step(self.state, action)
        if self.state.page != "done":
            info = {"action_refused": True, "refused": refused} if refused else {}
            over, actions = not self._steps_left, self._get_admissible_actions()
            return Observation(self._render_page(), truncated=over, actions=actions, info=info)
        self._steps_left = 0
        reward = judge_purchase(self._shop.shelves, self._goal, self.state, self._seed)
        success = reward.total == 1
        return Observation(
            self._render_page(reward.total), reward.total if self._pays_score else float(success), terminated=True,
            actions=() if self._offers else None, success=success, score=reward.total,
            info={"purchase": {"asin": self.state.asin, **asdict(reward)}},
        )  # fmt: skip

    def close(self) -> None:
        self._steps_left, self._shop = 0, None

    def _render_page(self, score: float | None = None) -> str:
        assert self._shop is not None
        return self._view(self._shop.list_elements(self.state, self._instruction if self._repeats else "", score))

    def _get_admissible_actions(self) -> tuple[str, ...] | None:
        """List the clicks of a page; on the search page, a search for the instruction without its price limit."""
        assert self._shop is not None
        if not self._offers:
            return None
        if self.state.page != "search":
            return self._shop.list_actions(self.state)
        words = split_price_limit(self._instruction)[0].translate(str.maketrans("[]", "  "))[:_MAX_QUERY]
        return (f"search[{' '.join(words.split()) or '*'}]",)
