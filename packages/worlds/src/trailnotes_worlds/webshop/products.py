"""One product of the shop, and how it is read from the files of the original.

The cleaning is that of `load_products` in WebShop's `web_agent_site/engine/engine.py`: option names in lower case,
option values stripped, ``/`` as `` | ``, lower case; a price for each ``$``, two at most. What the original would
crash on is a `ProductError` here, with a reason that an import can count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Facet = Literal["attribute", "category", "query"]  # what products can be listed by
GoalKind = Literal["human", "synthetic"]

DEFAULT_PRICE = 100.0  # dollars: what the original asks for a product without a listed price
CATEGORIES = ("beauty", "electronics", "fashion", "garden", "grocery")

_ASIN = re.compile(r"[0-9A-Za-z_-]{1,10}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Instruction:
    """The raw material of goals: what a buyer of this product was told to find.

    A synthetic one is good for every combination of the product's options; a human one names its own.
    """

    kind: GoalKind
    text: str  # as listed, without a price
    attributes: tuple[str, ...]
    options: tuple[str, ...] = ()  # values, of a human one only
    order: int | None = None  # its place in the original's list of human goals, shuffled with seed 233; None: unknown


@dataclass(frozen=True, slots=True)
class Review:
    """What a buyer wrote; the published files hold none."""

    score: str
    title: str
    body: str


@dataclass(frozen=True, slots=True)
class Product:
    """One product, cleaned. Texts are as listed but for control characters."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    attributes: tuple[str, ...]  # of items_ins: judged by the reward, and not shown unless asked for
    options: tuple[tuple[str, tuple[str, ...]], ...]  # (name, values), in lower case; a value may be listed twice
    prices: tuple[float, ...]  # dollars: none, one, or the two ends of a range
    tag: str  # the price as shown: "$10.0", "$10.0 to $20.0"; "$100.0" where none is listed
    category: str  # department: one of `CATEGORIES` in the published files
    categories: tuple[str, ...]  # segments of the product category, the widest first
    query: str  # the words by which the product was found, in lower case
    rating: str = ""  # average, as listed
    reviews: tuple[Review, ...] = ()
    nouns: tuple[str, ...] = ()  # noun tokens of the title, lower case, in order; repeats count in the reward
    instructions: tuple[Instruction, ...] = ()

    @property
    def search_text(self) -> str:
        """The text that is searched, word for word that of the original's `convert_product_file_format.py`."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options)
        first = self.bullets[0] if self.bullets else ""
        return f"{self.title} {self.description} {first} {options}".lower()


class ProductError(ValueError):
    """A record that is no product. `reason` is one of a few that an import counts."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


def parse_product(
    record: Any,
    extra: Mapping[str, Any] | None = None,
    humans: Sequence[Instruction] | None = None,
    nouns: Callable[[str], tuple[str, ...]] | None = None,
) -> Product:
    """One entry of items_shuffle (or of the 1,000-product index, whose prices and texts are cleaned already).

    Args:
        record: the decoded JSON.
        extra: the product's entry in items_ins: attributes, and the synthetic instruction.
        humans: human instructions; None takes those that the record holds itself.
        nouns: title -> noun tokens; none are filled in without it.

    Raises:
        ProductError: what makes it no product.
    """
    if not isinstance(record, dict):
        raise ProductError("not an object")
    asin = record.get("asin")
    if not isinstance(asin, str) or asin == "nan" or not _ASIN.fullmatch(asin):
        raise ProductError("bad asin", repr(asin)[:40])
    title = _parse_text(record, "name")
    prices = parse_prices(record.get("pricing"))
    extra = {} if extra is None else extra
    attributes = extra.get("attributes", record.get("Attributes", []))
    return Product(
        asin=asin,
        title=title,
        description=_parse_text(record, "full_description", ""),
        bullets=_parse_texts(record.get("small_description") or [], "bad small_description", one_is_enough=True),
        attributes=_parse_texts(attributes, "bad attributes"),
        options=_parse_options(record),
        prices=prices,
        tag=format_price(prices),
        category=_parse_text(record, "category"),
        categories=tuple(part.strip() for part in _parse_text(record, "product_category", "").split("\u203a")),
        query=_parse_text(record, "query").lower().strip(),
        rating=_parse_rating(record.get("average_rating")),
        reviews=_parse_reviews(record.get("Reviews") or []),
        nouns=nouns(title) if nouns else (),
        instructions=(
            *_parse_synthetic_instructions(extra),
            *(_parse_human_instructions(record) if humans is None else humans),
        ),
    )


def parse_prices(listed: Any) -> tuple[float, ...]:
    """Dollars of ``"$1,299.00"``, ``"$10 to $20"``, or a list of numbers: none, one, or two.

    Raises:
        ProductError: there is something, and it is no price.
    """
    if listed is None or listed in ("", []):
        return ()
    try:
        if isinstance(listed, str):
            prices = tuple(float(re.sub(r"[^\d.]", "", part)) for part in listed.split("$")[1:])
        elif listed == [DEFAULT_PRICE]:  # what the original has put in place of none
            return ()
        else:
            prices = tuple(float(price) for price in listed)
    except (TypeError, ValueError, OverflowError):  # the last of a whole number that no float can hold
        prices = ()
    if not prices or not all(math.isfinite(price) and price >= 0 for price in prices):
        raise ProductError("bad pricing", repr(listed)[:60])
    return prices[:2]


def format_price(prices: Sequence[float]) -> str:
    """The price as the shop shows it."""
    return " to ".join(f"${price}" for price in prices or (DEFAULT_PRICE,))


def parse_human(entry: Any) -> Instruction:
    """One instruction of items_human_ins, or a line of the list joined with the order of goals, whose keys are shorter.

    Raises:
        ProductError: it is no instruction.
    """
    if not isinstance(entry, dict) or not isinstance(text := entry.get("instruction"), str):
        raise ProductError("bad instruction")
    return Instruction(
        kind="human",
        text=clean_text(text),
        attributes=_parse_texts(entry.get("instruction_attributes", entry.get("attributes")), "bad instruction"),
        options=_parse_texts(entry.get("instruction_options", entry.get("options")) or [], "bad instruction"),
        order=entry["index"] if isinstance(entry.get("index"), int) else None,
    )


def clean_text(text: str) -> str:
    """`text` with a space for each control character but tab and newline, and U+FFFD for half a surrogate pair."""
    return _SURROGATE.sub("\ufffd", _CONTROL.sub(" ", text))


def _parse_text(record: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = record.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise ProductError(f"bad {key}" if key in record else f"no {key}")
    return clean_text(value)


def _parse_texts(value: Any, reason: str, *, one_is_enough: bool = False) -> tuple[str, ...]:
    if one_is_enough and isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ProductError(reason)
    return tuple(map(clean_text, value))


def _parse_options(record: Mapping[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    listed = record.get("customization_options") or {}
    if not isinstance(listed, dict):
        raise ProductError("bad customization_options")
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in listed.items():
        if contents is None:
            continue
        try:
            values = [content["value"].strip().replace("/", " | ").lower() for content in contents]
        except (TypeError, KeyError, AttributeError) as error:
            raise ProductError("bad customization_options", repr(name)[:40]) from error
        options[clean_text(name.lower())] = tuple(map(clean_text, values))
    return tuple(options.items())


def _parse_rating(value: Any) -> str:
    return clean_text(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _parse_reviews(value: Any) -> tuple[Review, ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ProductError("bad Reviews")
    return tuple(
        Review(
            clean_text(str(item.get("score", item.get("stars", "")))),
            clean_text(str(item.get("title", ""))),
            clean_text(str(item.get("body", item.get("review", "")))),
        )
        for item in value
    )


def _parse_synthetic_instructions(extra: Mapping[str, Any]) -> tuple[Instruction, ...]:
    text = extra.get("instruction")
    if text is None:
        return ()
    if not isinstance(text, str):
        raise ProductError("bad instruction")
    attributes = _parse_texts(extra.get("instruction_attributes"), "bad instruction")
    return (Instruction("synthetic", clean_text(text), attributes),)


def _parse_human_instructions(record: Mapping[str, Any]) -> tuple[Instruction, ...]:
    listed = record.get("instructions") or []
    if not isinstance(listed, list):
        raise ProductError("bad instruction")
    return tuple(map(parse_human, listed))


def to_record(product: Product) -> dict[str, Any]:
    """`product` as `json` writes it, the asin first; `from_record` reads that back."""
    record = {name: getattr(product, name) for name in Product.__slots__}  # `asdict` copies every text's tuple
    return record | {name: [asdict(item) for item in record[name]] for name in ("reviews", "instructions")}


def from_record(record: Mapping[str, Any]) -> Product:
    """The product of `to_record`."""
    fields: dict[str, Any] = dict(record)
    for name in ("bullets", "attributes", "prices", "categories", "nouns"):
        fields[name] = tuple(fields[name])
    fields["options"] = tuple((name, tuple(values)) for name, values in fields["options"])
    fields["reviews"] = tuple(Review(**review) for review in fields["reviews"])
    fields["instructions"] = tuple(
        Instruction(**item | {"attributes": tuple(item["attributes"]), "options": tuple(item["options"])})
        for item in fields["instructions"]
    )
    return Product(**fields)
