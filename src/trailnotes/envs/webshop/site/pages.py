"""What a page shows, apart from how: the values that the templates draw. All text is escaped when it is drawn."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

_FOLDER: Final = Path(__file__).parent
STYLE: Final = (_FOLDER / "shop.css").read_text(encoding="utf-8")
ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="#1d6b58"/>'
    '<path fill="#fff3cf" d="M9 12h14l2 13H7z"/><path fill="none" stroke="#fff3cf" stroke-width="2.2" '
    'd="M12 14v-3a4 4 0 0 1 8 0v3"/><path fill="none" stroke="#1d6b58" stroke-width="2" d="M11 19h10M11 22h6"/></svg>'
)
VERSION: Final = hashlib.blake2b((STYLE + ICON).encode(), digest_size=6).hexdigest()


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
    title: str
    tag: str  # the price as shown
    picture: Markup


@dataclass(frozen=True, slots=True)
class Shown:
    """The product of an item page."""

    asin: str
    title: str
    tag: str
    rating: str
    picture: Markup


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the shop. Every offer of the state is somewhere on it, once."""

    kind: str  # "search", "results", "item", "details" or "done"
    title: str
    instruction: str
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

    def offers(self) -> list[str]:
        """The actions of all buttons, in the order in which they stand on the page; the search bar is none."""
        buttons = [*self.moves, *(card.offer for card in self.cards)]
        buttons += [offer for _, values in self.options for offer in values]
        buttons += [self.buy] if self.buy else []
        return [offer.action for offer in (*buttons, *self.more)]


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the score."""

    name: str
    wanted: str
    found: str
    met: bool


@dataclass(frozen=True, slots=True)
class Score:
    """What a purchase was worth, and why."""

    total: float  # 0..1
    heading: str
    parts: tuple[Part, ...]
    sum: str  # how the parts make the total


_JINJA = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"),
    autoescape=True,
    auto_reload=False,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_JINJA.globals["mark"] = Markup(ICON)  # noqa: S704 (a constant)


def draw(template: str, **values: Any) -> str:
    """The page as HTML. Templates are compiled once in a process."""
    return _JINJA.get_template(f"{template}.html").render(values)
