"""Registry of the methods: where each lives, and the facts that other modules need.

`algorithm.name` is a name in `METHODS`, one that `register` added, or ``"module:NAME"`` of a `Method`. Importing this
module loads none of them, and reading a config imports nothing; `resolve_method` does.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trailnotes.errors import ConfigError
from trailnotes.storage.files import parse_toml

MethodFunction = Callable[[Any], Awaitable[None]]
"""Carries out an `Iteration`, or drives an `AdaptationRun` where it changes no weights."""
TaskLister = Callable[[Any], Iterable[Any]]
"""From the `Config` of a run to the `Task`s that it learns from, which no panel may hold."""


@dataclass(frozen=True, slots=True)
class Method:
    """Facts about a method that are known without importing it."""

    name: str  # `algorithm.name`
    label: str  # as tables and pictures call it
    home: str | MethodFunction  # "module:function", imported by `load`; or the coroutine function itself
    trains: bool  # changes weights: `trailnotes train`; the others: `trailnotes adapt`
    memory: bool = False  # a training that opens a memory of tips
    plain: bool = False  # and shows them to no member: all act without
    writes: bool = False  # a training that writes tips without such a memory
    repeats: bool = False  # plays the panel eval.trials + 1 times
    data: str = ""  # the setting that names other runs whose episodes it learns from; "" plays another run's model
    colour: str = ""  # in pictures; "" takes one that is left
    learned_from: str | TaskLister = ""  # "module:function", or the function: games beside train.split of `trains`

    @property
    def shows_tips(self) -> bool:
        """Tell whether members of its groups act with tips."""
        return self.memory and not self.plain

    @property
    def writes_tips(self) -> bool:
        """Tell whether its training has the policy write tips."""
        return self.memory or self.writes

    def load(self) -> MethodFunction:
        """Import and return the method's function."""
        return _import_target(self.home) if isinstance(self.home, str) else self.home

    def load_task_lister(self) -> TaskLister | None:
        """Import the function that lists the games learned from before evaluation; None if there is none."""
        if not self.learned_from:
            return None
        return _import_target(self.learned_from) if isinstance(self.learned_from, str) else self.learned_from


TIPS_ONLY_METHOD = "empo2-tips"  # plays panels with tips, rehearsals and exchanges of roles; trains nothing

_TABLE = parse_toml((Path(__file__).parent / "methods.toml").read_text(encoding="utf-8"))
METHODS = {name: Method(name, **facts) for name, facts in _TABLE.items()}
_ENTRY_POINT = re.compile(r"[\w.]+:\w+")  # module:NAME


def register(method: Method) -> Method:
    """Register a method for `algorithm.name` in this process; raises `ConfigError` if the name is taken."""
    known = METHODS.get(method.name, method)
    if _locate_code(known) != _locate_code(method):
        raise ConfigError(f"a method is called {method.name!r} already: choose another name")
    METHODS[method.name] = method
    return method


def _locate_code(method: Method) -> tuple[str, str]:
    """Locate a method's code, since a file that is both run and imported registers it twice."""
    if isinstance(method.home, str):
        return method.home, ""
    code = getattr(method.home, "__code__", None)
    return getattr(code, "co_filename", repr(method.home)), getattr(method.home, "__qualname__", "")


def validate_method_name(name: str) -> None:
    """Refuse a name that is neither in the table nor of the form module:NAME, without importing anything.

    Raises:
        ConfigError: the text has the nearest name.
    """
    if name not in METHODS and not _ENTRY_POINT.fullmatch(name):
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(METHODS)}, or module:NAME of your own"
        raise ConfigError(f"no method is called {name!r}: {hint}")


def resolve_method(name: str) -> Method:
    """Return the method that `algorithm.name` names; raises `ConfigError` with the nearest name."""
    validate_method_name(name)
    if name in METHODS:
        return METHODS[name]
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):  # the working directory counts, as it does for an environment of one's own
        sys.path.append(here)
    try:
        method = _import_target(name)
    except Exception as error:  # the boundary: a user's file raises whatever it does
        line = " ".join(str(error).split())
        raise ConfigError(f"{name} cannot be imported as a method: {type(error).__name__}: {line}") from error
    if not isinstance(method, Method):
        raise ConfigError(f"{name} is not a Method: give the NAME of a trailnotes.config.methods.Method in module:NAME")
    METHODS.setdefault(name, method)  # for its label and its colour
    return method


def find_method(name: str) -> Method:
    """Return the method of some run without importing code.

    An unknown module:NAME counts as a training that shows no tips.
    """
    return METHODS.get(name) or Method(name, name, name, trains=True)


def get_label(name: str) -> str:
    """Return a method's label for tables and plots; its name if it is not in the table."""
    return find_method(name).label


def get_colours() -> dict[str, str]:
    """Map the labels of methods to their colours in plots."""
    return {method.label: method.colour for method in METHODS.values() if method.colour}


def list_methods(*, trains: bool) -> list[str]:
    """List the methods that change weights, or those that do not."""
    return [method.name for method in METHODS.values() if method.trains == trains]


def _import_target(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
