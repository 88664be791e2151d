"""Scripted buyers: one who searches well, one who takes the first, one who wanders; and what a buyer sees on a page.

They know the instruction and the pages, and speak the shop's actions: nothing that only the reward knows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trailnotes_worlds.demonstrations.webshop_words import NEXT, Fault
from trailnotes_worlds.webshop.goals import split_price_limit

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from trailnotes.types import Observation
    from trailnotes.warmstart.demonstrations.episodes import Script
    from trailnotes_worlds.webshop.shop import PageElement

BUY: Final = "click[buy now]"
BACK: Final = "click[< prev]"
READING: Final = ("description", "features")
_READING: Final = {f"click[{page}]" for page in (*READING, "reviews", "attributes")}
_PRICE: Final = re.compile(r"\$([\d.]+)")
_WORD: Final = re.compile(r"[a-z0-9]+")
_NAMED: Final = re.compile(r"\b(?:with|and) [\w ]+: ")
# Words of an instruction that say nothing about a product.
_FILLING: Final = frozenset(
    _WORD.findall(
        "a an and any are as at be buy by can could find for from get give good has have help i d in is it its like "
        "kind looking m me my need of on one only or out please price lower ran says shop show some take than that the "
        "them these this to want wants we which with would you"
    )
)


@dataclass(frozen=True, slots=True)
class ShoppingGoal:
    """What an instruction asks for."""

    text: str  # without the limit
    limit: float  # dollars; `NO_LIMIT` where none is named

    @classmethod
    def parse(cls, instruction: str) -> ShoppingGoal:
        """Read an instruction."""
        text, limit = split_price_limit(instruction)
        return cls(text.lower(), limit)

    @property
    def words(self) -> list[str]:
        """The words that tell products apart, in order, each once."""
        return [word for word in dict.fromkeys(_WORD.findall(self.text)) if word not in _FILLING]

    def find_requested_value(self, name: str, values: Sequence[str]) -> str:
        """The longest of an option's values that the instruction names, best beside its name; "" if it names none."""
        for before in (f"{name}: ", ""):
            named = [value for value in values if re.search(rf"(?<!\w){re.escape(before + value)}(?!\w)", self.text)]
            if named:
                return max(named, key=len)
        return ""

    def is_option_missing(self, options: Sequence[tuple[str, Sequence[str]]]) -> bool:
        """Whether a value that is asked for by the name of its option is not among those offered."""
        left = self.text
        for name, values in options:
            said = [value if value.startswith(f"{name}: ") else f"{name}: {value}" for value in values]
            for each in sorted(said, key=len, reverse=True):
                left = re.sub(rf"\b{re.escape(each)}(?=, and |$)", "", left)
        return _NAMED.search(left) is not None

    def score_title(self, title: str) -> float:
        """The share of the words asked for that a title has."""
        words, has = self.words, set(_WORD.findall(title.lower()))
        return sum(word in has for word in words) / max(1, len(words))


@dataclass(frozen=True, slots=True)
class Listing:
    """A product among the results."""

    asin: str  # as it is clicked
    title: str  # as far as it is shown
    price: float  # dollars; of a range the lower end


@dataclass(frozen=True, slots=True)
class ShopPage:
    """What a buyer makes of a page: the results on it, or the options and the price of a product."""

    listings: tuple[Listing, ...] = ()
    title: str = ""  # of the product
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()  # name, and values as they are clicked
    price: float = 0.0  # dollars
    more: bool = False  # whether there is another page of results

    @classmethod
    def from_parts(cls, parts: Sequence[PageElement]) -> ShopPage:
        """Read what is shown, and nothing else that a part may hold."""
        listings, options, title, price = [], dict[str, tuple[str, ...]](), "", 0.0
        sells = any(
            part.target == BUY[len("click[") : -1] for part in parts
        )  # other texts begin with "Price: " as well
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
    """The price that a tag names, of a range the lower one; 0 where it names none."""
    found = _PRICE.search(tag)
    return float(found[1]) if found else 0.0


class Buyer:
    """A way to shop.

    Args:
        instruction: what is asked for.
        look: the page that is shown now.
        rng: draws what is left open.
    """

    def __init__(self, instruction: str, look: Callable[[], ShopPage], rng: random.Random) -> None:
        self.wish, self.look, self.rng = ShoppingGoal.parse(instruction), look, rng

    def good(self, _: Observation) -> Script:
        """Searches by what is asked, opens what fits best, chooses what is asked, and buys.

        Turns back from what is too dear, or does not come as asked, while something else fits as well.
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
        """Searches by a word or two, opens the first product, and buys it as it is."""
        yield self.search(2)
        for listing in self.look().listings[:1]:
            yield f"click[{listing.asin}]"
            yield BUY

    def wandering(self, _: Observation) -> Script:
        """Opens some product and reads on, comes back, and buys another with options drawn at random."""
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
        """Sorts what can be afforded first, and of that what fits best."""
        return listing.price > self.wish.limit, -self.wish.score_title(listing.title)

    def search(self, most: int) -> str:
        """By up to `most` of the words that are asked for: mostly the first, else any, in their order."""
        words = self.wish.words
        if self.rng.random() < 0.8:
            return f"search[{' '.join(words[:most])}]"
        return f"search[{' '.join(sorted(self.rng.sample(words, min(most, len(words))), key=words.index))}]"


def extract_purchase_path(actions: Sequence[str]) -> tuple[str, ...]:
    """Those of `actions` that led to where they ended: what was turned back from is left out.

    Where pages are as in ``compat = "fixed"``, and each action was one that its page offers.
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
    """What a buyer can see to be wrong with a purchase that has not earned the full score.

    Args:
        way: of `way_of`.
        page: of the product, as it was bought.
        results: among which it was chosen.
        wish: what was asked for.
    """
    if BUY not in way:
        return (Fault("unbought"),)
    chosen = {action[len("click[") : -1] for action in way}
    asked = [
        (name, wish.find_requested_value(name, values), chosen.intersection(values)) for name, values in page.options
    ]
    faults = [Fault("value", value) for _, value, _ in asked if value and value not in chosen]
    if page.price > wish.limit:
        faults.append(Fault("price", f"{wish.limit:g}"))
    if any(wish.score_title(listing.title) > wish.score_title(page.title) for listing in results.listings):
        faults.append(Fault("other"))
    left_open = [Fault("option", name) for name, value, own in asked if not value and not own]
    return tuple(faults or left_open or [Fault("other")])
