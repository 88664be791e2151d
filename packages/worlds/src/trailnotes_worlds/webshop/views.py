"""Views, pages as text: the original's two observations, REMEMBERER's, and a short one.

The shop cleans the texts; a view only marks buttons and clicked options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from trailnotes_worlds.webshop.shop import NEXT, PageElement

REMEMBERER_NUM_PRODUCTS: Final = 3  # products of a results page
_ROUND: Final = str.maketrans("[]", "()")


def render_text(parts: Iterable[PageElement]) -> str:
    return " [SEP] ".join(part.text for part in parts)


def render_text_rich(parts: Iterable[PageElement]) -> str:
    """Render a line for each text, with marks on buttons, products and options, and the chosen options first."""
    return _prepend_clicked(parts, "You have clicked {}.\n", _mark_rich)


def render_rememberer(parts: Iterable[PageElement]) -> str:
    """Render the shorter marks of REMEMBERER and ReAct: ``[x]`` can be clicked, ``[[x]]`` was; options in one line.

    Source: Zhang et al. 2023, "Large Language Models Are Semi-Parametric Reinforcement Learning Agents" (arXiv
    2306.07929), its fork of WebShop (commit 3e13e51).
    """
    return _prepend_clicked(parts, "\nYou have clicked {}.", _mark_short).strip()


def render_short(parts: Iterable[PageElement]) -> str:
    """Render one line in lower case, as in actions, for small models: no button but "next >", a star on each choice."""
    line, joined = "", 0
    for part in parts:
        if part.kind == "button" and part.text != NEXT:
            continue
        between = " " if joined else " , " if part.kind == "option" else " ; "
        joined = 2 if part.kind == "product" else max(0, joined - 1)  # a title and a price follow a product
        chosen = " *" if part.kind == "option" and part.clicked else ""
        line += f"{between}{part.text.lower()}{chosen}"
    return line.removeprefix(" ; ")


VIEWS: Mapping[str, Callable[[Iterable[PageElement]], str]] = MappingProxyType(
    {"text": render_text, "text_rich": render_text_rich, "rememberer": render_rememberer, "short": render_short}
)


def _prepend_clicked(parts: Iterable[PageElement], sentence: str, render: Callable[[PageElement], str]) -> str:
    head, body = "", ""  # of the chosen options the last is first, as in the original
    for part in parts:
        if part.kind == "option" and part.clicked:
            head = sentence.format(part.text) + head
        body += render(part)
    return head + body


def _mark_rich(part: PageElement) -> str:
    mark = "clicked button" if part.clicked else "button"
    if part.kind == "text":
        return f"{part.text}\n"
    before = {"button": "", "product": "\n", "option": "  "}[part.kind]
    return f"{before}[{mark}] {part.text} [{mark}_]\n"


def _mark_short(part: PageElement) -> str:
    if part.kind == "text":
        return f"\n{part.text.translate(_ROUND)} "  # here any brackets would look like a button
    before = "" if part.kind == "option" else "\n"
    return f"{before}[[{part.text}]]" if part.clicked else f"{before}[{part.text}]"
