"""Goals: what a buyer is told to find. Made of a catalogue and a dataset seed, the same in every process.

Source: Yao et al. 2022 (arXiv 2207.01206), `web_agent_site/engine/goal.py` of the release (commit 64fa2a5). There the
limits of price, and the prices of what costs "$10 to $20", are drawn before the generator is seeded, so that each
process has others; here each is drawn from the dataset seed and the product.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trailnotes.seeds import derive_seed
from trailnotes_worlds.webshop.products import DEFAULT_PRICE, GoalKind, Instruction, Product

PRICE_LIMITS: Final = tuple(10.0 * step for step in range(1, 100))  # dollars
NO_LIMIT: Final = 1_000_000.0  # dollars
_PRICE_LIMIT_TEMPLATE: Final = ", and price lower than {} dollars"
_PRICE_LIMIT_PATTERN: Final = re.compile("(.*)" + _PRICE_LIMIT_TEMPLATE.format(r"(\d+\.\d\d)"), re.DOTALL)
_NUM_NEAREST_LIMITS: Final = 4  # limits above a price that are drawn from
_MAX_COMBINATIONS: Final = 10_000  # of the options of a product: thirty options of fifty values would never end


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal: what is said, and what is judged."""

    asin: str  # of a product that is meant
    instruction: str  # with the limit of price, where there is one
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]  # (name, value); the name is "" in a human goal, which knows values only
    price_upper: float  # dollars

    def to_json(self) -> dict[str, Any]:
        """As JSON values; `from_json` takes them back."""
        return {
            "asin": self.asin,
            "instruction": self.instruction,
            "attributes": list(self.attributes),
            "options": [list(option) for option in self.options],
            "price_upper": self.price_upper,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Goal:
        """The goal of `to_json`.

        Raises:
            ValueError: it is none.
        """
        try:
            options = tuple((str(name), str(value)) for name, value in record["options"])
            asin, instruction = str(record["asin"]), str(record["instruction"])
            attributes = tuple(map(str, record["attributes"]))
            return cls(asin, instruction, attributes, options, float(record["price_upper"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this is no goal of the shop: {error!r}") from error


def split_price_limit(instruction: str) -> tuple[str, float]:
    """An instruction without its limit of price, and that limit in dollars; `NO_LIMIT` where it names none."""
    said = _PRICE_LIMIT_PATTERN.fullmatch(instruction)
    return (said[1], float(said[2])) if said else (instruction, NO_LIMIT)


def draw_price(product: Product, seed: int) -> float:
    """What a product costs, in dollars: of a range, a price that is drawn once for each dataset seed."""
    if not product.prices:
        return DEFAULT_PRICE
    if len(product.prices) == 1:
        return product.prices[0]
    return random.Random(derive_seed("webshop", seed, "price", product.asin)).uniform(*product.prices)


def iter_goals(product: Product, kind: GoalKind, seed: int) -> Iterator[tuple[Goal, int | None]]:
    """The goals of one kind that a product has, each with its place in the original's order where that is known.

    A synthetic instruction makes a goal of each combination of option values, the first 10,000 of them, all with one
    limit of price; a human one makes one goal, unless it wants no attribute.
    """
    for index, instruction in enumerate(product.instructions):
        if instruction.kind != kind or not instruction.attributes:
            continue
        limit = _draw_price_limit(product, index, seed)
        if kind == "human":
            options = tuple(("", value) for value in instruction.options)
            yield _make_goal(product, instruction, instruction.text.strip("."), options, limit), instruction.order
            continue
        for options in _iter_option_combinations(product):
            said = ", and ".join(f"{name}: {value}" for name, value in options)
            yield (
                _make_goal(product, instruction, instruction.text + (f" with {said}" if said else ""), options, limit),
                None,
            )


def _make_goal(
    product: Product, instruction: Instruction, text: str, options: tuple[tuple[str, str], ...], limit: float
) -> Goal:
    said = "" if limit == NO_LIMIT else _PRICE_LIMIT_TEMPLATE.format(f"{limit:.2f}")
    return Goal(product.asin, text + said, instruction.attributes, options, limit)


def _iter_option_combinations(product: Product) -> Iterator[tuple[tuple[str, str], ...]]:
    """One value of each option, options by name."""
    values = dict(product.options)
    names = sorted(values)
    for chosen in itertools.islice(itertools.product(*(values[name] for name in names)), _MAX_COMBINATIONS):
        yield tuple(zip(names, chosen, strict=True))


def _draw_price_limit(product: Product, index: int, seed: int) -> float:
    """The higher of two drawn from the next limits above the price; none where fewer than two are left."""
    price = draw_price(product, seed)
    nearest = [limit for limit in PRICE_LIMITS if limit > price][:_NUM_NEAREST_LIMITS]
    if len(nearest) < 2:
        return NO_LIMIT
    return max(random.Random(derive_seed("webshop", seed, "limit", product.asin, index)).sample(nearest, 2))
