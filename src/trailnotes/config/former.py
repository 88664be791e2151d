"""Former keys (`former.toml`): a renamed one is read with a warning, a removed one only at its former default.

A key of a method of trailnotes-lab counts as removed where that method cannot be imported.
"""

from __future__ import annotations

import copy
import json
import logging
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trailnotes.config.methods import LAB_METHODS, list_sections
from trailnotes.errors import ConfigError, format_sibling_command

logger = logging.getLogger(__name__)
_DATA = tomllib.loads((Path(__file__).parent / "former.toml").read_text(encoding="utf-8"))
RENAMED_KEYS: Final[Mapping[str, str]] = _DATA["renamed"]  # former -> present; the former are read until 1.0
REMOVED_KEYS: Final[Mapping[str, Any]] = _DATA["removed"]  # former -> its former default
LAB_KEYS: Final[Mapping[str, Any]] = _DATA["lab"]  # key of a method of trailnotes-lab -> its default
HINTS: Final[Mapping[str, str]] = _DATA["hints"]  # removed key -> what replaces other values
_warned_keys: set[str] = set()


def rename_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Replace former keys in a tree of sections, with one warning per process for each.

    Raises:
        ConfigError: a setting is given under both of its names.
    """
    if not any(name in values for values, name in (_find_section(tree, former) for former in RENAMED_KEYS)):
        return {**tree}
    renamed = copy.deepcopy({**tree})
    unseen = []
    for former, present in RENAMED_KEYS.items():
        values, name = _find_section(renamed, former)
        if name not in values:
            continue
        section, _, new_name = present.partition(".")
        if new_name in (target := renamed.setdefault(section, {})):
            raise ConfigError(f"{former} is the former name of {present}, which is set too: leave {former} out")
        target[new_name] = values.pop(name)
        if former not in _warned_keys:
            unseen.append(f"{former} is now {present}")
            _warned_keys.add(former)
    if unseen:
        logger.warning("settings have new names, and 1.0 will refuse the former: %s", ", ".join(unseen))
    return renamed


def drop_removed_keys(tree: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Drop removed keys at their former defaults from a tree of sections, and sections that become empty by it.

    Raises:
        ConfigError: a removed key has another value; the text names the origin and what replaces the key.
    """
    lab_sections = {*LAB_METHODS} & {*tree}
    missing = lab_sections and lab_sections - list_sections().keys()  # no installed method brings them
    lab_keys = {key: default for key, default in LAB_KEYS.items() if key.partition(".")[0] in missing}
    kept = copy.deepcopy({**tree})
    for key, default in {**REMOVED_KEYS, **lab_keys}.items():
        values, name = _find_section(kept, key)
        if name not in values:
            continue
        if values.pop(name) != default:
            if key in LAB_KEYS:
                command = format_sibling_command("trailnotes-lab")
                raise ConfigError(f"{origin}: {key} is a setting of trailnotes-lab: {command}")
            hint = HINTS.get(key, f"it is always {json.dumps(default)}")
            raise ConfigError(f"{origin}: {key} is no longer a setting: {hint}")
        if not kept[key.partition(".")[0]]:
            del kept[key.partition(".")[0]]
    return kept


def _find_section(tree: Any, key: str) -> tuple[dict[str, Any], str]:
    """Find the section of a dotted key in a tree, {} where there is none, and the key's own name."""
    *sections, name = key.split(".")
    for section in sections:
        tree = tree.get(section, {}) if isinstance(tree, dict) else {}
    return (tree if isinstance(tree, dict) else {}), name
