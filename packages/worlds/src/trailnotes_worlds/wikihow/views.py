"""Views of a screen, and their rendering as lines of HTML for the agent.

Source: the wrapper of Mobile-Env (commit 976145e) that lists the leaves of a view hierarchy, and REMEMBERER's rendering
(commit 552cb62).
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

TEXT: Final = "p"  # HTML tags, by which REMEMBERER renders the classes of Android
BUTTON: Final = "button"
IMAGE: Final = "img"
INPUT: Final = "input"
PLAIN_VIEW: Final = "div"


@dataclass(frozen=True, slots=True)
class View:
    """Leaf of the view hierarchy."""

    kind: str  # one of the tags above
    text: str = ""
    name: str = ""  # resource-id, without its package
    described: str = ""  # content-desc
    clickable: bool = False
    target: str = ""  # of a tap, see `app.py`; not displayed


class Leaf(NamedTuple):
    """View that an action can point at, by its place in the list."""

    view: View
    clickable: bool  # itself, or a view around it


def render_lines(listed: Iterable[Leaf], most: int | None = None) -> list[str]:
    return [_render_line(leaf, place, leaf.view.text[:most]) for place, leaf in enumerate(listed)]


def _render_line(leaf: Leaf, place: int, text: str) -> str:
    tag, alt = leaf.view.kind, leaf.view.described
    if tag == IMAGE:
        alt, text = f"{alt}: {text}" if alt and text else alt or text, ""
    attributes = {"class": leaf.view.name.replace("_", " "), "alt": alt}
    if tag == INPUT:
        attributes, text = {**attributes, "value": text, "type": "text"}, ""
    attributes |= {"id": str(place), "clickable": str(leaf.clickable).lower()}
    quoted = "".join(f" {name}={_quote_attribute(value)}" for name, value in attributes.items() if value)
    body = "" if tag in (IMAGE, INPUT) else f"{html.escape(text, quote=False)}</{tag}>"
    return f"<{tag}{quoted}>{body}".replace("\n", "&#10;").replace("\r", "&#13;")


def _quote_attribute(value: str) -> str:
    # As libxml2 does: apostrophes around a value with double quotes alone.
    value = html.escape(value, quote=False)
    if '"' in value and "'" not in value:
        return f"'{value}'"
    return '"' + value.replace('"', "&quot;") + '"'
