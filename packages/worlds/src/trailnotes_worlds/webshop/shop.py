"""The page machine: what each page holds, what can be done there, and where that leads.

One source for the text environment and for the site. A `State` is all that a visit is; `Shop` answers for it, and
keeps nothing of it: `Shop.step` is a function of state and action.

Source: Yao et al. 2022, "WebShop: Towards Scalable Real-World Web Interaction with Grounded Language Agents" (arXiv
2207.01206), and the text environment of its release (commit 64fa2a5), which ``compat = "original"`` follows to its
quirks. ``compat = "fixed"`` mends them: see docs/envs/webshop.md.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, NamedTuple, Protocol, cast

from trailnotes.seeds import derive_seed
from trailnotes.types import replace_surrogates
from trailnotes_worlds.webshop.products import Facet, GoalKind, Product
from trailnotes_worlds.webshop.texts import Brackets, sanitize_text

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


class ProductCatalogue(Protocol):
    """What the shop needs of a catalogue; `Catalogue` is one."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Product]: ...

    def __contains__(self, asin: object) -> bool: ...

    def __getitem__(self, asin: str) -> Product: ...

    def at(self, index: int) -> Product:
        """By its place in the catalogue."""
        ...

    def search(self, query: str, limit: int = MAX_RESULTS) -> list[str]:
        """The asins that fit best, the best one first."""
        ...

    def iter_by_goal_kind(self, kinds: Iterable[GoalKind]) -> Iterator[Product]:
        """The products with an instruction of one of these kinds."""
        ...

    def find_by_facet(self, facet: Facet, value: str) -> list[str]:
        """The asins with exactly this attribute, of this department, or found by this query."""
        ...


@dataclass(frozen=True, slots=True)
class ShopRules:
    """How the shop behaves, and how much of a product it shows."""

    compat: Compat = "fixed"
    products_per_page: int = 10
    products_shown: int = 0  # the first so many of each page, the others are left out; 0 = all
    show_attributes: bool = False  # a page of what the reward judges hidden attributes by
    max_title: int = 300  # characters of a title, an option or another short text; `MAX_LABEL_CHARS` at most
    max_text: int = 20_000  # characters of a description, or of all features, reviews or option values

    @property
    def brackets(self) -> Brackets:
        """How product text may write square brackets."""
        return "round" if self.compat == "fixed" else "markers"


@dataclass(frozen=True, slots=True)
class ShopState:
    """A visit: which page, and what led there."""

    page: PageName = "search"
    query: str = ""  # searched last, in lower case
    number: int = 1  # of the results page, from 1
    asin: str = ""  # of the product looked at, or bought
    options: tuple[tuple[str, str], ...] = ()  # chosen: (name, value) in the order of the first choice
    seen: tuple[str, ...] = ()  # asins looked at since the search page, the first one first


class PageElement(NamedTuple):
    """One text of a page, in the order of the page."""

    kind: PartKind
    text: str  # cleaned, as shown
    target: str = ""  # what click[...] says, in lower case; "" for what cannot be clicked
    clicked: bool = False  # an option that is chosen, a product that was looked at
    option: tuple[str, str] | None = None  # name and value of an option
    asin: str = ""  # of a product


class ShopTransition(NamedTuple):
    """What an action led to."""

    state: ShopState
    refused: str = ""  # why nothing was done; "" where something was


class Shop:
    """A catalogue behind pages. Holds no visit: any number of them may share it, and threads may."""

    def __init__(self, shelves: ProductCatalogue, rules: ShopRules = ShopRules()) -> None:
        self.shelves, self.rules = shelves, rules
        self._original = rules.compat == "original"
        # A page is asked for by its offers, its text and the next action; results are by each page of them.
        self._body: Callable[[ShopState], tuple[PageElement, ...]] = lru_cache(64)(self._build_body)
        self._found: Callable[[str], tuple[str, ...]] = lru_cache(512)(self._find_asins)

    # -- what a page holds

    def list_elements(
        self, state: ShopState, instruction: str = "", score: float | None = None
    ) -> tuple[PageElement, ...]:
        """The page of `state`, from the top down.

        Args:
            state: of the visit.
            instruction: shown where it is not "".
            score: of the purchase; the original's last page tells it, ours does not.
        """
        told = [PageElement("text", "Instruction:"), PageElement("text", instruction)] if instruction else []
        if state.page == "search":
            return (PageElement("text", "WebShop"), *told, PageElement("button", SEARCH))
        if state.page == "done":
            return tuple(self._iter_done(state, score))
        return (*told, _make_button(BACK), *self._body(state))

    def list_actions(self, state: ShopState) -> tuple[str, ...]:
        """What can be clicked now: ``click[...]`` each, in the original's order: buttons, products, options.

        On the search page there is nothing to click, and any ``search[...]`` can be said instead.
        """
        parts = self._list_clickable(state)
        ordered = [p for p in parts if p.kind != "option"] + [p for p in parts if p.kind == "option"]
        return tuple(dict.fromkeys(f"click[{part.target}]" for part in ordered))

    def can_search(self, state: ShopState) -> bool:
        """Whether ``search[...]`` does something here."""
        return self._original or state.page == "search"

    def results(self, state: ShopState) -> tuple[str, ...]:
        """The asins on a results page."""
        first = (state.number - 1) * self.rules.products_per_page
        page = self._found(state.query)[first : first + self.rules.products_per_page]
        return page[: self.rules.products_shown] if self.rules.products_shown else page

    def num_found(self, state: ShopState) -> int:
        """How many products the search of `state` has found, on all pages."""
        return len(self._found(state.query))

    # -- what an action does

    def step(self, state: ShopState, action: str) -> ShopTransition:
        """Take one action, of any text. What does not fit changes nothing, and the turn says why."""
        if len(action) > MAX_ACTION_CHARS:
            return ShopTransition(state, f"longer than {MAX_ACTION_CHARS} characters")
        name, argument = self._parse_action(action)
        if name == "search":
            return self._open_results(state, argument)
        if name == "click":
            return self._click(state, argument)
        return ShopTransition(state, "neither search[...] nor click[...]")

    def _parse_action(self, action: str) -> tuple[str, str]:
        if self._original:
            return _parse_action_greedily(action)
        match = _ACTION_PATTERN.fullmatch(action)
        return (match[1].lower(), " ".join(match[2].lower().split())) if match else ("", "")

    def _open_results(self, state: ShopState, query: str) -> ShopTransition:
        if not self.can_search(state):
            return ShopTransition(state, "no search bar on this page")
        if not query:
            return ShopTransition(state, "an empty search")
        return ShopTransition(ShopState("results", replace_surrogates(query), seen=state.seen))

    def _click(self, state: ShopState, target: str) -> ShopTransition:
        matches = [part for part in self._list_clickable(state) if part.target == target]
        if not matches:
            return ShopTransition(state, "nothing of that name to click")
        button = next((part for part in matches if part.kind != "option"), None)
        if button is None:
            assert matches[-1].option is not None
            name, value = matches[-1].option  # of equal texts the original sees the last one
            return ShopTransition(
                replace(state, page="item", options=tuple({**dict(state.options), name: value}.items()))
            )
        if button.kind == "product":
            seen = state.seen if button.asin in state.seen else (*state.seen, button.asin)
            return ShopTransition(replace(state, page="item", asin=button.asin, seen=seen))
        return ShopTransition(_press_button(state, button.text))

    # -- bodies of pages

    def _list_clickable(self, state: ShopState) -> list[PageElement]:
        if state.page in ("search", "done"):
            return []
        return [_make_button(BACK), *(part for part in self._body(state) if part.target)]

    def _build_body(self, state: ShopState) -> tuple[PageElement, ...]:
        """All below "Back to Search"."""
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
        told = json.dumps(chosen)
        for name, values in product.options:
            shown = [
                value for value in (values if self._original else dict.fromkeys(values)) if (name, value) in labels
            ]
            if shown or self._original:
                yield PageElement("text", self._shorten(name))
            for value in shown:
                label = labels[name, value]
                # The original looks for the text in its URL: under any name, and never where it is not ASCII.
                clicked = f'"{value}"' in told if self._original else chosen.get(name) == value
                yield PageElement("option", label, label.lower(), clicked, (name, value))
        yield PageElement("text", self._shorten(product.title))
        yield PageElement("text", f"Price: {self._format_price(product)}")
        rating = "" if self._original else self._shorten(product.rating)  # the release looks it up in a file it lacks
        yield PageElement("text", f"Rating: {rating or 'N.A.'}")
        for name in sub_pages:
            yield _make_button(name)
        yield _make_button(BUY)

    def _label_options(self, product: Product, taken: set[str]) -> dict[tuple[str, str], str]:
        """The text of each option value. Where ours would be that of another or of a button, its option is named."""
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
        texts: list[str] = []
        if state.page == "description":
            texts = [product.description]
        elif state.page == "features":
            texts = list(product.bullets)
        elif state.page == "reviews":
            texts = [text for r in product.reviews for text in (f'"{r.title}"', r.score, r.body)]
        elif state.page == "attributes":
            texts = [*product.attributes, product.category, product.query, _CATEGORY_SEPARATOR.join(product.categories)]
        left = self.rules.max_text
        for text in texts:
            if left and (shown := sanitize_text(text, left, self.rules.brackets)):
                left -= len(shown)
                yield PageElement("text", shown)
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
        """With its cents; the original has "$17.5"."""
        return product.tag if self._original else _TENTHS.sub(r"\g<0>0", product.tag)

    def _shorten(self, text: str) -> str:
        return sanitize_text(text, self.rules.max_title, self.rules.brackets)

    # -- finding

    def _find_asins(self, query: str) -> tuple[str, ...]:
        special = _find_by_command(self.shelves, query) if self._original else None
        return tuple(self.shelves.search(query, MAX_RESULTS) if special is None else special)


def _parse_action_greedily(action: str) -> tuple[str, str]:
    """The words before and within the last bracket of the first line, as the original's greedy pattern finds them."""
    line = action.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(1, end - 1))
    return ("", "") if start < 1 else (line[:start], line[start + 1 : end].lower())


def _make_button(text: str) -> PageElement:
    return PageElement("button", text, text.lower())


def _press_button(state: ShopState, text: str) -> ShopState:
    """Where a button leads."""
    if text == BACK:
        return ShopState()
    if text in (NEXT, PREV) and state.page == "results":
        return replace(state, number=state.number + (1 if text == NEXT else -1))
    if text == PREV and state.page == "item":
        return replace(state, page="results", asin="", options=())
    if text == PREV:
        return replace(state, page="item")
    return replace(state, page="done" if text == BUY else cast("PageName", text.lower()))


# -- words that the original's search takes for commands

_FACETS: Final[Mapping[str, Facet]] = {"<a>": "attribute", "<c>": "category", "<q>": "query"}


def _find_by_command(shelves: ProductCatalogue, query: str) -> list[str] | None:
    """The asins that such a word asks for; None where the query begins with none.

    For ``<r>`` the original draws anew for each page; here the query is the seed, so that a page is what it was. Its
    text environment fails at ``<a>``, which only its site knows.
    """
    word, _, rest = query.partition(" ")
    if word == "<r>":
        rng = random.Random(derive_seed("webshop", query))
        return [shelves.at(index).asin for index in rng.sample(range(len(shelves)), min(MAX_RESULTS, len(shelves)))]
    if word in _FACETS:
        value = rest.partition(" ")[0] if word == "<c>" else rest
        return shelves.find_by_facet(_FACETS[word], value.strip())
    return None
