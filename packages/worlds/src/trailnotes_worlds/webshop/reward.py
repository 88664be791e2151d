"""Reward of a purchase: that of the original, with all of its parts.

    (attributes + options matched + [price is low enough]) / (attributes + options wanted + 1) x type

Source: Yao et al. 2022 (arXiv 2207.01206), `web_agent_site/engine/goal.py` of the release (commit 64fa2a5), whose
quirks are part of every published figure and are kept: a colour is the first known name found anywhere in a word
("rectangular" is tan), and of what a synthetic goal wants only a value that is a colour as a whole is looked up so. So
buying the very product with the very options does not always earn 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

from trailnotes_worlds.webshop.catalogue import Catalogue
from trailnotes_worlds.webshop.goals import Goal, draw_price
from trailnotes_worlds.webshop.nouns import WORDS
from trailnotes_worlds.webshop.products import Product
from trailnotes_worlds.webshop.shop import ShopState

MATCH_THRESHOLD: Final = 85  # of 100; more is a match
NO_NOUN_SIMILARITY: Final = 0.2  # similarity of titles where the wanted one has no noun
_LATIN_1: Final = dict.fromkeys(range(128, 256))  # characters that thefuzz drops before it compares

COLORS: Final = tuple(WORDS["colors"].split())


@dataclass(frozen=True, slots=True)
class Reward:
    """Reward of one purchase and its parts."""

    total: float  # in [0, 1]
    num_attributes: int  # matched, of those wanted
    num_options: int  # likewise
    price_fits: bool
    type_factor: float  # 0, 0.1, 0.5 or 1: is it the kind of thing that was wanted
    same_query: bool
    same_categories: bool  # two segments or more in common
    title_score: float  # share of the wanted title's nouns that the bought one has


def judge_purchase(shelves: Catalogue, goal: Goal, state: ShopState, seed: int) -> Reward:
    """Compute the reward of the product and options in `state`, at the price that `seed` gives."""
    bought = shelves[state.asin]
    values = [value for _, value in state.options]
    return compute_reward(goal, shelves[goal.asin], bought, values, draw_price(bought, seed))


def compute_reward(goal: Goal, wanted: Product, bought: Product, options: Iterable[str], price: float) -> Reward:
    num_attributes = sum(_has_attribute(bought, attribute) for attribute in goal.attributes)
    values = [extract_color(value) for value in options]
    num_options = sum(
        any(compute_similarity(value, text) > MATCH_THRESHOLD for value in values)
        for text in map(_format_wanted_option, goal.options)
    )
    price_fits = price <= goal.price_upper
    same_query = bought.query == wanted.query
    same_categories = len({*bought.categories} & {*wanted.categories}) >= 2
    shared = len({*wanted.nouns} & {*bought.nouns})  # once each; the nouns wanted count with repeats
    title_score = shared / len(wanted.nouns) if wanted.nouns else NO_NOUN_SIMILARITY
    related = same_query or same_categories or title_score > 0.2
    factor = 0.0 if title_score == 0 else 0.1 if title_score < 0.1 else 1.0 if related else 0.5
    share = (num_attributes + num_options + price_fits) / (len(goal.attributes) + len(goal.options) + 1)
    return Reward(
        share * factor, num_attributes, num_options, price_fits, factor, same_query, same_categories, title_score
    )


def compute_similarity(one: str, other: str) -> int:
    """Compute the `token_set_ratio` of thefuzz, a whole number from 0 to 100."""
    return round(token_set_ratio(_normalize_text(one), _normalize_text(other)))


def extract_color(text: str) -> str:
    """Find the first colour whose name is anywhere in `text`; else return `text`."""
    return next((color for color in COLORS if color in text), text)


@lru_cache(8192)
def _normalize_text(text: str) -> str:
    return default_process(text.translate(_LATIN_1))


def _has_attribute(product: Product, attribute: str) -> bool:
    """Whether a product has an attribute: by its hidden list, or word for word in its texts."""
    if any(compute_similarity(known, attribute) > MATCH_THRESHOLD for known in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)


def _format_wanted_option(option: tuple[str, str]) -> str:
    """Format an option for comparison: the value of a human goal, or the pair of a synthetic one or its exact colour.

    The pair as Python writes it, which is what thefuzz compares: a no-break space in a value becomes the letters xa0.
    """
    name, value = option
    if not name:
        return extract_color(value)
    return next((color for color in COLORS if color in option), str(option))
