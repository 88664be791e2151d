"""Scripted buyers of WebShop, good, hasty and wandering, and the tips that they write: actions and faults.

Buyers know the instruction, the pages and the shop's actions, and nothing that only the reward knows. Tips write an
action without its brackets, "click red" for ``click[red]``: a prompt that quotes a tip shows other brackets, which a
reader would copy. They leave out dead ends, so that a tip can be followed from a fresh start.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from trailnotes.types import Observation
from trailnotes.warmstart.demonstrations.episodes import Script
from trailnotes_worlds.webshop.goals import split_price_limit
from trailnotes_worlds.webshop.shop import PageElement

FaultKind = Literal["option", "value", "price", "other", "unbought"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault of an episode that a buyer can see."""

    kind: FaultKind
    what: str = ""  # the name of the option, the value that was asked for, or the limit in dollars


WORDS: Final = tomllib.loads(Path(__file__).with_name("webshop_tips.toml").read_text(encoding="utf-8"))
SEPARATORS: Final = (", then ", "; ", ", ")
NEXT: Final = "click[next >]"  # "click next" in a tip, since a quotation has another angle
_ACTION: Final = re.compile(r"(search|click)\[(.+)\]", re.DOTALL)


def format_terse_tip(way: Sequence[str], faults: Sequence[Fault]) -> str:
    """Write a tip of few words: the actions, and behind a full stop the faults."""
    actions = " ; ".join(map(strip_brackets, way)) or "nothing"
    missed = " , ".join(WORDS["terse"][fault.kind].format(what=fault.what) for fault in faults)
    return f"{actions} . {missed}" if missed else actions


def format_english_tip(way: Sequence[str], faults: Sequence[Fault], score: float, rng: random.Random) -> str:
    right = "wrong" if faults else "right"
    actions = rng.choice(SEPARATORS).join(map(strip_brackets, way)) or "nothing"
    missed = " and ".join(rng.choice(WORDS["english"][fault.kind]).format(what=fault.what) for fault in faults)
    opening = rng.choice(WORDS["openings"][right]).format(num=len(way))
    ending = rng.choice(WORDS["endings"][right]).format(faults=missed, score=f"{score:.2g}")
    return f"{opening}{actions}. {ending}"


def space_brackets(action: str) -> str:
    """Put blanks inside the brackets of an action, so that its words are the same tokens as on a page."""
    match = _ACTION.fullmatch(action)
    return f"{match[1]}[ {match[2]} ]" if match else action


def strip_brackets(action: str) -> str:
    """Write an action without its brackets; return any other text as it is."""
    if action == NEXT:
        return "click next"
    match = _ACTION.fullmatch(action)
    return f"{match[1]} {match[2]}" if match else action


BUY: Final = "click[buy now]"
BACK: Final = "click[< prev]"
READING: Final = ("description", "features")
_READING: Final = {f"click[{page}]" for page in (*READING, "reviews", "attributes")}
_PRICE: Final = re.compile(r"\$([\d.]+)")
_WORD: Final = re.compile(r"[a-z0-9]+")
_NAMED: Final = re.compile(r"\b(?:with|and) [\w ]+: ")
# Words of an instruction that do not describe a product.
_FILLING: Final = frozenset(
    _WORD.findall(
        "a an and any are as at be buy by can could find for from get give good has have help i d in is it its like "
        "kind looking m me my need of on one only or out please price lower ran says shop show some take than that the "
        "them these this to want wants we which with would you"
    )
)


@dataclass(frozen=True, slots=True)
class ShoppingGoal:
    """Wish of an instruction, in words, with its price limit."""

    text: str  # without the limit
    limit: float  # dollars; `NO_LIMIT` if there is none

    @classmethod
    def parse(cls, instruction: str) -> ShoppingGoal:
        text, limit = split_price_limit(instruction)
        return cls(text.lower(), limit)

    @property
    def words(self) -> list[str]:
        return [word for word in dict.fromkeys(_WORD.findall(self.text)) if word not in _FILLING]

    def find_requested_value(self, name: str, values: Sequence[str]) -> str:
        """Find the longest value of an option in the instruction, preferably beside its name; "" if there is none."""
        for before in (f"{name}: ", ""):
            named = [value for value in values if re.search(rf"(?<!\w){re.escape(before + value)}(?!\w)", self.text)]
            if named:
                return max(named, key=len)
        return ""

    def is_option_missing(self, options: Sequence[tuple[str, Sequence[str]]]) -> bool:
        """Whether the instruction names an option with a value that is not among those offered."""
        left = self.text
        for name, values in options:
            labels = [value if value.startswith(f"{name}: ") else f"{name}: {value}" for value in values]
            for each in sorted(labels, key=len, reverse=True):
                left = re.sub(rf"\b{re.escape(each)}(?=, and |$)", "", left)
        return _NAMED.search(left) is not None

    def score_title(self, title: str) -> float:
        words, has = self.words, set(_WORD.findall(title.lower()))
        return sum(word in has for word in words) / max(1, len(words))


@dataclass(frozen=True, slots=True)
class Listing:
    """Product among the results of a search."""

    asin: str  # as it is clicked
    title: str  # possibly cut
    price: float  # dollars; of a range the lower end


@dataclass(frozen=True, slots=True)
class ShopPage:
    """Page as a buyer reads it: its results, or the options and the price of a product."""

    listings: tuple[Listing, ...] = ()
    title: str = ""  # of the product
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()  # name, and values as they are clicked
    price: float = 0.0  # dollars
    more: bool = False  # whether there is another page of results

    @classmethod
    def from_parts(cls, parts: Sequence[PageElement]) -> ShopPage:
        """Read the displayed texts of a page, and no hidden property of its elements."""
        listings, options, title, price = [], dict[str, tuple[str, ...]](), "", 0.0
        sells = any(part.target == BUY[len("click[") : -1] for part in parts)  # else other texts begin with "Price: "
        for i, part in enumerate(parts):
            if part.kind == "product":
                listings.append(Listing(part.target, parts[i + 1].text, parse_price(parts[i + 2].text)))
            elif part.option:
                options[part.option[0]] = (*options.get(part.option[0], ()), part.target)
            elif sells and part.kind == "text" and part.text.startswith("Price: "):
                title, price = parts[i - 1].text, parse_price(part.text)
        more = any(part.target == NEXT[len("click[") : -1] for part in parts)
        return cls(tuple(listings), title, tuple(options.items()), price, more)


def parse_price(tag: str) -> float:
    match = _PRICE.search(tag)
    return float(match[1]) if match else 0.0


class Buyer:
    """Scripted buyer with several ways to shop."""

    def __init__(self, instruction: str, look: Callable[[], ShopPage], rng: random.Random) -> None:
        self.wish, self.look, self.rng = ShoppingGoal.parse(instruction), look, rng

    def good(self, _: Observation) -> Script:
        """Search by the wish, open the best results, choose the requested options, and buy.

        It turns back from a product that is too dear or lacks a requested option, except from the last one.
        """
        yield self.search(6)
        ranked = sorted(self.look().listings, key=self.rank)[:3]
        for listing in ranked:
            yield f"click[{listing.asin}]"
            bad = self.look().price > self.wish.limit or self.wish.is_option_missing(self.look().options)
            if not bad or listing is ranked[-1]:
                for option in self.look().options:
                    if value := self.wish.find_requested_value(*option):
                        yield f"click[{value}]"
                yield BUY
                return
            yield BACK

    def hasty(self, _: Observation) -> Script:
        """Search by a word or two, open the first product, and buy it as it is."""
        yield self.search(2)
        for listing in self.look().listings[:1]:
            yield f"click[{listing.asin}]"
            yield BUY

    def wandering(self, _: Observation) -> Script:
        """Open some product and read on, come back, and buy another with random options."""
        yield self.search(3)
        if self.look().more and self.rng.random() < 0.3:
            yield NEXT
        listings = self.look().listings
        if not listings:
            return
        yield f"click[{self.rng.choice(listings).asin}]"
        if self.rng.random() < 0.5:
            yield f"click[{self.rng.choice(READING)}]"
            yield BACK
        yield BACK
        yield f"click[{self.rng.choice(listings).asin}]"
        for _name, values in self.look().options:
            if self.rng.random() < 0.7:
                yield f"click[{self.rng.choice(values)}]"
        yield BUY

    def rank(self, listing: Listing) -> tuple[bool, float]:
        return listing.price > self.wish.limit, -self.wish.score_title(listing.title)

    def search(self, most: int) -> str:
        """Search by up to `most` words of the wish: mostly the first, else any, in their order."""
        words = self.wish.words
        if self.rng.random() < 0.8:
            return f"search[{' '.join(words[:most])}]"
        return f"search[{' '.join(sorted(self.rng.sample(words, min(most, len(words))), key=words.index))}]"


def extract_purchase_path(actions: Sequence[str]) -> tuple[str, ...]:
    """Extract the actions that led to the final page, without dead ends.

    Pages must be as in ``compat = "fixed"``, and each action one that its page offers.
    """
    way: list[str] = []
    reading = False
    for action in actions:
        if action.startswith("search["):
            way = [action]
        elif action == "click[back to search]":
            way, reading = [], False
        elif action == BACK:
            product = next((i for i, earlier in enumerate(way[1:], 1) if earlier != NEXT), None)
            if not reading:
                del way[-1 if product is None else product :]
            reading = False
        elif action in _READING:
            reading = True
        else:
            way.append(action)
    return tuple(way)


def find_faults(way: Sequence[str], page: ShopPage, results: ShopPage, wish: ShoppingGoal) -> tuple[Fault, ...]:
    if BUY not in way:
        return (Fault("unbought"),)
    chosen = {action[len("click[") : -1] for action in way}
    requested = [(name, wish.find_requested_value(name, values), values) for name, values in page.options]
    faults = [Fault("value", value) for _, value, _ in requested if value and value not in chosen]
    if page.price > wish.limit:
        faults.append(Fault("price", f"{wish.limit:g}"))
    if any(wish.score_title(listing.title) > wish.score_title(page.title) for listing in results.listings):
        faults.append(Fault("other"))
    left_open = [Fault("option", name) for name, value, values in requested if not value and chosen.isdisjoint(values)]
    return tuple(faults or left_open or [Fault("other")])
