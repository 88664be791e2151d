"""Render templates, with the style, the script and the number formats. All values are text, never markup."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from trailnotes.reporting.terminal import format_duration
from trailnotes.types import replace_surrogates
from trailnotes_lab.view.curves import format_short

HERE: Final = Path(__file__).parent
STYLE: Final = (HERE / "view.css").read_text(encoding="utf-8")
SCRIPT: Final = (HERE / "view.js").read_text(encoding="utf-8")
ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="#3a7ca5" stroke-width="2.4">'
    '<path d="M4 19c4 0 3-6 7-6s3-7 9-8"/><circle cx="4" cy="19" r="2.4"/><circle cx="20" cy="5" r="2.4"/></svg>'
)
ASSETS: Final = {
    "/view.css": ("text/css", STYLE), "/view.js": ("text/javascript", SCRIPT), "/icon.svg": ("image/svg+xml", ICON),
}  # fmt: skip
ASSETS_VERSION: Final = hashlib.blake2b((STYLE + SCRIPT).encode(), digest_size=6).hexdigest()


def render_template(template: str, **values: Any) -> str:
    page = _ENVIRONMENT.get_template(f"{template}.html").render(version=ASSETS_VERSION, **values)
    return replace_surrogates(page)


def make_url(path: str, **query: Any) -> str:
    params = [(name, value) for name, value in query.items() if value not in (None, "")]
    return f"{path}?{urlencode(params, doseq=True)}" if params else path


def _format_number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


_ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True,
)  # fmt: skip
_ENVIRONMENT.filters |= {
    "number": _format_number, "short": format_short,
    "span": lambda seconds: "-" if seconds is None else format_duration(seconds),
    "share": lambda value: "-" if value is None else f"{100 * value:.0f} %",
}  # fmt: skip
_ENVIRONMENT.globals["href"] = make_url
