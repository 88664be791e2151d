"""Pages in words: the original's two observations, and REMEMBERER's.

The texts are cleaned by the shop; a view only says what is a button and what has been clicked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from trailnotes_worlds.webshop.shop import NEXT, PageElement

REMEMBERER_NUM_PRODUCTS: Final = 3  # products of a results page
_ROUND: Final = str.maketrans("[]", "()")


def render_text(parts: Iterable[PageElement]) -> str:
    """All texts of a page in one line, with " [SEP] " between them."""
    return " [SEP] ".join(part.text for part in parts)


def render_text_rich(parts: Iterable[PageElement]) -> str:
    """A line for each text; buttons, products and options are marked, and what was chosen is told first."""
    return _prepend_clicked(parts, "You have clicked {}.\n", _mark_rich)


def render_rememberer(parts: Iterable[PageElement]) -> str:
    """The shorter marks of REMEMBERER and ReAct: ``[x]`` can be clicked, ``[[x]]`` was; options stand in one line.

    Source: Zhang et al. 2023, "Large Language Models Are Semi-Parametric Reinforcement Learning Agents" (arXiv
    2306.07929), its fork of WebShop (commit 3e13e51).
    """
    return _prepend_clicked(parts, "\nYou have clicked {}.", _mark_short).strip()


def render_short(parts: Iterable[PageElement]) -> str:
    """For small models, ours: one line in lower case, as things are said in actions, without the usual buttons.

    Of buttons only "next >" is told, which is not always there; what was chosen has a star.
    """
    told, joined = "", 0
    for part in parts:
        if part.kind == "button" and part.text != NEXT:
            continue
        between = " " if joined else " , " if part.kind == "option" else " ; "
        joined = 2 if part.kind == "product" else max(0, joined - 1)  # a title and a price follow a product
        chosen = " *" if part.kind == "option" and part.clicked else ""
        told += f"{between}{part.text.lower()}{chosen}"
    return told.removeprefix(" ; ")


VIEWS: Mapping[str, Callable[[Iterable[PageElement]], str]] = MappingProxyType(
    {"text": render_text, "text_rich": render_text_rich, "rememberer": render_rememberer, "short": render_short}
)


def _prepend_clicked(parts: Iterable[PageElement], sentence: str, render: Callable[[PageElement], str]) -> str:
    """Each chosen option goes before what was told so far, as in the original."""
    head, body = "", ""
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
