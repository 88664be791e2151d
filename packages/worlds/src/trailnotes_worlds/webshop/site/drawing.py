"""Pages as HTML. All text is escaped on its way into a template; pictures are markup of our own."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trailnotes_worlds.webshop.site.pictures import draw_picture

_FOLDER: Final = Path(__file__).parent
STYLE: Final = (_FOLDER / "shop.css").read_text(encoding="utf-8")
ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="#1d6b58"/>'
    '<path fill="#fff3cf" d="M9 12h14l2 13H7z"/><path fill="none" stroke="#fff3cf" stroke-width="2.2" '
    'd="M12 14v-3a4 4 0 0 1 8 0v3"/><path fill="none" stroke="#1d6b58" stroke-width="2" d="M11 19h10M11 22h6"/></svg>'
)
VERSION: Final = hashlib.blake2b((STYLE + ICON).encode(), digest_size=6).hexdigest()

_JINJA = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"),
    autoescape=True,
    auto_reload=False,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_JINJA.globals["mark"] = Markup(ICON)  # noqa: S704 (a constant)
_JINJA.globals["picture"] = lambda asin, department: Markup(draw_picture(asin, department))  # noqa: S704 (see pictures.py)


def render_template(template: str, **values: Any) -> str:
    """The page as HTML. Templates are compiled once in a process."""
    return _JINJA.get_template(f"{template}.html").render(values)
