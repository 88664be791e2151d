"""Warns of settings without effect, because the switch that they need is off.

What a key or a section needs is written so::

    model.lora.enabled                 that setting is on: neither false, zero, empty nor none
    algorithm.intrinsic = tips|states  it is one of these, or holds one; * is any text, false is a switch that is off
    env.name != gateway                it is none of these
    learner.world_size > 1             it is above
    A or B and C                       C, and one of A and B
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from trailnotes.config.methods import TIPS_ONLY_METHOD, find_modules, list_methods, load_methods
from trailnotes.config.schema import Config
from trailnotes.config.section import Section
from trailnotes.config.toml import diff_configs, flatten_config, get_section_type, is_within, load_config

logger = logging.getLogger(__name__)
METHOD = "algorithm.name"
OUR_PACKAGES = ("trailnotes.", "trailnotes_lab.")
OF_TIP_WRITERS = ("algorithm.anchor_tips", "algorithm.author", "rehearsal")


def warn_unused(config: Config, warned: Config | None = None, model: str = "") -> None:
    """Warn in one line of settings without effect, and name what each of them needs.

    `warned` are settings of a run that was warned already (None: those of the preset); `model` replaces `model.path`.
    What only trainings have is not named where the method trains nothing, since both may share a file.
    """
    values = flatten_config(config) | ({"model.path": model} if model else {})
    pairs = [*list_requirements(type(config)).items(), *_list_method_requirements(config)]
    requirements = [(key, need) for key, needs in pairs for need in needs.split(" and ")]
    trainings = {*list_methods(trains=True)}
    if not find_modules().get(config.algorithm.name, "").startswith(OUR_PACKAGES):
        requirements = [pair for pair in requirements if METHOD not in pair[1]]  # a method of others may use any key
    elif config.algorithm.name not in trainings:
        requirements = [
            (key, need)
            for key, need in requirements
            if METHOD not in need or {*need.removeprefix(f"{METHOD} = ").split("|")} - trainings
        ]
    unused: dict[str, list[str]] = {}
    for key in diff_configs(warned or load_config(None, ["--preset", config.preset]), config):
        needs = [need for other, need in requirements if is_within(key, [other])]
        unmet = [need for need in needs if not any(_is_met(part, values) for part in need.split(" or "))]
        if unmet:
            unused.setdefault(unmet[0], []).append(key)
    if unused:
        texts = {need: need.replace(":*", ":NAME").replace("|", " or ") for need in unused}
        lines = "; ".join(f"{', '.join(keys)} (needs {texts[need]})" for need, keys in unused.items())
        logger.warning("settings without effect: %s", lines)


def _list_method_requirements(config: Config) -> list[tuple[str, str]]:
    """List the sections of methods, and the keys that only some methods read, with the methods that they need."""
    methods = load_methods()
    sections = type(config).model_fields.keys() - Config.model_fields.keys()
    users = {section: [name for name, method in methods.items() if section in method.sections] for section in sections}
    writers = [name for name, method in methods.items() if method.trains and method.writes_tips]
    users |= dict.fromkeys(OF_TIP_WRITERS, writers)
    if config.algorithm.name in list_methods(trains=False):
        users["algorithm.author"] = [TIPS_ONLY_METHOD]
    return [(key, f"{METHOD} = {'|'.join(names)}") for key, names in users.items()]


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
    name, sign, refused = part.partition(" != ")
    if sign:
        return not _is_met(f"{name} = {refused}", values)
    name, sign, wanted = part.partition(" = ")
    if sign:
        value = values[name]
        if isinstance(value, bool):
            value = str(value).lower()  # as TOML writes it
        items = value if isinstance(value, tuple) else (value,)
        return any(fnmatchcase(str(item), pattern) for item in items for pattern in wanted.split("|"))
    name, sign, limit = part.partition(" > ")
    return bool(values[name] > float(limit)) if sign else bool(values[name])
