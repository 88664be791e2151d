"""The contract of an environment, the registry of names, the validators of options, and how actions are read.

A name is built in (`ENVS`), an entry point of the group ``trailnotes.envs``, or ``"module:Class"``. Importing this
module loads none of them.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import math
import re
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from trailnotes.config.methods import add_working_directory
from trailnotes.errors import (
    ConfigError,
    EnvError,
    MissingExtraError,
    format_error,
    format_install_command,
    format_sibling_command,
    list_extras,
    redact_environment,
)
from trailnotes.types import Observation, Task


@runtime_checkable
class Env(Protocol):
    """A text environment. Synchronous, single-threaded, one episode at a time; it may be reset any number of times.

    A class that a user registers is constructed with the options of the config's ``[env.options]`` as keyword
    arguments. Besides these methods it has a static or class method ``tasks(split, **options) -> list[Task]``: the
    same list in every process, forever. It may have a static or class method ``identity(**options)``: what results must
    have in common to be comparable, as a mapping of JSON values. It may have an attribute ``memory_bytes``: memory of
    the host that an instance takes, for estimates.
    """

    def reset(self, task: Task) -> Observation:
        """Start `task`; the observation has the `instruction`. The same task gives the same text."""

    def step(self, action: str) -> Observation:
        """Take one action, any string; after the end it raises `EnvError`."""

    def close(self) -> None: ...


_CALLERS: Final = (
    *(str(Path(__file__).with_name(name)) for name in ("base.py", "check.py", "workers")),
    str(Path(__file__).parents[1] / "gateway/pool.py"),
)
_MAX_FRAMES, _MAX_TRACEBACK = 20, 8000  # frames, and characters


@contextmanager
def wrap_env_errors(what: str) -> Iterator[None]:
    """Turn errors of environment code into `EnvError`, so that one episode is lost, not the run.

    Deliberate errors (`ConfigError`, `MissingExtraError`) pass as they are.
    """
    try:
        yield
    except (ConfigError, MissingExtraError, EnvError):
        raise
    except (Exception, SystemExit) as error:
        text, trace = describe_env_error(error)
        failure = EnvError(f"{what} raised {text}")
        failure.traceback = trace
        raise failure from error


def describe_env_error(error: BaseException) -> tuple[str, str]:
    """Format an error of environment code with its file and line, and its traceback without the frames around it."""
    frames = list(traceback.extract_tb(error.__traceback__))
    while frames and frames[0].filename.startswith(_CALLERS):
        del frames[0]
    if not frames:
        return format_error(error), ""
    folder = Path(frames[0].filename).parent
    place = next(frame for frame in reversed(frames) if Path(frame.filename).is_relative_to(folder))
    lines = [*traceback.format_list(frames[-_MAX_FRAMES:]), *traceback.format_exception_only(error)]
    trace = redact_environment("".join(lines))[-_MAX_TRACEBACK:]
    return f"{format_error(error)} ({Path(place.filename).name}:{place.lineno})", trace


# --- names

ENVS: dict[str, str] = {
    "gateway": "trailnotes.gateway.tasks:GatewayEnv",
    "textworld": "trailnotes.envs.textworld.env:TextWorldEnv",
    "waymarks": "trailnotes.envs.waymarks.env:WaymarksEnv",
    "waymarks-simulator": "trailnotes.envs.waymarks.env:WaymarksSimulator",
}
SPLITS = ("train", "validation", "test")  # of most environments
ENTRY_POINTS = "trailnotes.envs"  # the group by which other packages offer environments


def get_extra(name: str) -> str:
    """Return the extra that the environment needs; "" where it needs none."""
    extra = {"waymarks": "textworld", "gateway": "web"}.get(name, name)
    return extra if extra in list_extras() else ""


def make_env(name: str, **options: Any) -> Env:
    """Make an environment with the options of ``[env.options]``.

    Raises:
        ConfigError: an unknown name or option; the text has the nearest known one.
        MissingExtraError: a package is not installed; the text names the extra.
    """
    cls = load_env_class(name)
    validate_options(name, cls, options)
    with _translate_import_error(name):
        env: Env = cls(**select_accepted(cls, options))
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
    usual = "" if split in SPLITS else f" (splits are usually {', '.join(SPLITS)})"
    with wrap_env_errors(f"tasks({split!r}) of {name}{usual}"), _translate_import_error(name):
        listed = list(tasks(split, **select_accepted(tasks, options)))
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
        described = dict(identity(**select_accepted(identity, options)))
        stored: dict[str, Any] = json.loads(json.dumps(described, allow_nan=False))  # as a run reads it back
        return stored


def load_env_class(name: str) -> Callable[..., Any]:
    """Import the class behind a name. Raises as `make_env` does."""
    if name in ENVS:
        return _import_class(name, ENVS[name])
    if ":" in name:
        return _import_class(name, name)
    offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in offered:
        return _import_class(name, offered[name].value.partition("[")[0].strip())  # "module:Class [extra]" is allowed
    if own := _suggest_own(name):
        raise ConfigError(f"env.name = {name!r} is unknown; did you mean {own}?")
    known = sorted({*ENVS, *offered})
    more = "" if offered else f" ({format_sibling_command('trailnotes-worlds')} brings more)"
    near = suggest_nearest(name, known)
    raise ConfigError(f"env.name = {name!r} is unknown{near}{more}; one of your own is named module:Class")


def _suggest_own(name: str) -> str:
    """Suggest module:Class for the path of a file that is here, or its dotted name; "" where none is."""
    module, _, cls = name.removesuffix(".py").removeprefix("./").replace("/", ".").rpartition(".")
    for stem, own in ((f"{module}.{cls}".lstrip("."), ""), (module, cls)):
        file = Path(f"{stem.replace('.', '/')}.py")
        if stem and file.is_file():
            classes = re.findall(r"^class (\w+)", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
            return f"{stem}:{own or [*classes, 'Class'][0]}"
    return ""


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
    add_working_directory()
    try:
        with _translate_import_error(name):
            module = importlib.import_module(module_name)
    except MissingExtraError:
        raise
    except Exception as error:
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == module_name
        hint = ": run the command in the folder of its file" if is_absent else ""
        if is_absent and (stem := module_name.removesuffix(".py")) != module_name:
            hint = f": write {stem}:{class_name}"
        raise ConfigError(f"env.name = {name!r}: importing {module_name} raised {format_error(error)}{hint}") from error
    if not callable(cls := getattr(module, class_name, None)):
        raise ConfigError(f"env.name = {name!r}: {module_name} has no {class_name!r}")
    if any(base.__module__ == "gymnasium.core" for base in getattr(cls, "__mro__", ())):
        raise ConfigError(f"env.name = {name!r} is an environment of Gymnasium: register it in {module_name}, "
                          f'and set env.name = "gymnasium", env.options.id = "{module_name}:NAME-v0"')  # fmt: skip
    return cls  # type: ignore[no-any-return]


@contextmanager
def _translate_import_error(name: str) -> Iterator[None]:
    """Turn a missing package of a known environment into the extra that provides it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = get_extra(name)
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


def select_accepted(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Select the options that `function` accepts: one section serves the class and its `tasks`.

    A class that hands any keyword on to its base gets no option that `tasks` alone names, since the base takes none.
    """
    named, takes_any = _inspect_parameters(function)
    of_tasks: set[str] = set()
    if takes_any and isinstance(function, type) and callable(tasks := getattr(function, "tasks", None)):
        constructors = [vars(base)["__init__"] for base in function.__mro__ if "__init__" in vars(base)]
        of_tasks = {*_inspect_parameters(tasks)[0]}.difference(*(_inspect_parameters(each)[0] for each in constructors))
    return {key: value for key, value in options.items() if (takes_any and key not in of_tasks) or key in named}


# --- values of ``[env.options]``; each error names the option and its allowed values

Value = TypeVar("Value", str, int, bool)
_TYPE_NAMES: Final[Mapping[type, str]] = {str: "a text", int: "a whole number", bool: "true or false"}


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the known names nearest to a word, whatever their case, for the end of an error; else list all."""
    lowered = {name.lower(): name for name in known}
    if near := difflib.get_close_matches(word.lower(), lowered, n=2):
        return f"; did you mean {' or '.join(lowered[name] for name in near)}?"
    return f" (known: {', '.join(lowered.values()) or 'none'})"


def require_type(kind: type[Value], key: str, value: object, *, where: str = "env.options.") -> Value:
    """Require a value of this very type (a bool is no number); raises `ConfigError`, which names `where`."""
    if type(value) is not kind:
        raise ConfigError(f"{where}{key} = {value!r} must be {_TYPE_NAMES[kind]}")
    return value


def require_choice(key: str, value: object, known: Collection[str], *, where: str = "env.options.") -> str:
    text = require_type(str, key, value, where=where)
    if text not in known:
        raise ConfigError(f"{where}{key} = {text!r} is unknown: use {' or '.join(map(repr, known))}")
    return text


def require_text_list(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"env.options.{key} = {value!r} must be a list of names")
    return tuple(value)


def require_table(key: str, value: object) -> dict[str, Any]:
    """Require a table, and copy it; raises `ConfigError`."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"env.options.{key} = {value!r} must be a table of names and values")
    return dict(value)


def require_int(key: str, number: object, least: int = 1, most: float = math.inf) -> int:
    """Require a whole number from `least` to `most`; raises `ConfigError`."""
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        up_to = f"{least} or more" if most == math.inf else f"{least} to {most}"
        raise ConfigError(f"env.options.{key} = {number!r} must be a whole number, {up_to}")
    return number


# --- actions

_WILL: Final = (
    r"will|shall|should|must|can|could|may|might|would like to|would|want to|need to|have to|am (?:now )?going to|"
    r"am about to|decide to|choose to|plan to|intend to|try to"
)
_INTENT: Final = rf"(?:I|[Ww]e)(?:\s+(?:{_WILL})|['\u2019](?:ll|d like to|d|m (?:now )?going to))?"
_OPENING: Final = re.compile(
    r"^(?:(?i:ok|okay|alright|all right|sure|well|now|next|first|finally|so|then|therefore)\b\s*(?:[,:!.]\s*)?)*"
    r"(?:I (?:think|believe|guess)(?: that)?\s+(?=I|we))?"
    rf"(?:{_INTENT}|[Ll]et (?:me|us)|[Ll]et['\u2019]s|(?:[Mm]y|[Tt]he)(?: next| best)? (?:action|move|step) is to)\s+"
    r"(?:(?:now|then|next|first|just|try to)\s+)*(?=[^\W\d_])"
)
# "I am going to the kitchen" lacks the command word "go", and its "to" belongs to the place.
_PROGRESSIVE: Final = re.compile(
    r"\b(I|[Ww]e)(?: am| are|['\u2019]m|['\u2019]re) (?:now )?going (?=to (?:the|a|an|my)\b)"
)

_MAX_ACTION: Final = 500  # characters of an action that are read
_STRIPPED_CHARS: Final = " \t\r\n.,;:!\"'`"  # decoration around an action


def strip_intent(action: str) -> str:
    """Strip the intent in "I will COMMAND", "Let me COMMAND" or "Okay, I'll now COMMAND".

    For games whose commands are imperatives. A small "i" stays: to parsers it is short for inventory.
    """
    return _OPENING.sub("", _PROGRESSIVE.sub(r"\1 will go ", action))


def normalize_command(action: str) -> str:
    """Normalize an action: no intent, single blanks, nothing around the command."""
    return " ".join(strip_intent(action[:_MAX_ACTION].strip()).split()).strip(_STRIPPED_CHARS)


def match_offered(action: str, offered: Sequence[str]) -> str:
    """Match `action` to one of `offered` up to case and intent; else return its normalized form."""
    if action in offered:
        return action
    words = normalize_command(action)
    return next((other for other in offered if other.casefold() == words.casefold()), words)
