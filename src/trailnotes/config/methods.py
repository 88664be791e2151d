"""The methods by name: where each lives, and what everybody else must know of it.

`algorithm.name` is a name in `METHODS`, one that `register` added, or ``"module:NAME"`` where NAME is a `Method`.
Importing this module loads none of them.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trailnotes.errors import ConfigError

Drive = Callable[[Any], Awaitable[None]]
"""Drives a `TrainingRun`, or an `AdaptationRun` where it changes no weights."""


@dataclass(frozen=True, slots=True)
class Method:
    """What is to be known of a method without importing it."""

    name: str  # `algorithm.name`
    label: str  # as tables and pictures call it
    home: str | Drive  # "module:function", imported by `load`; or the coroutine function itself
    trains: bool  # changes weights: `trailnotes train`; the others: `trailnotes adapt`
    memory: bool = False  # a training that opens a memory of tips
    repeats: bool = False  # plays the panel eval.trials + 1 times
    colour: str = ""  # in pictures; "" takes one that is left

    def load(self) -> Drive:
        """The method itself."""
        drive: Drive = _named(self.home) if isinstance(self.home, str) else self.home
        return drive


# Colours are those of Okabe and Ito, which readers of every colour vision tell apart.
_BUILT_IN = (
    Method("naive", "naive", "trailnotes.algorithms.naive:naive", trains=False, colour="#6f6f6f"),
    Method(
        "reflexion", "Reflexion", "trailnotes.algorithms.reflexion.method:reflexion",
        trains=False, repeats=True, colour="#56b4e9",
    ),
    Method(
        "rememberer", "REMEMBERER", "trailnotes.algorithms.rememberer.method:rememberer",
        trains=False, colour="#e69f00",
    ),
    Method(
        "retrospex", "Retrospex", "trailnotes.algorithms.retrospex.method:retrospex",
        trains=False, colour="#a08a00",
    ),
    Method(
        "empo2-tips", "EMPO², tips only", "trailnotes.algorithms.empo2_tips:empo2_tips",
        trains=False, repeats=True, colour="#5fbf9f",
    ),
    Method("grpo", "GRPO", "trailnotes.algorithms.grpo:grpo", trains=True, colour="#d55e00"),
    Method("rloo", "RLOO", "trailnotes.algorithms.rloo:rloo", trains=True, colour="#cc79a7"),
    Method("gigpo", "GiGPO", "trailnotes.algorithms.gigpo:gigpo", trains=True, colour="#0072b2"),
    Method("empo2", "EMPO²", "trailnotes.algorithms.empo2:empo2", trains=True, memory=True, colour="#009e73"),
)  # fmt: skip
METHODS = {method.name: method for method in _BUILT_IN}


def register(method: Method) -> Method:
    """Let `algorithm.name` name a method, in this process; returns it.

    Raises:
        ConfigError: another method has the name.
    """
    if METHODS.setdefault(method.name, method) != method:
        raise ConfigError(f"a method is called {method.name!r} already: choose another name")
    return method


def method_of(name: str) -> Method:
    """The method that `algorithm.name` names.

    Raises:
        ConfigError: there is none; the text has the nearest name.
    """
    if name in METHODS:
        return METHODS[name]
    if ":" not in name:
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(METHODS)}, or module:NAME of your own"
        raise ConfigError(f"no method is called {name!r}: {hint}")
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):  # the working directory counts, as it does for an environment of one's own
        sys.path.append(here)
    try:
        method = _named(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{name} cannot be imported as a method: {error}") from error
    if not isinstance(method, Method):
        raise ConfigError(f"{name} is not a Method: give the NAME of a trailnotes.config.methods.Method in module:NAME")
    return method


def names(*, trains: bool) -> list[str]:
    """Those that change weights, or those that do not."""
    return [method.name for method in METHODS.values() if method.trains == trains]


def _named(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
