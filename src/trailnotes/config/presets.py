"""Published settings, as far as they were published; other keys keep their defaults.

A preset is applied under the keys of the file, and chooses no environment and no model. ``-lora`` trains adapters,
``-8gpu`` shares the update over eight devices. Values of ``paper-*`` are from arXiv 2602.23008 and, where the paper is
silent, its release (commit 0b40cb72); the mask threshold was never published. ``release-*`` has what the release's code
does where that differs (docs/reproduce.md, row by row). The paper shows 10 tips in every turn and keeps them, which
fills 4,500 tokens long before the 30th turn; in ``paper-*`` a tip appears once, and only where the remaining turns fit.
`memory.repeat_shown = true` with `memory.leave_room = false`, as in ``release-*``, is the paper's way.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

Sections = dict[str, dict[str, Any]]  # section -> key -> value


def _overlay(under: Sections, over: Sections) -> Sections:
    return {section: {**under.get(section, {}), **over.get(section, {})} for section in [*under, *over]}


PRESETS: dict[str, Sections] = {}
_data = tomllib.loads((Path(__file__).parent / "presets.toml").read_text(encoding="utf-8"))
for _env in ("scienceworld", "webshop"):
    _paper = PRESETS[f"paper-{_env}"] = _overlay(_data["paper"], _data[_env])
    for _variant, _over in _data["variants"].items():
        PRESETS[f"paper-{_env}-{_variant}"] = _overlay(_paper, _over)
    PRESETS[f"release-{_env}"] = _overlay(_overlay(_paper, _data["release"]), _data.get(f"release-{_env}", {}))
