"""Registry of the methods: a method is a module that ends with ``METHOD = Method(...)``.

`algorithm.name` is the file name of a module of `trailnotes.algorithms` with hyphens, the name of an entry point
`trailnotes.methods` of an installed distribution, a name that `register` added, or ``"module:NAME"`` of a `Method`. A
module is imported when a config names its method, or when a table needs the labels of all of them; none needs torch to
be imported.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import pkgutil
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.errors import ConfigError, format_error, format_sibling_command

if TYPE_CHECKING:
    from trailnotes.config.section import Section

logger = logging.getLogger(__name__)
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
    data: str = ""  # the setting that names other runs whose episodes it learns from; "" plays another run's model
    colour: str = ""  # in plots; "" takes one that is left
    learned_from: str | TaskLister = ""  # "module:function", or the function: games beside train.split of `trains`
    metrics: tuple[tuple[str, str, str, str], ...] = ()  # of its own: name, unit, meaning, what is healthy
    sections: Mapping[str, type[Section]] = field(default_factory=dict)  # of the config, besides those of all methods
    validate: Callable[[Any], None] | None = None  # refuses a `Config` that it cannot run, by `ConfigError`
    needs_initial_model: Callable[[Any], bool] | None = None  # with this `Config`, even if `loss.kl` is 0
    anchors_rows: Callable[[Any], bool] | None = None  # besides those of [algorithm] and [rehearsal]

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
        function: MethodFunction = _import_target(self.home)
        return function

    def load_task_lister(self) -> TaskLister | None:
        """Import the function that lists the games learned from before evaluation; None if there is none."""
        return _import_target(self.learned_from) if self.learned_from else None


TIPS_ONLY_METHOD = "empo2-tips"  # plays panels with tips, rehearsals and exchanges of roles; trains nothing

LAB_METHODS = ("rememberer", "retrospex")  # of trailnotes-lab
ENTRY_POINTS = "trailnotes.methods"  # group under which other packages offer a module with a METHOD
loaded: dict[str, Method] = {}  # what `register` added, and those of modules that were imported
_failed: set[str] = set()  # names whose modules failed, each reported once
_OWN_METHOD = re.compile(r"[\w.]+:\w+")  # module:NAME


@cache
def find_modules() -> dict[str, str]:
    """Map the names of the methods of this package and of the distributions beside it to their modules."""
    files = pkgutil.iter_modules([str(Path(__file__).parents[1] / "algorithms")])
    built_in = [file.name for file in files if not file.name.startswith("_")]
    modules = {name.replace("_", "-"): f"trailnotes.algorithms.{name}" for name in built_in}
    return {point.name: point.module for point in sorted(entry_points(group=ENTRY_POINTS))} | modules


def register(method: Method) -> Method:
    """Register a method for `algorithm.name` in this process, instead of one of that name that was registered before.

    Raises:
        ConfigError: a method of an installed package has the name.
    """
    if method.name in find_modules():
        raise ConfigError(f"a method is called {method.name!r} already: choose another name")
    loaded[method.name] = method
    return method


def list_names() -> list[str]:
    """List the names of all methods, without importing any."""
    return sorted(find_modules()) + [name for name in loaded if name not in find_modules()]


def is_known(name: str) -> bool:
    """Tell whether a method of an installed package, or a registered one, has the name."""
    return name in find_modules() or name in loaded


def validate_method_name(name: str) -> None:
    """Refuse a name that is neither known nor of the form module:NAME, without importing anything.

    Raises:
        ConfigError: the text has the nearest name.
    """
    if not is_known(name) and not _OWN_METHOD.fullmatch(name):
        if name in LAB_METHODS:
            raise ConfigError(f"{name} is a method of trailnotes-lab: {format_sibling_command('trailnotes-lab')}")
        near = difflib.get_close_matches(name, list_names(), 1)
        choices = ", ".join(list_names())
        hint = f"did you mean {near[0]}?" if near else f"choose one of {choices}, or module:NAME of your own"
        raise ConfigError(f"no method is called {name!r}: {hint}")


def resolve_method(name: str) -> Method:
    """Return the method that `algorithm.name` names; raises `ConfigError` with the nearest name."""
    validate_method_name(name)
    if is_known(name):
        return find_method(name)
    add_working_directory()
    try:
        method = _import_target(name)
    except Exception as error:  # the boundary: a user's file raises whatever it does
        raise ConfigError(f"{name} cannot be imported as a method: {format_error(error)}") from error
    if not isinstance(method, Method):
        raise ConfigError(f"{name} is not a Method: give the NAME of a trailnotes.config.methods.Method in module:NAME")
    loaded.setdefault(name, method)  # for its label and its colour
    return method


def add_working_directory() -> None:
    """Let modules of the working directory be imported, as for ``python script.py``."""
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.append(here)


def find_method(name: str) -> Method:
    """Return the method of some run without importing code of others.

    An unknown module:NAME counts as a training that shows no tips.

    Raises:
        ConfigError: an installed package offers the method, and its module fails.
    """
    if name not in loaded and (module := find_modules().get(name)):
        try:
            method = importlib.import_module(module).METHOD
        except Exception as error:  # the boundary: the package of another author may fail in any way
            raise ConfigError(f"the method {name} cannot be loaded from {module}: {format_error(error)}") from error
        if not isinstance(method, Method):
            raise ConfigError(f"the method {name} cannot be loaded: {module}.METHOD is not a Method")
        loaded[name] = method
    return loaded.get(name) or Method(name, name, name, trains=True)


def load_methods() -> dict[str, Method]:
    """Load all methods, by name; a module that fails costs its method alone, and one warning."""
    methods = {}
    for name in list_names():
        try:
            methods[name] = find_method(name)
        except ConfigError as error:
            if name not in _failed:
                logger.warning("%s", error)
                _failed.add(name)
    return methods


def get_label(name: str) -> str:
    """Return a method's label for tables and plots; its name if it is not in the table."""
    method = load_methods().get(name)
    return method.label if method else name


def list_methods(*, trains: bool) -> list[str]:
    """List the methods that change weights, or those that do not."""
    return [name for name, method in load_methods().items() if method.trains == trains]


def list_sections() -> dict[str, type[Section]]:
    """Map the name of each section that belongs to methods to its type; imports all methods."""
    return {name: kind for method in load_methods().values() for name, kind in method.sections.items()}


def _import_target(target: Any) -> Any:
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
