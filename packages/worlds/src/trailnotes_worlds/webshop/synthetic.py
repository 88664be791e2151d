"""Synthetic catalogue of five departments, generated from a seed: the shop needs no download.

It is as hard as a real catalogue: options that multiply, ranges and missing prices, near-duplicates that differ in one
attribute or in the price, and titles that name another kind of product than the one that is sold.
"""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from trailnotes.storage.files import get_cache_dir
from trailnotes.types import derive_seed
from trailnotes_worlds.search.mapped import open_or_write
from trailnotes_worlds.webshop.catalogue import VERSION, Catalogue, write_catalogue
from trailnotes_worlds.webshop.nouns import extract_nouns_by_rules
from trailnotes_worlds.webshop.products import Instruction, Product, format_price

NAME = "synthetic"
NUM_PRODUCTS = 1200
GENERATOR_VERSION = 2  # of the generator: another one makes another shop

_TWIN_SHARE, _MISLEADING_SHARE, _NO_PRICE_SHARE, _PRICE_RANGE_SHARE = 0.15, 0.08, 0.1, 0.2  # shares of the products
_SYNTHETIC_GOAL_SHARE, _HUMAN_GOAL_SHARE = 0.5, 0.35  # shares of the products with an instruction of that kind

_WORDS = tomllib.loads(Path(__file__).with_name("synthetic.toml").read_text(encoding="utf-8"))
_NUM_ASINS = math.prod(map(len, _WORDS["asin_words"]))
_STRIDE = 63_287  # between neighbours: shares no factor with `_NUM_ASINS`, and changes every word


@dataclass(frozen=True)
class ProductKind:
    """Kind of products, as described in ``synthetic.toml``."""

    category: str
    path: tuple[str, ...]
    name: str
    plural: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    prices: tuple[int, int]


def open_catalogue(place: str | Path) -> Catalogue:
    """Open the catalogue of a folder; ``"synthetic"`` is generated at its first use and kept in the user's cache."""
    return open_synthetic() if str(place) == NAME else Catalogue.open(place)


def open_synthetic(count: int = NUM_PRODUCTS, seed: int = 0) -> Catalogue:
    """Open the synthetic catalogue in the user's cache, generated if need be. Raises as `open_catalogue`."""
    folder = get_cache_dir("webshop") / f"{NAME}-{GENERATOR_VERSION}.{VERSION}-{count}-{seed}"
    return open_or_write(
        folder, lambda facts: write_catalogue(folder, make_products(count, seed), facts), Catalogue.open
    )


def make_products(count: int = NUM_PRODUCTS, seed: int = 0) -> list[Product]:
    """Generate the first `count` products of a seed, the same in every process."""
    rng = random.Random(derive_seed("webshop synthetic", GENERATOR_VERSION, seed))
    first = rng.randrange(_NUM_ASINS)
    numbers = range(first, first + count * _STRIDE, _STRIDE)
    products = [
        replace(product, asin=_make_asin(number), nouns=extract_nouns_by_rules(product.title))
        for number, product in zip(numbers, _iter_products(rng), strict=False)
    ]
    order = list(range(sum(item.kind == "human" for product in products for item in product.instructions)))
    rng.shuffle(order)
    places = iter(order)
    for i, product in enumerate(products):
        items = (replace(item, order=next(places)) if item.kind == "human" else item for item in product.instructions)
        products[i] = replace(product, instructions=tuple(items))
    return products


@cache
def load_kinds() -> tuple[ProductKind, ...]:
    lines = [[part.strip() for part in line.split("|")] for line in _WORDS["kinds"].strip().splitlines()]
    kinds = []
    for (path, name, plural), (listed, options, prices) in zip(lines[::2], lines[1::2], strict=True):
        category, *rest = path.split(" > ")
        low, high = map(int, prices.split("-"))
        axes = tuple(axis for axis in _WORDS["options"] if axis in options)
        axes = tuple(axis for axis in axes if axis != "size" or "shoe size" not in axes)
        kinds.append(ProductKind(category, tuple(rest), name, plural, tuple(listed.split(", ")), axes, (low, high)))
    return tuple(kinds)


def _iter_products(rng: random.Random) -> Iterator[Product]:
    while True:
        shelf = list(load_kinds())
        rng.shuffle(shelf)
        for kind in shelf:
            product = _make_product(kind, rng)
            yield product
            if rng.random() < _TWIN_SHARE:
                yield _make_twin(product, kind, rng)


def _make_product(kind: ProductKind, rng: random.Random) -> Product:
    brand, series = rng.choice(_WORDS["brands"]), rng.choice(_WORDS["series"])
    attributes = tuple(rng.sample(kind.attributes, rng.randint(2, min(4, len(kind.attributes)))))
    options = _make_options(kind, rng)
    prices = _draw_prices(kind, rng)
    return Product(
        asin="",
        title=_make_title(kind, brand, series, attributes, rng),
        description=rng.choice(_WORDS["description_templates"]).format(
            Brand=brand, Series=series, kinds=kind.plural, first=attributes[0]
        ),
        bullets=_make_bullets(attributes, rng),
        attributes=attributes,
        options=options,
        prices=prices,
        tag=format_price(prices),
        category=kind.category,
        categories=(*kind.path, kind.plural.title()),
        query=kind.plural,
        rating=rng.choice(("", f"{rng.randint(25, 50) / 10}")),
        instructions=_make_instructions(kind, attributes, options, rng),
    )


def _make_twin(product: Product, kind: ProductKind, rng: random.Random) -> Product:
    """Copy a product with another price and one attribute replaced, everywhere but in the title."""
    old = rng.choice(product.attributes)
    new = rng.choice([attribute for attribute in kind.attributes if attribute not in product.attributes])
    attributes = tuple(new if attribute == old else attribute for attribute in product.attributes)
    prices = _draw_prices(kind, rng)
    return replace(
        product,
        description=product.description.replace(old, new),
        bullets=_make_bullets(attributes, rng),
        attributes=attributes,
        prices=prices,
        tag=format_price(prices),
        instructions=_make_instructions(kind, attributes, product.options, rng),
    )


def _make_asin(number: int) -> str:
    """Write a number with a word for each digit, which a small model reads and writes in a few tokens."""
    digits = []
    for each in _WORDS["asin_words"]:
        number, digit = divmod(number, len(each))
        digits.append(each[digit])
    return "".join(digits)


def _make_title(kind: ProductKind, brand: str, series: str, attributes: tuple[str, ...], rng: random.Random) -> str:
    if rng.random() < _MISLEADING_SHARE:
        other = rng.choice([other for other in load_kinds() if other.path != kind.path])
        form: str = rng.choice(_WORDS["misleading_titles"])
        return form.format(Brand=brand, Series=series, Kind=kind.name.title(), Others=other.plural.title())
    named = ", ".join(attribute.title() for attribute in attributes[: rng.randint(1, 2)])
    return rng.choice((f"{brand} {series} {kind.name.title()}, {named}", f"{brand} {kind.name.title()} - {named}"))


def _make_bullets(attributes: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
    forms = rng.sample(_WORDS["bullet_templates"], len(attributes))
    pairs = zip(forms, rng.sample(attributes, len(attributes)), strict=True)
    bullets = [form.format(Attribute=attribute.capitalize()) for form, attribute in pairs]
    return (*bullets, rng.choice(_WORDS["bullet_endings"]))


def _make_options(kind: ProductKind, rng: random.Random) -> tuple[tuple[str, tuple[str, ...]], ...]:
    options = []
    for axis in kind.options:
        values = _WORDS["options"][axis]
        chosen = set(rng.sample(values, rng.randint(2, min(5, len(values)))))
        if rng.random() < 0.85:
            options.append((axis, tuple(value for value in values if value in chosen)))
    return tuple(options)


def _draw_prices(kind: ProductKind, rng: random.Random) -> tuple[float, ...]:
    low, high = kind.prices
    price = rng.randint(low, high) - rng.choice((0.01, 0.05, 0.5))
    draw = rng.random()
    if draw < _NO_PRICE_SHARE:
        return ()
    return (price,) if draw < 1 - _PRICE_RANGE_SHARE else (price, round(price * rng.uniform(1.2, 1.9), 2))


def _make_instructions(
    kind: ProductKind, attributes: tuple[str, ...], options: tuple[tuple[str, tuple[str, ...]], ...], rng: random.Random
) -> tuple[Instruction, ...]:
    instructions = []
    if rng.random() < _SYNTHETIC_GOAL_SHARE:
        wanted = _sample_attributes(attributes, rng)
        instructions.append(Instruction("synthetic", f"Find {kind.plural} that are {', '.join(wanted)}", wanted))
    if rng.random() < _HUMAN_GOAL_SHARE:
        wanted = _sample_attributes(attributes, rng)[:2]
        chosen = tuple(rng.choice(values) for _, values in options if rng.random() < 0.7)
        tail = rng.choice(_WORDS["option_templates"]).format(" and ".join(chosen)) if chosen else ""
        form = rng.choice(_WORDS["instruction_templates"])
        wish = form.format(kinds=kind.plural, that=" and ".join(wanted), options=tail)
        instructions.append(Instruction("human", f"{wish}.", wanted, chosen))
    return tuple(instructions)


def _sample_attributes(attributes: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
    return tuple(rng.sample(attributes, rng.randint(1, min(3, len(attributes)))))
