"""Pages as HTML, with drawings of the products. All text is escaped on its way into a template.

Only numbers and package data reach the markup of a drawing, never a text of the catalogue: it needs no escaping.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trailnotes.storage.files import parse_toml

_FOLDER: Final = Path(__file__).parent
_DRAWINGS: Final = parse_toml((_FOLDER / "drawings.toml").read_text(encoding="utf-8"))
SIDE: Final = 120  # units of the view box
STYLE: Final = (_FOLDER / "shop.css").read_text(encoding="utf-8")
ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="#1d6b58"/>'
    '<path fill="#fff3cf" d="M9 12h14l2 13H7z"/><path fill="none" stroke="#fff3cf" stroke-width="2.2" '
    'd="M12 14v-3a4 4 0 0 1 8 0v3"/><path fill="none" stroke="#1d6b58" stroke-width="2" d="M11 19h10M11 22h6"/></svg>'
)
VERSION: Final = hashlib.blake2b((STYLE + ICON).encode(), digest_size=6).hexdigest()


@lru_cache(maxsize=4096)
def draw_picture(asin: str, department: str) -> str:
    """Draw a product as an SVG element, the same for the same asin; a parcel where its department has no drawings."""
    digest = hashlib.blake2b(asin.encode("utf-8", "replace"), digest_size=8).digest()
    drawings = _DRAWINGS.get(department, _DRAWINGS["parcel"])
    hue = digest[1] * 360 // 256
    fills = {
        "m": f"hsl({hue} 42% 52%)",
        "d": f"hsl({hue} 38% 30%)",
        "l": f"hsl({hue} 55% 88%)",
        "a": f"hsl({(hue + 140 + digest[2] % 80) % 360} 70% 62%)",
    }
    x, y, radius = 20 + digest[3] % 80, 20 + digest[4] % 80, 28 + digest[5] % 26
    paths = drawings[digest[0] % len(drawings)]
    shapes = "".join(f'<path fill="{fills[path[0]]}" d="{path[2:]}"/>' for path in paths)
    return (
        f'<svg viewBox="0 0 {SIDE} {SIDE}" aria-hidden="true" focusable="false">'
        f'<rect width="{SIDE}" height="{SIDE}" fill="hsl({hue} 40% 95%)"/>'
        f'<circle cx="{x}" cy="{y}" r="{radius}" fill="hsl({(hue + 40) % 360} 48% 89%)"/>{shapes}</svg>'
    )


_JINJA = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"), autoescape=True, auto_reload=False, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
_JINJA.globals["mark"] = Markup(ICON)  # noqa: S704 (a constant)
_JINJA.globals["picture"] = lambda asin, department: Markup(draw_picture(asin, department))  # noqa: S704 (see above)


def render_template(template: str, **values: Any) -> str:
    """Render a page as HTML. Each process compiles its templates once."""
    return _JINJA.get_template(f"{template}.html").render(values)
