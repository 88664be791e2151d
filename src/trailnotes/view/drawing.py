"""Templates, style and script, and how numbers are written. Whatever a template is given is text, never markup."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from trailnotes.view.curves import short

HERE: Final = Path(__file__).parent
STYLE: Final = (HERE / "view.css").read_text(encoding="utf-8")
SCRIPT: Final = (HERE / "view.js").read_text(encoding="utf-8")
VERSION: Final = hashlib.blake2b((STYLE + SCRIPT).encode(), digest_size=6).hexdigest()

Href = Callable[..., str]  # (path, **query) -> where a link leads


def draw(template: str, href: Href, **values: Any) -> str:
    """A page. `href` makes the addresses of its links."""
    return _ENVIRONMENT.get_template(f"{template}.html").render(href=href, version=VERSION, **values)


def number(value: float | None) -> str:
    """A count or a measure, ``-`` where it is not known."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def share(value: float | None) -> str:
    """A share in percent."""
    return "-" if value is None else f"{100 * value:.0f} %"


def span(seconds: float | None) -> str:
    """A time in words: ``12 s``, ``3 min``, ``2.5 h``."""
    if seconds is None:
        return "-"
    for size, word in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {word}"
    return f"{seconds:.0f} s"


_ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"number": number, "share": share, "span": span, "short": short}
