"""Warns of settings without effect, because the switch that they need is off.

What a key or a section needs is written so::

    model.lora.enabled                 that setting is on: neither false, zero, empty nor none
    algorithm.intrinsic = tips|states  it is one of these, or holds one; * is any text
    learner.world_size > 1             it is above
    A or B                             either
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from trailnotes.config.methods import load_methods
from trailnotes.config.schema import Config
from trailnotes.config.section import Section
from trailnotes.config.toml import diff_configs, flatten_config, get_section_type, is_within

logger = logging.getLogger(__name__)
KEPT_ALIVE = ("algorithm.anchor_tips", "rehearsal")  # of methods that write tips


def warn_unused(config: Config, warned: Config | None = None, model: str = "") -> None:
    """Warn in one line of settings without effect, and name what each of them needs.

    `warned` are settings of a run that was warned already (None: the defaults); `model` replaces `model.path`.
    """
    values = flatten_config(config) | ({"model.path": model} if model else {})
    requirements = list_requirements(type(config))
    for section in type(config).model_fields.keys() - type(Config()).model_fields.keys():  # whose method is empo2
        owners = [name for name, method in load_methods().items() if section in method.sections]
        requirements[section] = f"algorithm.name = {'|'.join([*owners, '*:*'])}"
    methods = load_methods()
    if (own := methods.get(config.algorithm.name)) and own.trains:
        writers = [name for name, method in methods.items() if method.trains and method.writes_tips]
        requirements |= dict.fromkeys(KEPT_ALIVE, f"algorithm.name = {'|'.join([*writers, '*:*'])}")
    unused: dict[str, list[str]] = {}
    for name in diff_configs(warned or Config(), config):
        needs = [need for key, need in requirements.items() if is_within(name, [key])]
        unmet = [need for need in needs if not any(_is_met(part, values) for part in need.split(" or "))]
        if unmet:
            unused.setdefault(unmet[0], []).append(name)
    if unused:
        texts = {n: n.replace("*:*", "module:NAME").replace(":*", ":NAME").replace("|", " or ") for n in unused}
        lines = "; ".join(f"{', '.join(names)} (needs {texts[need]})" for need, names in unused.items())
        logger.warning("settings without effect: %s", lines)


def list_requirements(kind: type[Section], prefix: str = "") -> dict[str, str]:
    """Map the dotted name of each key and section to what it needs to have any effect, as `key` says."""
    needed = {}
    for name, field in kind.model_fields.items():
        if isinstance(field.json_schema_extra, dict) and "needs" in field.json_schema_extra:
            needed[prefix + name] = str(field.json_schema_extra["needs"])
        if inner := get_section_type(field):
            needed |= list_requirements(inner, f"{prefix}{name}.")
    return needed


def _is_met(part: str, values: Mapping[str, Any]) -> bool:
    name, sign, wanted = part.partition(" = ")
    if sign:
        value = values[name]
        items = value if isinstance(value, tuple) else (value,)
        return any(fnmatchcase(str(item), pattern) for item in items for pattern in wanted.split("|"))
    name, sign, limit = part.partition(" > ")
    return bool(values[name] > float(limit)) if sign else bool(values[name])
