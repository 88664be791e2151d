"""Contents of the site's pages: the elements of the page machine, sorted by their place on a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from trailnotes_worlds.webshop.shop import BACK, BUY, NEXT, PREV, SEARCH, PageElement, Shop, ShopState

PageKind = Literal["search", "results", "item", "details", "done"]


class ActionButton(NamedTuple):
    """Button with its label and its action, word for word that of the text environment."""

    action: str
    label: str
    chosen: bool = False


class ProductCard(NamedTuple):
    """Product among the results."""

    offer: ActionButton
    asin: str
    department: str
    title: str
    tag: str  # the price as shown
    seen: bool  # looked at since the search page


class ProductDetails(NamedTuple):
    """Product of an item page."""

    asin: str
    department: str
    title: str
    price: str
    rating: str


@dataclass(frozen=True, slots=True)
class SitePage:
    """Page of the shop, with every action of its state."""

    kind: PageKind
    title: str
    searchable: bool = False
    query: str = ""  # that the search bar repeats
    moves: tuple[ActionButton, ...] = ()  # to other pages of the shop
    cards: tuple[ProductCard, ...] = ()
    first: int = 1  # the number of the first card
    product: ProductDetails | None = None
    options: tuple[tuple[str, tuple[ActionButton, ...]], ...] = ()
    more: tuple[ActionButton, ...] = ()  # to the pages of the product
    buy: ActionButton | None = None
    texts: tuple[str, ...] = ()  # paragraphs


def build_site_page(shop: Shop, state: ShopState, score: float | None = None) -> SitePage:
    """Build the page of a state.

    Args:
        shop: the page machine.
        state: of the visit.
        score: of the purchase, which the original's last page shows.
    """
    parts = shop.list_elements(state, score=score)
    texts = tuple(part.text for part in parts if part.kind == "text")
    buttons = {part.text: ActionButton(f"click[{part.target}]", part.text) for part in parts if part.kind == "button"}
    searchable = shop.can_search(state) and state.page != "done"
    if state.page == "search":
        return SitePage("search", SEARCH, searchable)
    if state.page == "done":
        return SitePage("done", texts[0], texts=texts[1:])
    moves = tuple(buttons.pop(name) for name in (BACK, PREV, NEXT) if name in buttons)
    if state.page == "results":
        first = (state.number - 1) * shop.rules.products_per_page + 1
        cards = tuple(
            ProductCard(
                ActionButton(f"click[{part.target}]", part.text), part.asin, shop.shelves[part.asin].category,
                parts[place + 1].text, parts[place + 2].text, part.clicked,
            )
            for place, part in enumerate(parts) if part.kind == "product"  # its title and its price follow
        )  # fmt: skip
        return SitePage("results", texts[0], searchable, state.query, moves, cards, first)
    if state.page == "item":
        title, price, rating = texts[-3:]
        product = ProductDetails(state.asin, shop.shelves[state.asin].category, title, price, rating)
        buy, options = buttons.pop(BUY), tuple(_iter_options(parts))
        return SitePage(
            "item", title, searchable, state.query, moves, product=product, options=options,
            more=tuple(buttons.values()), buy=buy,
        )  # fmt: skip
    return SitePage("details", state.page.title(), searchable, state.query, moves, texts=texts)


def _iter_options(parts: Sequence[PageElement]) -> Iterator[tuple[str, tuple[ActionButton, ...]]]:
    """Group the values that follow each name; leave out a name without values."""
    name, values = "", list[ActionButton]()
    for part in parts:
        if part.kind == "option":
            values.append(ActionButton(f"click[{part.target}]", part.text, part.clicked))
        elif part.kind == "text":
            if values:
                yield name, tuple(values)
            name, values = part.text, []
