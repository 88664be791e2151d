<<<<<<< HEAD
"""A shop of hand-made products, with goals, and without a catalogue on disk."""

from __future__ import annotations

from collections.abc import Sequence

from trailnotes.envs.webshop.goals import Goal
from trailnotes.envs.webshop.products import Product, price_tag
from trailnotes.types import Task

HOSTILE = '</button><script>alert("x")</script><img src=//evil.example/x onerror=alert(1)> [SEP] {{ 7777 * 7 }} \x07\u202e&amp;'


def product(number: int, title: str, department: str, **more: object) -> Product:
    """A product; its nouns are the words of its title."""
    prices = more.pop("prices", (float(number),))
    assert isinstance(prices, tuple)
    fields = {
        "description": f"About {title}.", "bullets": (f"{title} lasts", "easy to clean"),
        "attributes": ("easy to clean",), "options": (), "categories": ("home", department),
        "query": title.rpartition(" ")[2],
    }  # fmt: skip
    return Product(
        asin=f"B{number:09d}", title=title, category=department, prices=prices, tag=price_tag(prices),
        nouns=tuple(title.lower().split()), **{**fields, **more},
    )  # type: ignore[arg-type] # fmt: skip


SIZES = ("size", ("small", "large"))
PRODUCTS = (
    product(1, "Green mug", "garden", options=(SIZES, ("glaze", ("matt", "buy now")))),
    product(2, "Blue mug", "garden", prices=(5.0, 9.0), options=(SIZES,)),
    product(3, "Oat biscuits", "grocery", prices=()),
    product(4, f"Mug {HOSTILE}", "beauty", description=HOSTILE, bullets=(HOSTILE, "two"), rating=HOSTILE,
            options=((HOSTILE, (HOSTILE, "plain\nvalue")),)),
    *(product(number, f"Mug number {number}", "fashion") for number in range(5, 35)),
    product(35, "Wool scarf", "fashion", description="", bullets=()),
)  # fmt: skip


class HandMade:
    """Shelves in memory; a search finds what shares a word with it, those that share more before the others."""

    def __init__(self, products: Sequence[Product] = PRODUCTS) -> None:
        self._products = {each.asin: each for each in products}

    def __len__(self) -> int:
        return len(self._products)

    def __getitem__(self, asin: str) -> Product:
        return self._products[asin]

    def at(self, index: int) -> Product:
        return list(self._products.values())[index]

    def search(self, query: str, limit: int = 50) -> list[str]:
        words = {*query.split()}
        shared = {asin: len(words & {*each.title.lower().split()}) for asin, each in self._products.items()}
        return sorted((asin for asin in shared if shared[asin]), key=lambda asin: (-shared[asin], asin))[:limit]


def tasks() -> list[Task]:
    """Goals for the first four products, as the environment lists them."""
    goals = [
        Goal("B000000001", "a green mug with size: large, and price lower than 20.00 dollars", ("easy to clean",),
             (("size", "large"),), 20.0),
        Goal("B000000002", "a blue mug", ("easy to clean",), (("size", "small"),), 30.0),
        Goal("B000000003", "oat biscuits, and price lower than 200.00 dollars", ("easy to clean",), (), 200.0),
        Goal("B000000004", f"a mug, {HOSTILE}", ("easy to clean", HOSTILE), (("", "plain value"),), 1_000_000.0),
    ]  # fmt: skip
    return [
        Task(f"webshop/hand-made/{goal.asin}/{number}", "webshop", 0, "train", goal.to_json())
        for number, goal in enumerate(goals)
    ]
=======
"""A shop of a dozen products made by hand: what the page machine needs of a catalogue, without an index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from trailnotes.envs.webshop.products import Instruction, Product, price_tag

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
    return replace(MUG, asin=asin, **{"tag": price_tag(prices), **changes})


@dataclass(frozen=True)
class Shelves:
    """Finds what shares a word with the query, in the order of the shelf."""

    products: tuple[Product, ...]

    def __len__(self) -> int:
        return len(self.products)

    def __iter__(self) -> Iterator[Product]:
        return iter(self.products)

    def __contains__(self, asin: object) -> bool:
        return any(each.asin == asin for each in self.products)

    def __getitem__(self, asin: str) -> Product:
        return {each.asin: each for each in self.products}[asin]

    def at(self, index: int) -> Product:
        return self.products[index]

    def search(self, query: str, limit: int = 50) -> list[str]:
        words = set(query.split())
        return [each.asin for each in self.products if words & set(re.findall(r"\w+", each.title.lower()))][:limit]

    def having(self, facet: str, value: str) -> list[str]:
        told = {
            "attribute": lambda each: each.attributes,
            "category": lambda each: [each.category],
            "query": lambda each: [each.query],
        }
        return [each.asin for each in self.products if value in told[facet](each)]


DOZEN = Shelves((MUG, LAMP, *(product(f"B0CUP{n:05}", title=f"cup number {n}") for n in range(25))))
>>>>>>> shopenv
