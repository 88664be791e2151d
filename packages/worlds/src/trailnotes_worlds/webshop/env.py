"""WebShop as an environment: an instruction, a shop in text, fifteen actions, and a purchase that is judged.

Source: Yao et al. 2022, "WebShop: Towards Scalable Real-World Web Interaction with Grounded Language Agents" (arXiv
2207.01206). See ``docs/envs/webshop.md``.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from typing import Any, cast

from trailnotes.envs.options import require_choice, require_int, require_type
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task
from trailnotes_worlds.webshop.catalogue import Catalogue
from trailnotes_worlds.webshop.goals import Goal, split_price_limit
from trailnotes_worlds.webshop.protocols import (
    SPLITS,
    GoalSelection,
    Splits,
    build_identity,
    compute_splits,
    make_tasks,
    require_leak_free_split,
)
from trailnotes_worlds.webshop.reward import Reward, judge_purchase
from trailnotes_worlds.webshop.shop import MAX_LABEL_CHARS, Compat, Shop, ShopRules, ShopState
from trailnotes_worlds.webshop.synthetic import open_catalogue
from trailnotes_worlds.webshop.texts import sanitize_text
from trailnotes_worlds.webshop.views import REMEMBERER_NUM_PRODUCTS, VIEWS

__all__ = ["SPLITS", "WebShopEnv", "open_cached_catalogue", "webshop_tasks"]

MAX_STEPS = 15
COMPATS = ("fixed", "original")
REWARDS = ("score", "success")
FORMATS = ["search[WORDS]", "click[WHAT IS SHOWN]"]
_MAX_QUERY = 400  # characters of the search that is offered


@lru_cache(4)
def open_cached_catalogue(catalogue: str) -> Catalogue:
    """The catalogue of a folder, or "synthetic", once in each process."""
    return open_catalogue(catalogue)


def webshop_tasks(
    split: str,
    catalogue: str = "synthetic",
    protocol: str = "by-product",
    goals: str = "",
    dataset_seed: int = 0,
    train_set: str = "S0",
    allow_leak: bool = False,
) -> list[Task]:
    """The goals of one split, in the protocol's order: a pure function of the catalogue and the arguments.

    Args:
        split: train, validation or test.
        catalogue: folder, or "synthetic".
        protocol: a name in `protocols.PROTOCOLS`.
        goals: "human", "synthetic" or "both"; "" takes the protocol's own.
        dataset_seed: another one has other prices and limits of price; of by-product, other goals of a product.
        train_set: "S0" or "S1", of the protocol rememberer.
        allow_leak: examine on goals that a leaking protocol trains on.

    Raises:
        ConfigError: an unknown name, a value of the wrong kind, no catalogue, a split without goals, or one that leaks.
    """
    choice = _make_selection(protocol, goals, dataset_seed, train_set)
    require_leak_free_split(split, protocol, require_type(bool, "allow_leak", allow_leak))
    return make_tasks(
        _load_splits(open_cached_catalogue(require_type(str, "catalogue", catalogue)), choice), split, protocol
    )


def _make_selection(protocol: object, goals: object, dataset_seed: object, train_set: object) -> GoalSelection:
    return GoalSelection(
        require_type(str, "protocol", protocol), require_type(str, "goals", goals), require_type(int, "dataset_seed", dataset_seed),
        require_type(str, "train_set", train_set),
    )  # fmt: skip


@lru_cache(8)
def _load_splits(catalogue: Catalogue, choice: GoalSelection) -> Splits:
    return compute_splits(catalogue, choice)


class WebShopEnv:
    """Plays WebShop. Environments of one process share one open catalogue."""

    def __init__(  # noqa: PLR0913 (the user's options, by their names)
        self,
        *,
        catalogue: str = "synthetic",
        protocol: str = "by-product",
        goals: str = "",
        dataset_seed: int = 0,
        train_set: str = "S0",
        allow_leak: bool = False,
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
        """Choose how it is played.

        Args:
            catalogue: folder that `trailnotes webshop import` has written; "synthetic" is ours.
            protocol: read by `tasks` only.
            goals: read by `tasks` only.
            dataset_seed: read by `tasks` only.
            train_set: read by `tasks` only.
            allow_leak: read by `tasks` only.
            compat: "original" behaves as the release does in every quirk; "fixed" mends them.
            view: "text", "text_rich", "rememberer", which shows the first three products of a page, or "short".
            products_per_page: of a results page.
            show_attributes: offer the page of the hidden attributes that the reward judges.
            repeat_instruction: on each page, as the original does; None: with compat "original" only.
            max_title: characters of a title, an option or another short text; 480 at most.
            max_text: characters of a description, or of all features, reviews or option values.
            max_steps: actions until the episode is truncated.
            reward: "score" is that of the purchase, 0 to 1; "success" is 1 for a score of 1, else 0.
            actions: offer the admissible actions with each observation.
        """
        del protocol, goals, dataset_seed, train_set, allow_leak
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
        self._repeats = (
            compat == "original"
            if repeat_instruction is None
            else require_type(bool, "repeat_instruction", repeat_instruction)
        )
        self._max_steps = require_int("max_steps", max_steps)
        self._pays_score = require_choice("reward", reward, REWARDS) == "score"
        self._offers = require_type(bool, "actions", actions)
        self._shop: Shop | None = None
        self._goal: Goal | None = None
        self._seed = 0
        self._instruction = ""
        self._state = ShopState()
        self._steps_left = 0

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
        """What must be the same for two results to be comparable, as JSON: catalogue, protocol, goals of each split."""
        choice = _make_selection(protocol, goals, dataset_seed, train_set)
        shelves = open_cached_catalogue(require_type(str, "catalogue", catalogue))
        rules = {"compat": compat, "show_attributes": show_attributes}
        return {"catalogue": shelves.name, **build_identity(_load_splits(shelves, choice), choice), **rules}

    @property
    def state(self) -> ShopState:
        """Where the visit is."""
        return self._state

    @property
    def shop(self) -> Shop:
        """The page machine, opened when it is first asked for."""
        if self._shop is None:
            self._shop = Shop(open_cached_catalogue(self._catalogue), self._rules)
        return self._shop

    def reset(self, task: Task) -> Observation:
        """Enter the shop to look for the goal of `task`."""
        self._steps_left = 0
        try:
            self._goal = Goal.from_json(task.options)
        except ValueError as error:
            raise ConfigError(f"task {task.id} is none of webshop_tasks: {error}") from error
        if self._goal.asin not in self.shop.shelves:
            raise ConfigError(f"task {task.id} wants a product that the catalogue {self._catalogue} lacks: name the "
                              "catalogue that its list was made of")  # fmt: skip
        self._seed, self._state = task.seed, ShopState()
        self._instruction = sanitize_text(self._goal.instruction, self._rules.max_text, self._rules.brackets)
        self._steps_left = self._max_steps
        return Observation(
            self._render_page(),
            actions=self._get_admissible_actions(),
            instruction=self._instruction,
            briefing={"action_formats": FORMATS},
        )

    def step(self, action: str) -> Observation:
        """Take one action.

        ``info``: ``action_refused`` with ``refused``, which says why, when nothing was done; ``purchase``, the parts of
        the reward, at the end of a visit.
        """
        if not self._steps_left:
            raise EnvError("the episode is over, or none has begun: call reset before step")
        assert self._shop is not None
        assert self._goal is not None
        self._steps_left -= 1
        self._state, refused = self._shop.step(self._state, action)
        if self._state.page == "done":
            return self._make_final_observation(judge_purchase(self._shop.shelves, self._goal, self._state, self._seed))
        info = {"action_refused": True, "refused": refused} if refused else {}
        return Observation(
            self._render_page(), truncated=not self._steps_left, actions=self._get_admissible_actions(), info=info
        )

    def close(self) -> None:
        """Leave the shop; the catalogue stays open for the next one of this process."""
        self._steps_left = 0
        self._shop = None

    def _make_final_observation(self, reward: Reward) -> Observation:
        self._steps_left = 0
        success = reward.total == 1
        return Observation(
            self._render_page(reward.total),
            reward=reward.total if self._pays_score else float(success),
            terminated=True,
            actions=() if self._offers else None,
            success=success,
            score=reward.total,
            info={"purchase": {"asin": self._state.asin, **asdict(reward)}},
        )

    def _render_page(self, score: float | None = None) -> str:
        assert self._shop is not None
        return self._view(self._shop.list_elements(self._state, self._instruction if self._repeats else "", score))

    def _get_admissible_actions(self) -> tuple[str, ...] | None:
        """What can be clicked; at the search bar, the instruction without its limit of price as what to search."""
        assert self._shop is not None
        if not self._offers:
            return None
        if self._state.page != "search":
            return self._shop.list_actions(self._state)
        words = split_price_limit(self._instruction)[0].translate(str.maketrans("[]", "  "))[:_MAX_QUERY]
        return (f"search[{' '.join(words.split()) or '*'}]",)
