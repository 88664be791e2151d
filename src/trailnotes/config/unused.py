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

from trailnotes.config.methods import TIPS_ONLY_METHOD, load_methods
from trailnotes.config.schema import Config
from trailnotes.config.section import Section
from trailnotes.config.toml import diff_configs, flatten_config, get_section_type, is_within, load_config

logger = logging.getLogger(__name__)
OF_TIP_WRITERS = ("algorithm.anchor_tips", "algorithm.author", "rehearsal")


def warn_unused(config: Config, warned: Config | None = None, model: str = "") -> None:
    """Warn in one line of settings without effect, and name what each of them needs.

    `warned` are settings of a run that was warned already (None: those of the preset); `model` replaces `model.path`.
    What only trainings have is not named where the method trains nothing, since both may share a file.
    """
    values = flatten_config(config) | ({"model.path": model} if model else {})
    methods = load_methods()
    sections = type(config).model_fields.keys() - Config.model_fields.keys()
    owners = {each: [name for name, method in methods.items() if each in method.sections] for each in sections}
    writers = [name for name, method in methods.items() if method.trains and method.writes_tips]
    owners |= dict.fromkeys(OF_TIP_WRITERS, writers)
    requirements = list_requirements(type(config))
    requirements |= {key: f"algorithm.name = {'|'.join([*names, '*:*'])}" for key, names in owners.items()}
    if (own := methods.get(config.algorithm.name)) and not own.trains:
        of_trainings = tuple(f"algorithm.name = {name}|" for name, method in methods.items() if method.trains)
        requirements = {key: need for key, need in requirements.items() if not need.startswith(of_trainings)}
        requirements["algorithm.author"] = f"algorithm.name = {TIPS_ONLY_METHOD}|*:*"
    unused: dict[str, list[str]] = {}
    for name in diff_configs(warned or load_config(None, ["--preset", config.preset]), config):
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
