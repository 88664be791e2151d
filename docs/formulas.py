"""Formulas of the site: a fence of language `math` becomes MathML, which browsers draw without a script or a font.

`mkdocs.yml` names `render`. Code hosts draw the same fences from the Markdown.
"""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert


def render(source: str, *_: Any, **__: Any) -> str:
    return f'<div class="formula">{convert(source, display="block")}</div>'
