"""Configs and the model that the package ships, by name: ``demo``, ``builtin:demo``, ``builtin:waymarks-start``."""

from __future__ import annotations

import difflib
from pathlib import Path

from trailnotes.errors import ConfigError
from trailnotes.types import StrPath

BUILTIN_PREFIX = "builtin:"
BUILTIN = Path(__file__).parents[1] / "builtin"


def list_builtin_configs() -> dict[str, Path]:
    """Map the name of every config of the package, such as ``scienceworld/find-plant``, to its file."""
    folder = BUILTIN / "configs"
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.toml"))}


def find_config(path: StrPath) -> Path:
    """Find a config by its path or by its name in the package. A file comes first; ``builtin:NAME`` is never one.

    Raises:
        ConfigError: there is neither a file nor a config of that name.
    """
    name = str(path)
    is_named = name.startswith(BUILTIN_PREFIX)
    if not is_named and (Path(path).is_file() or (Path(path).exists() and name not in list_builtin_configs())):
        return Path(path)
    known = list_builtin_configs()
    wanted = name.removeprefix(BUILTIN_PREFIX)
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted.removeprefix("configs/").removesuffix(".toml"), known, 1)
    hint = f"did you mean {near[0]}?" if near else "`trailnotes config list` names those of the package"
    missing = "no config of the package" if is_named else "no such file, and no config of the package"
    raise ConfigError(f"{name}: {missing}; {hint}")


def resolve_model_path(path: str) -> str:
    """Return the directory of a model of the package, ``builtin:NAME``; any other `model.path` as it is.

    Raises:
        ConfigError: the package has no model of that name.
    """
    if not path.startswith(BUILTIN_PREFIX):
        return path
    models = {folder.parent.name: folder.parent for folder in BUILTIN.glob("*/config.json")}
    name = path.removeprefix(BUILTIN_PREFIX)
    if name not in models:
        raise ConfigError(f"model.path = {path!r}: the package has no such model; it has {', '.join(models)}")
    return str(models[name])
