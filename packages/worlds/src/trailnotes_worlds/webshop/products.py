"""Products of the shop, and their parser for the files of the original.

It cleans them as `load_products` in WebShop's `web_agent_site/engine/engine.py` does: option names in lower case,
option values stripped, ``/`` as `` | ``, lower case; a price for each ``$``, two at most. Records that crash the
original raise `ProductError` here, with a reason that an import can count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Facet = Literal["attribute", "category", "query"]  # of `Catalogue.find_by_facet`
GoalKind = Literal["human", "synthetic"]

DEFAULT_PRICE = 100.0  # dollars: the price of the original for a product without one

_ASIN = re.compile(r"[0-9A-Za-z_-]{1,10}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Instruction:
    """Instruction to find a product, the raw material of goals.

    A synthetic one applies to every combination of the product's options; a human one names its own.
    """

    kind: GoalKind
    text: str  # as listed, without a price
    attributes: tuple[str, ...]
    options: tuple[str, ...] = ()  # values, of a human one only
    order: int | None = None  # its place in the original's list of human goals, shuffled with seed 233; None: unknown


@dataclass(frozen=True, slots=True)
class Review:
    """Review of a buyer; the published files hold none."""

    score: str
    title: str
    body: str


@dataclass(frozen=True, slots=True)
class Product:
    """One product, cleaned. Its texts are as listed, without control characters."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    attributes: tuple[str, ...]  # of items_ins: judged by the reward, hidden by default
    options: tuple[tuple[str, tuple[str, ...]], ...]  # (name, values), in lower case; a value may be listed twice
    prices: tuple[float, ...]  # dollars: none, one, or the two ends of a range
    tag: str  # the displayed price: "$10.0", "$10.0 to $20.0"; "$100.0" where none is listed
    category: str  # department: one of `CATEGORIES` in the published files
    categories: tuple[str, ...]  # segments of the product category, the widest first
    query: str  # the search that listed the product, in lower case
    rating: str = ""  # average, as listed
    reviews: tuple[Review, ...] = ()
    nouns: tuple[str, ...] = ()  # noun tokens of the title, lower case, in order; repeats count in the reward
    instructions: tuple[Instruction, ...] = ()

    @property
    def search_text(self) -> str:
        """Text to search in, word for word that of the original's `convert_product_file_format.py`."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options)
        first = self.bullets[0] if self.bullets else ""
        return f"{self.title} {self.description} {first} {options}".lower()


class ProductError(ValueError):
    """Record that is no product, with one of a few reasons that an import counts."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


def parse_product(
    record: Any,
    extra: Mapping[str, Any] | None = None,
    humans: Sequence[Instruction] | None = None,
    nouns: Callable[[str], tuple[str, ...]] | None = None,
) -> Product:
    """Parse one entry of items_shuffle, or of the 1,000-product index, whose prices and texts are cleaned already."""
    if not isinstance(record, dict):
        raise ProductError("not an object")
    asin = record.get("asin")
    if not isinstance(asin, str) or asin == "nan" or not _ASIN.fullmatch(asin):
        raise ProductError("bad asin", repr(asin)[:40])
    title = _parse_text(record, "name")
    prices = parse_prices(record.get("pricing"))
    extra = {} if extra is None else extra
    attributes = extra.get("attributes", record.get("Attributes", []))
    rating = record.get("average_rating")
    is_rated = isinstance(rating, str | int | float) and not isinstance(rating, bool)
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
        rating=clean_text(str(rating)) if is_rated else "",
        reviews=_parse_reviews(record.get("Reviews") or []),
        nouns=nouns(title) if nouns else (),
        instructions=_parse_instructions(record, extra, humans),
    )


def parse_prices(listed: Any) -> tuple[float, ...]:
    """Parse ``"$1,299.00"``, ``"$10 to $20"``, or a list of numbers: none, one or two prices in dollars."""
    if listed is None or listed in ("", []):
        return ()
    try:
        if isinstance(listed, str):
            prices = tuple(float(re.sub(r"[^\d.]", "", part)) for part in listed.split("$")[1:])
        elif listed == [DEFAULT_PRICE]:  # the original puts it in place of none
            return ()
        else:
            prices = tuple(float(price) for price in listed)
    except (TypeError, ValueError, OverflowError):  # the last of a whole number that no float can hold
        prices = ()
    if not prices or not all(math.isfinite(price) and price >= 0 for price in prices):
        raise ProductError("bad pricing", repr(listed)[:60])
    return prices[:2]


def format_price(prices: Sequence[float]) -> str:
    return " to ".join(f"${price}" for price in prices or (DEFAULT_PRICE,))


def parse_human(entry: Any) -> Instruction:
    """Parse an instruction of items_human_ins, or of the list with the order of goals, whose keys are shorter."""
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
    """Replace control characters but tab and newline by spaces, and halves of surrogate pairs by U+FFFD."""
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


def _parse_instructions(
    record: Mapping[str, Any], extra: Mapping[str, Any], humans: Sequence[Instruction] | None
) -> tuple[Instruction, ...]:
    text, listed, instructions = extra.get("instruction"), record.get("instructions") or [], list[Instruction]()
    if text is not None and not isinstance(text, str):
        raise ProductError("bad instruction")
    if text is not None:
        attributes = _parse_texts(extra.get("instruction_attributes"), "bad instruction")
        instructions.append(Instruction("synthetic", clean_text(text), attributes))
    if humans is None and not isinstance(listed, list):
        raise ProductError("bad instruction")
    return (*instructions, *(map(parse_human, listed) if humans is None else humans))


def to_record(product: Product) -> dict[str, Any]:
    record = {name: getattr(product, name) for name in Product.__slots__}  # `asdict` copies every text's tuple
    return record | {name: [asdict(item) for item in record[name]] for name in ("reviews", "instructions")}


def from_record(record: Mapping[str, Any]) -> Product:
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
