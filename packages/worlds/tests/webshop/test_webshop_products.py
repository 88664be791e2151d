"""A product is cleaned as the original cleans it, and what is none says why."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.errors import MissingExtraError
from trailnotes_worlds.webshop.nouns import extract_nouns_by_rules, make_noun_tagger
from trailnotes_worlds.webshop.products import (
    Instruction,
    Product,
    ProductError,
    Review,
    format_price,
    from_record,
    parse_human,
    parse_prices,
    parse_product,
)
from trailnotes_worlds.webshop.writing import encode_product

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


def parsed(extra: dict[str, Any] | None = None, **changes: Any) -> Product:
    return parse_product(RECORD | changes, extra)


def test_a_record_is_cleaned() -> None:
    assert parse_product(RECORD, EXTRA, nouns=extract_nouns_by_rules) == Product(
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
        instructions=(Instruction("synthetic", "Find oak stools", ("solid wood",)),),
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
        (None, (), "$100.0"),
        ("", (), "$100.0"),
        ("$9.99", (9.99,), "$9.99"),
        ("$10.00 to $20.50", (10.0, 20.5), "$10.0 to $20.5"),
        ("$1$2$3", (1.0, 2.0), "$1.0 to $2.0"),
        ([100.0], (), "$100.0"),
        ([5, 7.5], (5.0, 7.5), "$5.0 to $7.5"),
    ],
)
def test_prices(listed: Any, prices: tuple[float, ...], tag: str) -> None:
    assert (parse_prices(listed), format_price(prices)) == (prices, tag)


@pytest.mark.parametrize(
    "listed", ["9.99", "$", "$1.2.3", [float("nan")], [-1.0], ["x"], {"a": 1}, 7, "$" + "9" * 400, [10**400]]
)
def test_what_is_no_price_is_refused(listed: Any) -> None:
    with pytest.raises(ProductError, match="bad pricing"):
        parse_prices(listed)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"asin": None}, "bad asin"),
        ({"asin": "nan"}, "bad asin"),
        ({"asin": "B0000000001"}, "bad asin"),
        ({"asin": "../../etc"}, "bad asin"),
        ({"name": 7}, "bad name"),
        ({"full_description": ["x"]}, "bad full_description"),
        ({"small_description": [1]}, "bad small_description"),
        ({"customization_options": "yes"}, "bad customization_options"),
        ({"customization_options": {"a": [{"image": "x"}]}}, "bad customization_options"),
        ({"customization_options": {"a": 3}}, "bad customization_options"),
        ({"query": None}, "bad query"),
        ({"Reviews": [1]}, "bad Reviews"),
        ({"Attributes": "soft"}, "bad attributes"),
        ({"instructions": [{"instruction": 1}]}, "bad instruction"),
        ({"instructions": {}}, None),
    ],
)
def test_what_is_no_product_says_why(changes: dict[str, Any], reason: str | None) -> None:
    if reason is None:
        parsed(**changes)
        return
    with pytest.raises(ProductError) as caught:
        parsed(**changes)
    assert caught.value.reason == reason


@pytest.mark.parametrize("key", ["name", "category", "query", "asin"])
def test_a_record_without_a_needed_field_is_refused(key: str) -> None:
    with pytest.raises(ProductError, match=key):
        parse_product({name: value for name, value in RECORD.items() if name != key})


HALVES = st.text(st.characters(exclude_categories=()), max_size=20)  # of surrogate pairs, which no file can hold


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | HALVES, lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*RECORD, *EXTRA, "value"]), inner, max_size=4)
), max_leaves=8))  # fmt: skip
def test_anything_is_a_product_or_says_why(value: Any) -> None:
    for record in (value, RECORD | value if isinstance(value, dict) else RECORD | {"customization_options": value}):
        try:
            product = parse_product(record, value if isinstance(value, dict) else None)
        except ProductError:
            continue
        assert from_record(json.loads(encode_product(product))) == product
        product.search_text.encode()


def test_half_a_surrogate_pair_stops_no_import() -> None:
    review = {"score": "\udfff", "title": "\ud800", "body": "\udc00"}
    product = parsed(average_rating="4\ud800", Reviews=[review])
    assert (product.rating, product.reviews) == ("4\ufffd", (Review("\ufffd", "\ufffd", "\ufffd"),))
    assert from_record(json.loads(encode_product(product))) == product


def test_human_instructions_of_either_form() -> None:
    original = {"instruction": "a stool", "instruction_attributes": ["oak"], "instruction_options": ["red"]}
    joined = {"instruction": "a stool", "attributes": ["oak"], "options": ["red"], "index": 7}
    assert parse_human(original) == Instruction("human", "a stool", ("oak",), ("red",))
    assert parse_human(joined) == Instruction("human", "a stool", ("oak",), ("red",), 7)
    own, given_ = {"instructions": [original]}, Instruction("human", "another", ("oak",))
    assert [item.text for item in parse_product(RECORD | own).instructions] == ["a stool"]
    assert [item.text for item in parse_product(RECORD | own, humans=[given_]).instructions] == ["another"]


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


def test_nouns_by_spacy_say_what_is_missing() -> None:
    try:
        tagger = make_noun_tagger("spacy")
    except MissingExtraError as error:
        assert "en_core_web_sm" in str(error)  # noqa: PT017
    else:
        assert "table" in tagger("A small table for the kitchen")
