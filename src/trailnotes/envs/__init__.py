"""Registry of environments.

A name is built in (`ENVS`), an entry point of the group ``trailnotes.envs``, or ``"module:Class"``. Importing this
package loads none of them.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from trailnotes.envs.base import Env, format_error, wrap_env_errors
from trailnotes.envs.check import check_env
from trailnotes.envs.options import suggest_nearest
from trailnotes.errors import (
    ConfigError,
    MissingExtraError,
    format_install_command,
    format_sibling_command,
    list_extras,
)
from trailnotes.storage.files import parse_json
from trailnotes.types import Task

__all__ = [
    "ENTRY_POINTS", "ENVS", "Env", "check_env", "extra_for", "get_env_identity", "list_env_tasks",
    "load_env_class", "make_env", "validate_options",
]  # fmt: skip

ENVS: dict[str, str] = {
    "gateway": "trailnotes.gateway.tasks:GatewayEnv",
    "textworld": "trailnotes.envs.textworld.env:TextWorldEnv",
    "waymarks": "trailnotes.envs.waymarks.env:WaymarksEnv",
    "waymarks-simulator": "trailnotes.envs.waymarks.env:WaymarksSimulator",
}
ENTRY_POINTS = "trailnotes.envs"  # group under which other packages offer environments


def extra_for(name: str) -> str:
    """Return the extra that the environment needs; "" where it needs none."""
    if name == "waymarks":
        return "textworld"
    if name == "gateway":
        return "web"
    return name if name in list_extras() else ""


def make_env(name: str, **options: Any) -> Env:
    """Make an environment with the options of ``[env.options]``.

    Raises:
        ConfigError: an unknown name or option; the text has the nearest known one.
        MissingExtraError: a package is not installed; the text names the extra.
    """
    cls = load_env_class(name)
    validate_options(name, cls, options)
    with _translate_import_error(name):
        env: Env = cls(**_select_accepted(cls, options))
    return env


def list_env_tasks(name: str, split: str, options: Mapping[str, Any] | None = None) -> list[Task]:
    """List all tasks of one split, in the environment's own order, the same in every process.

    Raises as `make_env` does, or `EnvError` where its `tasks` failed otherwise.
    """
    cls = load_env_class(name)
    options = options or {}
    validate_options(name, cls, options)
    tasks = getattr(cls, "tasks", None)
    if not callable(tasks):
        raise ConfigError(f"env.name = {name!r} lists no tasks: give {cls.__name__} a static method tasks(split)")
    with wrap_env_errors(f"tasks({split!r}) of {name}"), _translate_import_error(name):
        listed = list(tasks(split, **_select_accepted(tasks, options)))
    if not all(isinstance(task, Task) for task in listed):
        raise ConfigError(f"env.name = {name!r}: tasks({split!r}) must list Task values")
    return listed


def get_env_identity(name: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what two runs must share to be comparable, by ``identity(**options)`` of the class; {} without it."""
    cls = load_env_class(name)
    options = options or {}
    validate_options(name, cls, options)
    identity = getattr(cls, "identity", None)
    if not callable(identity):
        return {}
    with wrap_env_errors(f"identity of {name}"), _translate_import_error(name):
        stored = json.dumps(dict(identity(**_select_accepted(identity, options))), allow_nan=False)
        described: dict[str, Any] = parse_json(stored)  # as a run reads it back: tuples have become lists
        return described


def load_env_class(name: str) -> Callable[..., Any]:
    """Import the class behind a name. Raises as `make_env` does."""
    if name in ENVS:
        return _import_class(name, ENVS[name])
    if ":" in name:
        return _import_class(name, name)
    offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in offered:
        return _import_class(name, offered[name].value.partition("[")[0].strip())  # "module:Class [extra]" is allowed
    known = sorted({*ENVS, *offered})
    more = "" if offered else f" ({format_sibling_command('trailnotes-worlds')} brings more)"
    near = suggest_nearest(name, known)
    raise ConfigError(f"env.name = {name!r} is unknown{near}{more}; one of your own is named module:Class")


def validate_options(name: str, cls: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that neither the class nor its `tasks` accepts, and missing required ones, by `ConfigError`."""
    own, takes_any = _inspect_parameters(cls)
    tasks = getattr(cls, "tasks", None)
    accepted = sorted({*own, *(_inspect_parameters(tasks)[0] if callable(tasks) else {})} - {"split"})
    for key in () if takes_any else options:
        if key not in accepted:
            raise ConfigError(f"env.options.{key}: {name} has no such option{suggest_nearest(key, accepted)}")
    for key, parameter in own.items():
        if parameter.default is parameter.empty and key not in options:
            raise ConfigError(f"env.options.{key} is missing: {name} needs it")


def _import_class(name: str, target: str) -> Callable[..., Any]:
    """Import ``module:Class``; the working directory counts, as for ``python script.py``."""
    module_name, _, class_name = target.partition(":")
    if not module_name or not class_name:
        raise ConfigError(f"env.name = {name!r} must be module:Class, for example my_env:MyEnv")
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.append(here)
    try:
        with _translate_import_error(name):
            module = importlib.import_module(module_name)
    except MissingExtraError:
        raise
    except Exception as error:
        raise ConfigError(f"env.name = {name!r}: importing {module_name} raised {format_error(error)}") from error
    if not callable(cls := getattr(module, class_name, None)):
        raise ConfigError(f"env.name = {name!r}: {module_name} has no {class_name!r}")
    return cls  # type: ignore[no-any-return]


@contextmanager
def _translate_import_error(name: str) -> Iterator[None]:
    """Turn a missing package of a known environment into the extra that provides it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = extra_for(name)
        if not extra or isinstance(error, MissingExtraError):
            raise
        fix = format_install_command(extra)
        raise MissingExtraError(f"env.name = {name!r} needs the package {error.name!r}: {fix}") from error


def _inspect_parameters(function: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the named parameters of a call, and whether it accepts any other keyword."""
    named, takes_any = {}, False
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_any = True
        elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            named[key] = parameter
    return named, takes_any


def _select_accepted(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Select the options that `function` accepts: one section serves the class and its `tasks`.

    A class that hands any keyword on to its base gets no option that `tasks` alone names, since the base takes none.
    """
    named, takes_any = _inspect_parameters(function)
    of_tasks: set[str] = set()
    if takes_any and isinstance(function, type) and callable(tasks := getattr(function, "tasks", None)):
        constructors = [vars(base)["__init__"] for base in function.__mro__ if "__init__" in vars(base)]
        of_tasks = {*_inspect_parameters(tasks)[0]}.difference(*(_inspect_parameters(each)[0] for each in constructors))
    return {key: value for key, value in options.items() if (takes_any and key not in of_tasks) or key in named}
