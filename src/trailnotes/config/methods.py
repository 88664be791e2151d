"""The methods by name: where each lives, and what everybody else must know of it.

`algorithm.name` is a name in `METHODS`, one that `register` added, or ``"module:NAME"`` where NAME is a `Method`.
Importing this module loads none of them, and reading a config imports nothing: `resolve_method` does, for whoever runs it.
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

MethodFunction = Callable[[Any], Awaitable[None]]
"""Carries out an `Iteration`, or drives an `AdaptationRun` where it changes no weights."""
TaskLister = Callable[[Any], Iterable[Any]]
"""From the `Config` of a run to the `Task`s that it learns from, which no panel may hold."""


@dataclass(frozen=True, slots=True)
class Method:
    """What is to be known of a method without importing it."""

    name: str  # `algorithm.name`
    label: str  # as tables and pictures call it
    home: str | MethodFunction  # "module:function", imported by `load`; or the coroutine function itself
    trains: bool  # changes weights: `trailnotes train`; the others: `trailnotes adapt`
    memory: bool = False  # a training that opens a memory of tips
    plain: bool = False  # and shows them to no member: all act without
    writes: bool = False  # a training that writes tips without such a memory
    repeats: bool = False  # plays the panel eval.trials + 1 times
    data: str = (
        ""  # the setting that takes other runs, whose episodes it learns from; "" plays the model of another run
    )
    colour: str = ""  # in pictures; "" takes one that is left
    learned_from: str | TaskLister = ""  # "module:function", or the function: games beside train.split of `trains`

    @property
    def shows_tips(self) -> bool:
        """Whether members of its groups act with tips."""
        return self.memory and not self.plain

    @property
    def writes_tips(self) -> bool:
        """Whether training has the policy write tips, and so has any to keep alive."""
        return self.memory or self.writes

    def load(self) -> MethodFunction:
        """The method itself."""
        drive: MethodFunction = _import_target(self.home) if isinstance(self.home, str) else self.home
        return drive

    def load_task_lister(self) -> TaskLister | None:
        """What tells the games that the method learns from before it is examined; None for no others."""
        if not self.learned_from:
            return None
        told: TaskLister = (
            _import_target(self.learned_from) if isinstance(self.learned_from, str) else self.learned_from
        )
        return told


TIPS_ONLY_METHOD = (
    "empo2-tips"  # plays panels with tips, rehearsals and exchanges of roles: tips alone, no weight changes
)

# Colours are those of Okabe and Ito, which readers of every colour vision tell apart.
_BUILT_IN = (
    Method("naive", "naive", "trailnotes.algorithms.naive:naive", trains=False, colour="#6f6f6f"),
    Method(
        "reflexion", "Reflexion", "trailnotes.algorithms.reflexion.method:reflexion",
        trains=False, repeats=True, colour="#56b4e9",
    ),
    Method(
        "rememberer", "REMEMBERER", "trailnotes.algorithms.rememberer.method:rememberer",
        trains=False, colour="#e69f00", learned_from="trailnotes.algorithms.rememberer.method:load_training_tasks",
    ),
    Method(
        "retrospex", "Retrospex", "trailnotes.algorithms.retrospex.method:retrospex",
        trains=False, data="retrospex.data", colour="#a08a00",
        learned_from="trailnotes.algorithms.retrospex.transitions:load_critic_games",
    ),
    Method(
        TIPS_ONLY_METHOD, "EMPO², tips only", "trailnotes.algorithms.empo2_tips:empo2_tips",
        trains=False, repeats=True, colour="#5fbf9f", learned_from="trailnotes.algorithms.empo2_tips:load_preliminary_tasks",
    ),
    Method("grpo", "GRPO", "trailnotes.algorithms.grpo:grpo", trains=True, colour="#d55e00"),
    Method("rloo", "RLOO", "trailnotes.algorithms.rloo:rloo", trains=True, colour="#cc79a7"),
    Method("gigpo", "GiGPO", "trailnotes.algorithms.gigpo:gigpo", trains=True, colour="#0072b2"),
    Method("empo2", "EMPO²", "trailnotes.algorithms.empo2:empo2", trains=True, memory=True, colour="#009e73"),
    Method(
        "opsd", "OPSD", "trailnotes.algorithms.opsd:opsd", trains=True, memory=True, plain=True, colour="#882255",
    ),
    Method("lamer", "LaMer", "trailnotes.algorithms.lamer:lamer", trains=True, writes=True, colour="#332288"),
)  # fmt: skip
METHODS = {method.name: method for method in _BUILT_IN}
_ENTRY_POINT = re.compile(r"[\w.]+:\w+")  # module:NAME


def register(method: Method) -> Method:
    """Let `algorithm.name` name a method, in this process; returns it.

    Raises:
        ConfigError: another method has the name.
    """
    known = METHODS.get(method.name, method)
    if _locate_code(known) != _locate_code(method):
        raise ConfigError(f"a method is called {method.name!r} already: choose another name")
    METHODS[method.name] = method
    return method


def _locate_code(method: Method) -> tuple[str, str]:
    """Where its code stands: a file that is run and imported registers its method twice."""
    if isinstance(method.home, str):
        return method.home, ""
    code = getattr(method.home, "__code__", None)
    return getattr(code, "co_filename", repr(method.home)), getattr(method.home, "__qualname__", "")


def validate_method_name(name: str) -> None:
    """Refuse what cannot be the name of a method, without importing anything.

    Raises:
        ConfigError: it is neither in the table nor of the form module:NAME; the text has the nearest name.
    """
    if name not in METHODS and not _ENTRY_POINT.fullmatch(name):
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(METHODS)}, or module:NAME of your own"
        raise ConfigError(f"no method is called {name!r}: {hint}")


def resolve_method(name: str) -> Method:
    """The method that `algorithm.name` names.

    Raises:
        ConfigError: there is none; the text has the nearest name.
    """
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
    METHODS.setdefault(name, method)  # for whoever asks for its label or its colour
    return method


def find_method(name: str) -> Method:
    """The method that the settings of somebody's run name; nothing is imported for it, so that looking runs no code.

    One of module:NAME that this process has not met counts as a training that shows no tips.
    """
    return METHODS.get(name) or Method(name, name, name, trains=True)


def get_label(name: str) -> str:
    """As tables and pictures call a method; of one that is not in the table, its name."""
    return find_method(name).label


def get_colours() -> dict[str, str]:
    """Label -> colour in pictures, of the methods that have one."""
    return {method.label: method.colour for method in METHODS.values() if method.colour}


def list_methods(*, trains: bool) -> list[str]:
    """Those that change weights, or those that do not."""
    return [method.name for method in METHODS.values() if method.trains == trains]


def _import_target(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
