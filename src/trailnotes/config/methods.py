"""Registry of the methods: a method is a module of `trailnotes.algorithms` that ends with ``METHOD = Method(...)``.

`algorithm.name` is the file name of such a module with hyphens, a name that `register` added, or ``"module:NAME"`` of a
`Method`. A module is imported when a config names its method, or when a table needs the labels of all of them; none
needs torch to be imported.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.errors import ConfigError

if TYPE_CHECKING:
    from trailnotes.config.section import Section

MethodFunction = Callable[[Any], Awaitable[None]]
"""Carries out an `Iteration`, or drives an `AdaptationRun` where it changes no weights."""
TaskLister = Callable[[Any], Iterable[Any]]
"""From the `Config` of a run to the `Task`s that it learns from, which no panel may hold."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method: its function, its settings, and the facts that other modules need."""

    name: str  # `algorithm.name`
    label: str  # in tables and plots
    home: str | MethodFunction  # the coroutine function, or "module:function", which `load` imports
    trains: bool  # changes weights: `trailnotes train`; the others: `trailnotes adapt`
    memory: bool = False  # a training that opens a memory of tips
    plain: bool = False  # and shows them to no member: all act without
    writes: bool = False  # a training that writes tips without such a memory
    repeats: bool = False  # plays the panel eval.trials + 1 times
    data: str = ""  # the setting that names other runs whose episodes it learns from; "" plays another run's model
    colour: str = ""  # in plots; "" takes one that is left
    learned_from: str | TaskLister = ""  # "module:function", or the function: games beside train.split of `trains`
    metrics: tuple[tuple[str, str, str, str], ...] = ()  # of its own: name, unit, meaning, what is healthy
    sections: Mapping[str, type[Section]] = field(default_factory=dict)  # of the config, besides those of all methods
    validate: Callable[[Any], None] | None = None  # refuses a `Config` that it cannot run, by `ConfigError`
    needs_initial_model: Callable[[Any], bool] | None = None  # with this `Config`, even if `loss.kl` is 0
    anchors_rows: Callable[[Any], bool] | None = None  # besides those of [algorithm] and [rehearsal]
    count_episodes: Callable[[Any, int], int] | None = None  # played, from those that tasks and samples multiply to

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

_BUILT_IN = {
    module.name.replace("_", "-"): f"trailnotes.algorithms.{module.name}"
    for module in pkgutil.iter_modules([str(Path(__file__).parents[1] / "algorithms")])
    if not module.name.startswith("_")
}
loaded: dict[str, Method] = {}  # what `register` added, and those of the package that were imported
_ENTRY_POINT = re.compile(r"[\w.]+:\w+")  # module:NAME


def register(method: Method) -> Method:
    """Register a method for `algorithm.name` in this process, instead of one of that name that was registered before.

    Raises:
        ConfigError: a method of the package has the name.
    """
    if method.name in _BUILT_IN:
        raise ConfigError(f"a method is called {method.name!r} already: choose another name")
    loaded[method.name] = method
    return method


def list_names() -> list[str]:
    """List the names of all methods, without importing any."""
    return [*_BUILT_IN, *(name for name in loaded if name not in _BUILT_IN)]


def is_known(name: str) -> bool:
    """Tell whether a method of this package, or a registered one, has the name."""
    return name in _BUILT_IN or name in loaded


def validate_method_name(name: str) -> None:
    """Refuse a name that is neither known nor of the form module:NAME, without importing anything.

    Raises:
        ConfigError: the text has the nearest name.
    """
    if not is_known(name) and not _ENTRY_POINT.fullmatch(name):
        near = difflib.get_close_matches(name, list_names(), 1)
        choices = ", ".join(list_names())
        hint = f"did you mean {near[0]}?" if near else f"choose one of {choices}, or module:NAME of your own"
        raise ConfigError(f"no method is called {name!r}: {hint}")


def resolve_method(name: str) -> Method:
    """Return the method that `algorithm.name` names; raises `ConfigError` with the nearest name."""
    validate_method_name(name)
    if is_known(name):
        return find_method(name)
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
    loaded.setdefault(name, method)  # for its label and its colour
    return method


def find_method(name: str) -> Method:
    """Return the method of some run without importing code of others.

    An unknown module:NAME counts as a training that shows no tips.
    """
    if name in _BUILT_IN and name not in loaded:
        loaded[name] = importlib.import_module(_BUILT_IN[name]).METHOD
    return loaded.get(name) or Method(name, name, name, trains=True)


def get_label(name: str) -> str:
    """Return a method's label for tables and plots; its name if it is not in the table."""
    return find_method(name).label


def get_colours() -> dict[str, str]:
    """Map the labels of methods to their colours in plots."""
    return {method.label: method.colour for method in map(find_method, list_names()) if method.colour}


def list_methods(*, trains: bool) -> list[str]:
    """List the methods that change weights, or those that do not."""
    return [name for name in list_names() if find_method(name).trains == trains]


def list_sections() -> dict[str, type[Section]]:
    """Map the name of each section that belongs to methods to its type; imports all methods."""
    return {name: kind for method in map(find_method, list_names()) for name, kind in method.sections.items()}


def _import_target(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
