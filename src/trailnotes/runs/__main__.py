"""Print the page of metrics of the site: ``python -m trailnotes.runs > docs/metrics.md``, as `make docs` does."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib import resources

from trailnotes.config.methods import load_methods


def render_metrics_page() -> str:
    """Render `metrics.toml` as a page, a table a section, then one for each method with metrics of its own."""
    source = resources.files("trailnotes.runs").joinpath("metrics.toml").read_text(encoding="utf-8")
    page = tomllib.loads(source)
    parts = [page["introduction"]]
    for section in page["section"]:
        parts += [f"## {section['title']}", section["text"], *_render_table(section.get("rows", ()))]
    for method in load_methods().values():
        if method.metrics:
            parts += [f"## {method.label}: `{method.name}/`", *_render_table(method.metrics)]
    return "\n\n".join(parts) + "\n"


def _render_table(rows: Iterable[Iterable[str]]) -> list[str]:
    lines = [f"| `{name}` | {' | '.join(cells)} |" for name, *cells in rows]
    return ["\n".join(["| metric | unit | what it is | healthy |", "|---|---|---|---|", *lines])] if lines else []


if __name__ == "__main__":
    print(render_metrics_page(), end="")
