"""A product is cleaned as the original cleans it, and what is none says why."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes_worlds.webshop import products
from trailnotes_worlds.webshop.catalogue import encode_product
from trailnotes_worlds.webshop.nouns import extract_nouns_by_rules

RECORD: dict[str, Any] = {
    "asin": "B000000001",
    "name": "Oak Stool",
    "full_description": "A stool.\x07 Of oak.",
    "pricing": "$1,249.50",
    "small_description": ["Solid oak ", "Four legs"],
    "customization_options": {"Color": [{"value": " Dark/Light ", "image": None}, {"value": "RED"}], "Size": None},
    "product_category": "Home › Stools \u203a Wood",
    "average_rating": 4.5,
    "category": "garden",
    "query": " Oak Stools ",
    "images": ["http://x/y.jpg"],
    "brand": "dropped",
}
EXTRA = {"attributes": ["solid wood"], "instruction": "Find oak stools", "instruction_attributes": ["solid wood"]}


def parsed(extra: dict[str, Any] | None = None, **changes: Any) -> products.Product:
    return products.parse_product(RECORD | changes, extra)


def test_a_record_is_cleaned() -> None:
    assert products.parse_product(RECORD, EXTRA, nouns=extract_nouns_by_rules) == products.Product(
        asin="B000000001",
        title="Oak Stool",
        description="A stool.  Of oak.",
        bullets=("Solid oak ", "Four legs"),
        attributes=("solid wood",),
        options=(("color", ("dark | light", "red")),),
        prices=(1249.5,),
        tag="$1249.5",
        category="garden",
        categories=("Home", "Stools", "Wood"),
        query="oak stools",
        rating="4.5",
        nouns=("oak", "stool"),
        instructions=(products.Instruction("synthetic", "Find oak stools", ("solid wood",)),),
    )


def test_the_searched_text_is_that_of_the_original() -> None:
    assert parsed().search_text == "oak stool a stool.  of oak. solid oak  color: dark | light, red"
    bare = parsed(small_description=[], customization_options="", full_description=None)
    assert bare.search_text == "oak stool   "
    both = parsed(customization_options={"A": [{"value": "x"}], "B": [{"value": "y"}]})
    assert both.search_text.endswith("a: x, and b: y")


@pytest.mark.parametrize(
    ("listed", "prices", "tag"),
    [
        *((listed, (), "$100.0") for listed in (None, "", [100.0])), ("$9.99", (9.99,), "$9.99"),
        ("$10.00 to $20.50", (10.0, 20.5), "$10.0 to $20.5"), ("$1$2$3", (1.0, 2.0), "$1.0 to $2.0"),
        ([5, 7.5], (5.0, 7.5), "$5.0 to $7.5"),
    ],
)  # fmt: skip
def test_prices(listed: Any, prices: tuple[float, ...], tag: str) -> None:
    assert (products.parse_prices(listed), products.format_price(prices)) == (prices, tag)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"asin": "B0000000001"}, "bad asin"),
        ({"asin": "../../etc"}, "bad asin"),
        *(({"pricing": each}, "bad pricing") for each in ("9.99", "$1.2.3", [float("nan")], [-1.0], 7, [10**400])),
        ({"full_description": ["x"]}, "bad full_description"),
        ({"customization_options": "yes"}, "bad customization_options"),
        ({"customization_options": {"a": [{"image": "x"}]}}, "bad customization_options"),
        ({"Attributes": "soft"}, "bad attributes"),
        ({"instructions": [{"instruction": 1}]}, "bad instruction"),
    ],
)
def test_what_is_no_product_says_why(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(products.ProductError) as caught:
        parsed(**changes)
    assert caught.value.reason == reason


HALVES = st.text(st.characters(exclude_categories=()), max_size=20)  # of surrogate pairs, which no file can hold


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | HALVES, lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*RECORD, *EXTRA, "value"]), inner, max_size=4)
), max_leaves=8))  # fmt: skip
def test_anything_is_a_product_or_says_why(value: Any) -> None:
    for record in (value, RECORD | value if isinstance(value, dict) else RECORD | {"customization_options": value}):
        try:
            product = products.parse_product(record, value if isinstance(value, dict) else None)
        except products.ProductError:
            continue
        assert products.from_record(json.loads(encode_product(product))) == product
        product.search_text.encode()


@pytest.mark.parametrize(
    ("title", "nouns"),
    [
        ("Oak Stool for the Kitchen, with 4 Legs", "oak stool kitchen legs"),
        ("Women's Running-Shoes/Boots 5.5ft 20ml", "women running shoes boots ft 20ml"),
        ("soft white towels (Pack of 2) - Easy,Quick", "towels pack easy quick"),
        ("Lamp Lamp lamp", "lamp lamp lamp"),
        ("12 x 30 & \u2605", ""),
        ("", ""),
    ],
)
def test_nouns_by_rules(title: str, nouns: str) -> None:
    assert " ".join(extract_nouns_by_rules(title)) == nouns
