"""Page machine of the shop: the contents of each page, its actions, and their effects.

A `ShopState` is all that there is to a visit: `Shop` keeps nothing of it,
and `Shop.step` is a function of state and action.

Source: Yao et al. 2022, "WebShop: Towards Scalable Real-World Web Interaction with Grounded Language Agents" (arXiv
2207.01206), and the text environment of its release (commit 64fa2a5), which ``compat = "original"`` follows to its
quirks. ``compat = "fixed"`` mends them: see docs/envs/webshop.md.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, NamedTuple, cast

from trailnotes.types import derive_seed, replace_surrogates
from trailnotes_worlds.webshop.catalogue import Catalogue
from trailnotes_worlds.webshop.products import Facet, Product

Brackets = Literal["round", "markers"]

ELLIPSIS: Final = "…"  # ends a text that was cut
# Marks of the views around buttons and between texts, which product text must not contain.
_MARKER: Final = re.compile(r"\[\s*((?:sep|(?:clicked )?button_?))\s*\]", re.IGNORECASE)
_ROUND: Final = str.maketrans("[]", "()")
# Format characters (Unicode's Cf): invisible, but they turn or join their neighbours.
_INVISIBLE: Final = re.compile(
    "[\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f]"
)
_BREAKS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # control characters, halves of pairs
_READ_AHEAD_FACTOR: Final = 4  # characters read for each displayed one, since some are dropped before the cut


def sanitize_text(text: str, limit: int, brackets: Brackets = "round") -> str:
    """Sanitize a text: join blanks, drop control and invisible characters, cut to `limit` characters."""
    head = text[: limit * _READ_AHEAD_FACTOR]
    if not head.isprintable():
        head = _BREAKS.sub(" ", _INVISIBLE.sub("", head))
    clean = " ".join(head.split())
    if brackets == "round":
        clean = clean.translate(_ROUND)
    elif "[" in clean:
        clean = _MARKER.sub(r"(\1)", clean)
    if len(clean) > limit or len(text) > limit * _READ_AHEAD_FACTOR:
        return clean[: max(0, limit - len(ELLIPSIS))].rstrip() + ELLIPSIS
    return clean


Compat = Literal["fixed", "original"]
PageName = Literal["search", "results", "item", "description", "features", "reviews", "attributes", "done"]
PartKind = Literal["text", "button", "product", "option"]

MAX_RESULTS: Final = 50  # products that a search finds at most
MAX_ACTION_CHARS: Final = 2_000  # characters; a longer action is none
# An offer may hold two short texts, the name of an option and its value, and lower case may double each.
MAX_LABEL_CHARS: Final = MAX_ACTION_CHARS // 4 - 20  # characters
SEARCH, BACK, PREV, NEXT, BUY = "Search", "Back to Search", "< Prev", "Next >", "Buy Now"
_SUB_PAGES: Final = ("description", "features", "reviews", "attributes")
_CATEGORY_SEPARATOR: Final = " \N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} "  # between a category and one within it
_TENTHS: Final = re.compile(r"\.\d(?!\d)")
_ACTION_PATTERN: Final = re.compile(r"\s*(\w+)\s*\[(.*)\]\s*", re.DOTALL)
_FACETS: Final[Mapping[str, Facet]] = {"<a>": "attribute", "<c>": "category", "<q>": "query"}  # of the original


@dataclass(frozen=True, slots=True)
class ShopRules:
    compat: Compat = "fixed"
    products_per_page: int = 10
    products_shown: int = 0  # the first so many of each page, the others are left out; 0 = all
    show_attributes: bool = False  # a page of the hidden attributes that the reward judges
    max_title: int = 300  # characters of a title, an option or another short text; `MAX_LABEL_CHARS` at most
    max_text: int = 20_000  # characters of a description, or of all features, reviews or option values

    @property
    def brackets(self) -> Brackets:
        return "round" if self.compat == "fixed" else "markers"


@dataclass(frozen=True, slots=True)
class ShopState:
    """State of a visit: its page, and the choices that led there."""

    page: PageName = "search"
    query: str = ""  # searched last, in lower case
    number: int = 1  # of the results page, from 1
    asin: str = ""  # of the product looked at, or bought
    options: tuple[tuple[str, str], ...] = ()  # chosen: (name, value) in the order of the first choice
    seen: tuple[str, ...] = ()  # asins looked at since the search page, the first one first


class PageElement(NamedTuple):
    kind: PartKind
    text: str  # cleaned
    target: str = ""  # argument of click[...], in lower case; "" if it cannot be clicked
    clicked: bool = False  # an option that is chosen, a product that was looked at
    option: tuple[str, str] | None = None  # name and value of an option
    asin: str = ""  # of a product


class ShopTransition(NamedTuple):
    state: ShopState
    refused: str = ""  # why the action did nothing; "" if it did something


class Shop:
    """Pages of a catalogue. It holds no visit: any number of visits and threads may share it."""

    def __init__(self, shelves: Catalogue, rules: ShopRules = ShopRules()) -> None:
        self.shelves, self.rules = shelves, rules
        self._original = rules.compat == "original"
        # The actions, the text and the next action ask for the same page; each page of results asks for all results.
        self._body: Callable[[ShopState], tuple[PageElement, ...]] = lru_cache(64)(self._build_body)
        self._found: Callable[[str], tuple[str, ...]] = lru_cache(512)(self._find_asins)

    def list_elements(
        self, state: ShopState, instruction: str = "", score: float | None = None
    ) -> tuple[PageElement, ...]:
        heading = [PageElement("text", "Instruction:"), PageElement("text", instruction)] if instruction else []
        if state.page == "search":
            return (PageElement("text", "WebShop"), *heading, PageElement("button", SEARCH))
        if state.page == "done":
            return tuple(self._iter_done(state, score))
        return (*heading, _make_button(BACK), *self._body(state))

    def list_actions(self, state: ShopState) -> tuple[str, ...]:
        """List the ``click[...]`` actions of a page in the original's order: buttons, products, options.

        The search page has none; there any ``search[...]`` is an action.
        """
        parts = self._list_clickable(state)
        ordered = [p for p in parts if p.kind != "option"] + [p for p in parts if p.kind == "option"]
        return tuple(dict.fromkeys(f"click[{part.target}]" for part in ordered))

    def results(self, state: ShopState) -> tuple[str, ...]:
        first = (state.number - 1) * self.rules.products_per_page
        page = self._found(state.query)[first : first + self.rules.products_per_page]
        return page[: self.rules.products_shown] if self.rules.products_shown else page

    def num_found(self, state: ShopState) -> int:
        return len(self._found(state.query))

    def step(self, state: ShopState, action: str) -> ShopTransition:
        """Take one action, any text. An action that does not fit changes nothing, and `refused` says why."""
        if len(action) > MAX_ACTION_CHARS:
            return ShopTransition(state, f"longer than {MAX_ACTION_CHARS} characters")
        if self._original:
            name, argument = _parse_action_greedily(action)
        elif match := _ACTION_PATTERN.fullmatch(action):
            name, argument = match[1].lower(), " ".join(match[2].lower().split())
        else:
            name = argument = ""
        if name == "click":
            return self._click(state, argument)
        if name != "search":
            return ShopTransition(state, "neither search[...] nor click[...]")
        if not self._original and state.page != "search":
            return ShopTransition(state, "no search bar on this page")
        if not argument:
            return ShopTransition(state, "an empty search")
        return ShopTransition(ShopState("results", replace_surrogates(argument), seen=state.seen))

    def _click(self, state: ShopState, target: str) -> ShopTransition:
        matches = [part for part in self._list_clickable(state) if part.target == target]
        if not matches:
            return ShopTransition(state, "nothing of that name to click")
        button = next((part for part in matches if part.kind != "option"), None)
        if button is None:
            assert matches[-1].option is not None
            name, value = matches[-1].option  # of equal texts the original sees the last one
            options = tuple({**dict(state.options), name: value}.items())
            return ShopTransition(replace(state, page="item", options=options))
        if button.kind == "product":
            seen = state.seen if button.asin in state.seen else (*state.seen, button.asin)
            return ShopTransition(replace(state, page="item", asin=button.asin, seen=seen))
        return ShopTransition(_press_button(state, button.text))

    def _list_clickable(self, state: ShopState) -> list[PageElement]:
        if state.page in ("search", "done"):
            return []
        return [_make_button(BACK), *(part for part in self._body(state) if part.target)]

    def _build_body(self, state: ShopState) -> tuple[PageElement, ...]:
        if state.page == "results":
            return tuple(self._iter_results(state))
        product = self.shelves[state.asin]
        return tuple(self._iter_item(state, product) if state.page == "item" else self._iter_sub_page(state, product))

    def _iter_results(self, state: ShopState) -> Iterator[PageElement]:
        total = self.num_found(state)
        yield PageElement("text", f"Page {state.number} (Total results: {total})")
        if state.number > 1:
            yield _make_button(PREV)
        if self._original or state.number * self.rules.products_per_page < total:
            yield _make_button(NEXT)
        for asin in self.results(state):
            product = self.shelves[asin]
            yield PageElement("product", asin, asin.lower(), asin in state.seen, asin=asin)
            yield PageElement("text", self._shorten(product.title))
            yield PageElement("text", self._format_price(product))

    def _iter_item(self, state: ShopState, product: Product) -> Iterator[PageElement]:
        yield _make_button(PREV)
        sub_pages = [name.title() for name in (_SUB_PAGES if self.rules.show_attributes else _SUB_PAGES[:-1])]
        labels = self._label_options(product, {name.lower() for name in (BACK, PREV, BUY, *sub_pages)})
        chosen = dict(state.options)
        encoded = json.dumps(chosen)
        for name, values in product.options:
            each = values if self._original else dict.fromkeys(values)
            visible = [value for value in each if (name, value) in labels]
            if visible or self._original:
                yield PageElement("text", self._shorten(name))
            for value in visible:
                label = labels[name, value]
                # The original looks for the text in its URL: under any name, and never where it is not ASCII.
                clicked = f'"{value}"' in encoded if self._original else chosen.get(name) == value
                yield PageElement("option", label, label.lower(), clicked, (name, value))
        yield PageElement("text", self._shorten(product.title))
        yield PageElement("text", f"Price: {self._format_price(product)}")
        rating = "" if self._original else self._shorten(product.rating)  # the release looks it up in a file it lacks
        yield PageElement("text", f"Rating: {rating or 'N.A.'}")
        for name in sub_pages:
            yield _make_button(name)
        yield _make_button(BUY)

    def _label_options(self, product: Product, taken: set[str]) -> dict[tuple[str, str], str]:
        """Label each option value; with compat "fixed" by its option too, if the label would be ambiguous."""
        labels: dict[tuple[str, str], str] = {}
        left = self.rules.max_text
        for pair in dict.fromkeys((name, value) for name, values in product.options for value in values):
            text = self._shorten(pair[1])
            left -= len(text)
            if left < 0:
                break
            if text:
                labels[pair] = text
        if self._original:
            return labels
        counts = Counter(text.lower() for text in labels.values())
        known, tries = {*taken, *counts}, Counter[str]()
        for pair, text in labels.items():
            if text.lower() in taken or counts[text.lower()] > 1:
                label = plain = f"{self._shorten(pair[0])}: {text}"
                while label.lower() in known:
                    tries[plain] += 1
                    label = f"{plain} ({tries[plain] + 1})"
                known.add(label.lower())
                labels[pair] = label
        return labels

    def _iter_sub_page(self, state: ShopState, product: Product) -> Iterator[PageElement]:
        yield _make_button(PREV)
        path = _CATEGORY_SEPARATOR.join(product.categories)
        texts = {
            "description": [product.description],
            "features": product.bullets,
            "reviews": [text for r in product.reviews for text in (f'"{r.title}"', r.score, r.body)],
            "attributes": [*product.attributes, product.category, product.query, path],
        }
        left = self.rules.max_text
        for text in texts[state.page]:
            if left and (visible := sanitize_text(text, left, self.rules.brackets)):
                left -= len(visible)
                yield PageElement("text", visible)
        if left == self.rules.max_text and not self._original:
            yield PageElement("text", f"No {state.page}.")

    def _iter_done(self, state: ShopState, score: float | None) -> Iterator[PageElement]:
        texts = ["Thank you for shopping with us!"]
        if self._original:
            chosen = json.dumps(dict(state.options), sort_keys=True)
            texts += ["Your code:", "None", "(Paste it in your MTurk interface.)", "Purchased", "asin", state.asin]
            texts += ["options", self._shorten(chosen), "attrs", "None", "category", "None", "query", "None"]
            texts += ["product category", "None", "Target", "asin", "options", "attrs", "price upper"]
            texts += ["instuction text", "category", "product category", "query", "Goal", "None", "Reward"]
            texts += ["Your score (min 0.0, max 1.0)", str(score), "Reward Details", "None"]
        return (PageElement("text", text) for text in texts)

    def _format_price(self, product: Product) -> str:
        return product.tag if self._original else _TENTHS.sub(r"\g<0>0", product.tag)  # the original has "$17.5"

    def _shorten(self, text: str) -> str:
        return sanitize_text(text, self.rules.max_title, self.rules.brackets)

    def _find_asins(self, query: str) -> tuple[str, ...]:
        """Search for a query; with compat "original", some first words are commands.

        For ``<r>`` the original draws anew for each page; here the query is the seed, so that a page stays the same.
        Its text environment fails at ``<a>``, which only its site knows.
        """
        word, _, rest = query.partition(" ")
        if self._original and word == "<r>":
            rng, count = random.Random(derive_seed("webshop", query)), len(self.shelves)
            return tuple(self.shelves.at(index).asin for index in rng.sample(range(count), min(MAX_RESULTS, count)))
        if self._original and word in _FACETS:
            value = rest.partition(" ")[0] if word == "<c>" else rest
            return tuple(self.shelves.find_by_facet(_FACETS[word], value.strip()))
        return tuple(self.shelves.search(query, MAX_RESULTS))


def _parse_action_greedily(action: str) -> tuple[str, str]:
    """Parse the words before and within the last bracket of the first line, as the original's greedy pattern does."""
    line = action.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(1, end - 1))
    return ("", "") if start < 1 else (line[:start], line[start + 1 : end].lower())


def _make_button(text: str) -> PageElement:
    return PageElement("button", text, text.lower())


def _press_button(state: ShopState, text: str) -> ShopState:
    if text == BACK:
        return ShopState()
    if text in (NEXT, PREV) and state.page == "results":
        return replace(state, number=state.number + (1 if text == NEXT else -1))
    if text == PREV and state.page == "item":
        return replace(state, page="results", asin="", options=())
    if text == PREV:
        return replace(state, page="item")
    return replace(state, page="done" if text == BUY else cast("PageName", text.lower()))
