"""View hierarchy of a screen, and its rendering as lines of HTML for the agent.

Source: the wrapper of Mobile-Env (commit 976145e) that lists leaves, and REMEMBERER's rendering (commit 552cb62).
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

WIDTH: Final = 1080  # pixels
HEIGHT: Final = 1920
PACKAGE: Final = "com.wikihow.wikihowapp"

TEXT: Final = "android.widget.TextView"
BUTTON: Final = "android.widget.Button"
IMAGE: Final = "android.widget.Image"
IMAGE_VIEW: Final = "android.widget.ImageView"
INPUT: Final = "android.widget.EditText"
PLAIN_VIEW: Final = "android.view.View"


class Box(NamedTuple):
    """Edges of a view, in pixels from the left and from the top."""

    left: int = 0
    top: int = 0
    right: int = 0
    bottom: int = 0


EMPTY_BOX: Final = Box()


@dataclass(frozen=True, slots=True)
class View:
    """Node of the view hierarchy."""

    kind: str  # its class
    text: str = ""
    name: str = ""  # resource-id
    described: str = ""  # content-desc
    clickable: bool = False
    box: Box = EMPTY_BOX
    children: tuple[View, ...] = ()
    target: str = ""  # of a tap, see `app.py`; no part of the hierarchy


class Leaf(NamedTuple):
    """View that an action can point at, by its place in the list."""

    view: View
    clickable: bool  # itself, or a view around it


def list_leaves(root: View) -> tuple[Leaf, ...]:
    """List the views without children below `root` that have an area, in document order."""

    def walk(view: View, clickable: bool) -> Iterator[Leaf]:
        for child in view.children:
            reacts = clickable or child.clickable
            if child.children:
                yield from walk(child, reacts)
            elif child.box.left < child.box.right and child.box.top < child.box.bottom:
                yield Leaf(child, reacts)

    return tuple(walk(root, root.clickable))


def render_lines(listed: Iterable[Leaf]) -> list[str]:
    """Render a line of HTML for each leaf, with its place in the list as its id."""
    return [_render_line(leaf, place) for place, leaf in enumerate(listed)]


def _render_line(leaf: Leaf, place: int) -> str:
    tag, text, alt = _get_html_tag(leaf.view.kind), leaf.view.text, leaf.view.described
    if tag == "img":
        alt, text = f"{alt}: {text}" if alt and text else alt or text, ""
    attributes = {"class": " ".join(leaf.view.name.rpartition("/")[2].split("_")), "alt": alt}
    if tag == "input":
        attributes, text = {**attributes, "value": text, "type": "text"}, ""
    attributes |= {"id": str(place), "clickable": str(leaf.clickable).lower()}
    shown = "".join(f" {name}={_quote_attribute(value)}" for name, value in attributes.items() if value)
    body = "" if tag in ("img", "input") else f"{html.escape(text, quote=False)}</{tag}>"
    return f"<{tag}{shown}>{body}".replace("\n", "&#10;").replace("\r", "&#13;")


def _get_html_tag(kind: str) -> str:
    if kind.endswith("TextView"):
        return "p"
    if kind.endswith(("Button", "MenuItemView")):
        return "button"
    if kind.endswith(("ImageView", "IconView", "Image")):
        return "img"
    return "input" if kind.endswith("EditText") else "div"


def _quote_attribute(value: str) -> str:
    # As libxml2 does: apostrophes around a value with double quotes alone.
    value = html.escape(value, quote=False)
    if '"' in value and "'" not in value:
        return f"'{value}'"
    return '"' + value.replace('"', "&quot;") + '"'
