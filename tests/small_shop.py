"""A shop of a dozen products made by hand: what the page machine needs of a catalogue, without an index."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trailnotes_worlds.webshop.products import Instruction, Product, format_price

MUG = Product(
    asin="B0MUG00001",
    title="Blue Stoneware Mug, 12 Ounce",
    description="A mug for tea.",
    bullets=("Dishwasher safe", "Made of clay"),
    attributes=("dishwasher safe", "lead free"),
    options=(("color", ("blue", "rectangular")), ("size", ("small", "large"))),
    prices=(12.5,),
    tag="$12.5",
    category="garden",
    categories=("Home", "Kitchen", "Mugs"),
    query="mugs",
    nouns=("stoneware", "mug", "ounce"),
    instructions=(
        Instruction("synthetic", "Find me a lead free mug", ("lead free",)),
        Instruction("human", "i want a blue mug that is dishwasher safe.", ("dishwasher safe",), ("blue",), 7),
    ),
)
LAMP = Product(
    asin="B0LAMP0001",
    title="Brass Desk Lamp",
    description="",
    bullets=(),
    attributes=("easy assemble",),
    options=(("color", ("brass", "description")), ("shade", ("brass", "buy now"))),
    prices=(30.0, 50.0),
    tag="$30.0 to $50.0",
    category="garden",
    categories=("Home", "Lighting"),
    query="desk lamps",
    nouns=("desk", "lamp"),
    instructions=(Instruction("synthetic", "Find me an easy assemble lamp", ("easy assemble",)),),
)


def product(asin: str, **changes: Any) -> Product:
    """A mug with changes; its tag follows its prices."""
    prices = changes.get("prices", MUG.prices)
    return replace(MUG, asin=asin, **{"tag": format_price(prices), **changes})


@dataclass(frozen=True)
class ListCatalogue:
    """Finds what shares a word with the query, in the order of the shelf."""

    products: tuple[Product, ...]

    @cached_property
    def _known(self) -> dict[object, Product]:
        return {each.asin: each for each in self.products}

    def __len__(self) -> int:
        return len(self.products)

    def __iter__(self) -> Iterator[Product]:
        return iter(self.products)

    def __contains__(self, asin: object) -> bool:
        return asin in self._known

    def __getitem__(self, asin: str) -> Product:
        return self._known[asin]

    def at(self, index: int) -> Product:
        return self.products[index]

    def search(self, query: str, limit: int = 50) -> list[str]:
        words = set(query.split())
        return [each.asin for each in self.products if words & set(re.findall(r"\w+", each.title.lower()))][:limit]

    def iter_by_goal_kind(self, kinds: Iterable[str]) -> Iterator[Product]:
        return (each for each in self.products if {item.kind for item in each.instructions} & {*kinds})

    def find_by_facet(self, facet: str, value: str) -> list[str]:
        values = {
            "attribute": lambda each: each.attributes,
            "category": lambda each: [each.category],
            "query": lambda each: [each.query],
        }
        return [each.asin for each in self.products if value in values[facet](each)]


DOZEN = ListCatalogue((MUG, LAMP, *(product(f"B0CUP{n:05}", title=f"cup number {n}") for n in range(25))))
