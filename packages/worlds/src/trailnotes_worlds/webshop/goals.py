"""Goals of buyers, made of a catalogue and a dataset seed, the same in every process.

Source: Yao et al. 2022 (arXiv 2207.01206), `web_agent_site/engine/goal.py` of the release (commit 64fa2a5). It draws
price limits, and the prices of "$10 to $20", before it seeds the generator, so that each process has others; here the
dataset seed and the product determine each.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trailnotes.types import derive_seed
from trailnotes_worlds.webshop.products import DEFAULT_PRICE, GoalKind, Product

PRICE_LIMITS: Final = tuple(10.0 * step for step in range(1, 100))  # dollars
NO_LIMIT: Final = 1_000_000.0  # dollars
_PRICE_LIMIT_TEMPLATE: Final = ", and price lower than {} dollars"
_PRICE_LIMIT_PATTERN: Final = re.compile("(.*)" + _PRICE_LIMIT_TEMPLATE.format(r"(\d+\.\d\d)"), re.DOTALL)
_NUM_NEAREST_LIMITS: Final = 4  # limits above a price that are drawn from
_MAX_COMBINATIONS: Final = 10_000  # of the options of a product: thirty options of fifty values would never end


@dataclass(frozen=True, slots=True)
class Goal:
    asin: str  # of the wanted product
    instruction: str  # with the price limit, if there is one
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]  # (name, value); the name is "" in a human goal, which knows values only
    price_upper: float  # dollars

    def to_json(self) -> dict[str, Any]:
        record = {"asin": self.asin, "instruction": self.instruction, "attributes": list(self.attributes)}
        return record | {"options": [list(option) for option in self.options], "price_upper": self.price_upper}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Goal:
        """Read the goal of `to_json`. Raises `KeyError`, `TypeError` or `ValueError` if it is none."""
        options = tuple((str(name), str(value)) for name, value in record["options"])
        asin, instruction = str(record["asin"]), str(record["instruction"])
        return cls(asin, instruction, tuple(map(str, record["attributes"])), options, float(record["price_upper"]))


def split_price_limit(instruction: str) -> tuple[str, float]:
    """Split an instruction into the rest and its price limit in dollars, `NO_LIMIT` if it names none."""
    match = _PRICE_LIMIT_PATTERN.fullmatch(instruction)
    return (match[1], float(match[2])) if match else (instruction, NO_LIMIT)


def draw_price(product: Product, seed: int) -> float:
    """Return the price of a product in dollars; for a range, a price drawn once for each dataset seed."""
    if not product.prices:
        return DEFAULT_PRICE
    if len(product.prices) == 1:
        return product.prices[0]
    return random.Random(derive_seed("webshop", seed, "price", product.asin)).uniform(*product.prices)


def iter_goals(product: Product, kind: GoalKind, seed: int) -> Iterator[tuple[Goal, int | None]]:
    """Generate the goals of one kind of a product, each with its place in the original's order or None.

    A synthetic instruction makes a goal of each combination of option values, the first 10,000 of them, all with one
    price limit; a human one makes one goal, unless it wants no attribute.
    """
    for index, instruction in enumerate(product.instructions):
        if instruction.kind != kind or not instruction.attributes:
            continue
        limit = _draw_price_limit(product, index, seed)
        tail = "" if limit == NO_LIMIT else _PRICE_LIMIT_TEMPLATE.format(f"{limit:.2f}")
        if kind == "human":
            options = tuple(("", value) for value in instruction.options)
            text = instruction.text.strip(".") + tail
            yield Goal(product.asin, text, instruction.attributes, options, limit), instruction.order
            continue
        values = dict(product.options)
        names = sorted(values)
        for chosen in itertools.islice(itertools.product(*(values[name] for name in names)), _MAX_COMBINATIONS):
            options = tuple(zip(names, chosen, strict=True))
            choices = ", and ".join(f"{name}: {value}" for name, value in options)
            text = instruction.text + (f" with {choices}" if choices else "") + tail
            yield Goal(product.asin, text, instruction.attributes, options, limit), None


def _draw_price_limit(product: Product, index: int, seed: int) -> float:
    """Draw two of the next limits above the price and take the higher; no limit if fewer than two are left."""
    price = draw_price(product, seed)
    nearest = [limit for limit in PRICE_LIMITS if limit > price][:_NUM_NEAREST_LIMITS]
    if len(nearest) < 2:
        return NO_LIMIT
    return max(random.Random(derive_seed("webshop", seed, "limit", product.asin, index)).sample(nearest, 2))
