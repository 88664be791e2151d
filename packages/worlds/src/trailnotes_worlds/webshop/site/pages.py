"""What a page shows, apart from how: the parts of the page machine, each put where a person looks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from trailnotes_worlds.webshop.shop import BACK, BUY, NEXT, PREV, SEARCH, Part, Shop, State

Kind = Literal["search", "results", "item", "details", "done"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A button: the action that it sends, word for word that of the text environment, and what is written on it."""

    action: str
    label: str
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """A product among the results."""

    offer: Offer
    asin: str
    department: str
    title: str
    tag: str  # the price as shown
    seen: bool  # looked at since the search page


@dataclass(frozen=True, slots=True)
class Shown:
    """The product of an item page."""

    asin: str
    department: str
    title: str
    price: str
    rating: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the shop. Every offer of the state is somewhere on it."""

    kind: Kind
    title: str
    searchable: bool = False
    query: str = ""  # that the search bar repeats
    moves: tuple[Offer, ...] = ()  # to other pages of the shop
    cards: tuple[Card, ...] = ()
    first: int = 1  # the number of the first card
    product: Shown | None = None
    options: tuple[tuple[str, tuple[Offer, ...]], ...] = ()
    more: tuple[Offer, ...] = ()  # to the pages of the product
    buy: Offer | None = None
    texts: tuple[str, ...] = ()  # paragraphs


def page_of(shop: Shop, state: State, score: float | None = None) -> Page:
    """The page of a state.

    Args:
        shop: the page machine.
        state: of the visit.
        score: of the purchase, which the original's last page tells.
    """
    parts = shop.parts(state, score=score)
    texts = tuple(part.text for part in parts if part.kind == "text")
    buttons = {part.text: Offer(f"click[{part.target}]", part.text) for part in parts if part.kind == "button"}
    searchable = shop.can_search(state) and state.page != "done"
    if state.page == "search":
        return Page("search", SEARCH, searchable)
    if state.page == "done":
        return Page("done", texts[0], texts=texts[1:])
    moves = tuple(buttons.pop(name) for name in (BACK, PREV, NEXT) if name in buttons)
    if state.page == "results":
        first = (state.number - 1) * shop.rules.products_per_page + 1
        return Page("results", texts[0], searchable, state.query, moves, tuple(_cards(shop, parts)), first)
    if state.page == "item":
        title, price, rating = texts[-3:]
        product = Shown(state.asin, shop.shelves[state.asin].category, title, price, rating)
        buy = buttons.pop(BUY)
        options, more = tuple(_options(parts)), tuple(buttons.values())
        return Page("item", title, searchable, state.query, moves, product=product, options=options, more=more, buy=buy)
    return Page("details", state.page.title(), searchable, state.query, moves, texts=texts)


def _cards(shop: Shop, parts: Sequence[Part]) -> Iterator[Card]:
    """A product is three parts: its asin, its title, its price."""
    for place, part in enumerate(parts):
        if part.kind == "product":
            offer, department = Offer(f"click[{part.target}]", part.text), shop.shelves[part.asin].category
            yield Card(offer, part.asin, department, parts[place + 1].text, parts[place + 2].text, part.clicked)


def _options(parts: Sequence[Part]) -> Iterator[tuple[str, tuple[Offer, ...]]]:
    """Each name stands before its values; one of which no value can be shown is left out."""
    name, values = "", list[Offer]()
    for part in parts:
        if part.kind == "option":
            values.append(Offer(f"click[{part.target}]", part.text, part.clicked))
        elif part.kind == "text":
            if values:
                yield name, tuple(values)
            name, values = part.text, []
