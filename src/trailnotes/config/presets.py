"""Published settings, as far as they were published; keys that a preset does not hold keep their defaults.

A preset is applied under the keys of the file that names it, or from the command line in place of the file's own. It
chooses no environment and no model. Those that end in ``-lora`` train adapters instead of all weights, those in
``-8gpu`` share the update out over eight devices. Values are from arXiv 2602.23008 and, where the paper is silent, from
its release (commit 0b40cb72). Two settings have no value here: WebShop's discount of 0.95, since returns are
undiscounted, and the mask threshold, which was never published (the default is the release's). In one place they depart
from the paper: it shows 10 tips in every turn and keeps them, which fills 4,500 tokens long before the 30th turn. Here
a tip is shown once, and only where the turns that are left still fit; `memory.repeat_shown = true` with
`memory.leave_room = false` is the paper's way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trailnotes.storage.parsing import parse_toml

Sections = dict[str, dict[str, Any]]  # section -> key -> value
_DATA = parse_toml((Path(__file__).parent / "presets.toml").read_text(encoding="utf-8"))
VARIANTS: dict[str, Sections] = _DATA["variants"]


def _overlay(under: Sections, over: Sections) -> Sections:
    return {section: {**under.get(section, {}), **over.get(section, {})} for section in [*under, *over]}


_PUBLISHED = {f"paper-{name}": _overlay(_DATA["paper"], _DATA[name]) for name in ("scienceworld", "webshop")}
PRESETS: dict[str, Sections] = {
    **_PUBLISHED,
    **{
        f"{name}-{variant}": _overlay(own, over)
        for variant, over in VARIANTS.items()
        for name, own in _PUBLISHED.items()
    },
}
