"""Reads settings from TOML files and ``--section.key value``, and writes the resolved tree.

Precedence, lowest first: defaults, preset, file, command line. TOML has no null; the word "none" is null.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from trailnotes.config.builtin import find_config
from trailnotes.config.former import RENAMED_KEYS, drop_removed_keys, rename_keys
from trailnotes.config.methods import list_names, list_sections, resolve_method
from trailnotes.config.model_schema import EngineConfig, LearnerConfig
from trailnotes.config.presets import PRESETS
from trailnotes.config.schema import Config, config_type, find_method_name, full_config_type
from trailnotes.config.section import Section, describe_allowed
from trailnotes.errors import ConfigError
from trailnotes.storage.files import parse_json, read_toml
from trailnotes.types import StrPath

RUNTIME_KEYS = (
    *("cluster", "endpoint", "env.num_workers", "env.max_envs", "env.timeout", "run.threads", "train.keep_optimizer"),
    *(f"engine.{name}" for name in EngineConfig.model_fields if name != "name"),
    *(f"learner.{name}" for name in LearnerConfig.model_fields if name not in {"name", "anchor_by"}),
)
"""Settings of where and how fast a run plays, what it may cost and what it leaves: not of what comes out."""

BATCH_SETTINGS = {
    "rollout.temperature": "eval.temperature",
    "rollout.num_tasks": "eval.num_tasks",
    "rollout.group_size": "eval.num_samples",
}
"""Settings of a training's batches, with those that panels have in their place."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@contextlib.contextmanager
def _refuse_deep_nesting() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise ConfigError("a setting nests too deeply: no environment takes such a value") from None


@dataclass(frozen=True)
class ResolvedConfig:
    config: Config
    origins: Mapping[str, str]  # "rollout.group_size" -> "preset" | the file's name | "command line"


def load_config(path: StrPath | None = None, overrides: Sequence[str] = (), *, trusted: bool = True) -> Config:
    """Read a TOML file (None: defaults alone), and apply `overrides` to it.

    `path` may also name a config of the package: "demo" or "builtin:demo" (``trailnotes config list``). `overrides` are
    words of a command line, ``["--optim.lr", "1e-5", "--run.name=first"]``; values are TOML, and otherwise plain
    strings. Where `algorithm.name` is module:NAME and a section is unknown, the module is imported, which may bring
    it; a file that is not `trusted`, of a run that is only looked at, is read without that section instead.

    Raises:
        ConfigError: one line that names the key, where it was set, and the fix.
    """
    return resolve_config(path, overrides, trusted=trusted).config


@_refuse_deep_nesting()
def resolve_config(
    path: StrPath | None = None, overrides: Sequence[str] = (), *, trusted: bool = True
) -> ResolvedConfig:
    """Read settings as `load_config` does, with the origin of every key."""
    given = [("command line", parse_overrides(overrides))]
    if path is not None:
        given.insert(0, (str(path), _read_config_file(find_config(path))))
    trees = [(origin, drop_removed_keys(rename_keys(tree), origin)) for origin, tree in given]
    preset = next((tree["preset"] for _, tree in reversed(trees) if "preset" in tree), "")
    if isinstance(preset, str) and preset in PRESETS:
        trees.insert(0, ("preset", PRESETS[preset]))
    name = find_method_name(*(tree for _, tree in trees))
    if trusted and ":" in name:
        # A config records the defaults of the user's method. One that cannot be imported is refused where it is needed.
        with contextlib.suppress(ConfigError):
            trees.append(("defaults", {section: {} for section in resolve_method(name).sections}))
    kind = config_type(*(tree for _, tree in trees), trusted=trusted)
    if not trusted and ":" in name:
        trees = [(origin, {name: tree[name] for name in tree if name in kind.model_fields}) for origin, tree in trees]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, tree in trees:
        for name, value in _flatten_tree(kind, tree, origin).items():
            values[name] = _merge_trees(values.get(name), value)
            origins[name] = origin
    whole: dict[str, Any] = {}
    for name, value in values.items():
        _set_nested(whole, name, value)
    try:
        # strict types, as in TOML: "8" is not a number and 1.5 not an integer; JSON lets an array be a tuple
        config = kind.model_validate_json(json.dumps(whole, default=str), strict=True)
    except ValidationError as error:
        raise ConfigError(_explain_error(error, values, origins)) from None
    return ResolvedConfig(config, origins)


@_refuse_deep_nesting()
def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Parse ``["--optim.lr", "1e-5", ...]`` into a tree, without checking names."""
    tree: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            raise ConfigError(f"command line: cannot read {word!r}: settings are written --section.key value")
        name, equals, text = word[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"command line: --{name} needs a value: --{name} VALUE")
            text = rest.pop(0)
        _set_nested(tree, name, _parse_value(name, text))
    return tree


def to_toml(config: Config) -> str:
    """Write every key of the config as TOML, which `load_config` reads back."""
    return "\n".join(line for line, _ in _iter_toml_lines(config)) + "\n"


def render_config(config: Config, origins: Mapping[str, str] | None = None) -> str:
    """Render the resolved tree as TOML with each key's meaning, source, allowed values and origin."""
    lines = []
    for line, name in _iter_toml_lines(config):
        notes = [*explain_key(name), (origins or {}).get(name, "default")] if name else []
        lines.append(f"{line:<32} # {' | '.join(filter(None, notes))}" if name else line)
    return "\n".join(lines) + "\n"


def explain_key(name: str) -> tuple[str, str]:
    """Explain a key: its meaning with the source, and the values that it takes and what it needs ("" for neither)."""
    field = find_field(name)
    assert field is not None
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    values = describe_allowed(field)
    if name == "algorithm.name":
        values = "one of {}, or module:NAME of your own".format(", ".join(f'"{method}"' for method in list_names()))
    source, needs = (f" ({extra['source']})" if "source" in extra else ""), extra.get("needs")
    return f"{field.description}{source}", "; ".join(filter(None, [values, f"needs {needs}" if needs else ""]))


def diff_configs(first: Config, second: Config) -> list[str]:
    """List the dotted names of keys whose values differ, in the order of the tree."""
    fields = collect_fields(type(first)) | collect_fields(type(second))
    defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    a, b = defaults | flatten_config(first), defaults | flatten_config(second)
    return [name for name in fields if a[name] != b[name]]


def is_within(name: str, keys: Iterable[str]) -> bool:
    """Tell whether a dotted name is one of `keys`, or in a section that is."""
    present = (RENAMED_KEYS.get(key, key) for key in keys)
    return any(name == key or name.startswith(f"{key}.") for key in present)


def flatten_config(config: Config) -> dict[str, Any]:
    """Map the dotted name of every key to its value."""
    return {name: functools.reduce(getattr, name.split("."), config) for name in collect_fields(type(config))}


@functools.cache
def collect_fields(kind: type[Config] = Config) -> dict[str, FieldInfo]:
    """Map the dotted name of every key, not section, of a class of configs to its field."""
    return dict(_iter_fields(kind))


def find_field(name: str) -> FieldInfo | None:
    # in the shared sections first; the others import all methods
    return collect_fields().get(name) or collect_fields(full_config_type()).get(name)


def _iter_fields(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        inner = get_section_type(field)
        if inner is None:
            yield prefix + name, field
        else:
            yield from _iter_fields(inner, f"{prefix}{name}.")


def get_section_type(field: FieldInfo) -> type[Section] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _is_accepted(field: FieldInfo, kind: type) -> bool:
    alternatives = get_args(field.annotation) if get_origin(field.annotation) is UnionType else ()
    return field.annotation is kind or kind in alternatives


def _read_config_file(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}): give the path of a TOML config") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None


def _parse_value(name: str, text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except ValueError:
        try:  # tables and lists of JSON are understood, too
            parsed = {"value": parse_json(text)} if text.startswith(("{", "[")) else {}
        except ValueError:
            return text
    field = find_field(RENAMED_KEYS.get(name, name))
    wants_text = field is not None and _is_accepted(field, str) and not isinstance(parsed.get("value"), str)
    return text if wants_text or parsed.keys() != {"value"} else parsed["value"]


def _set_nested(tree: dict[str, Any], name: str, value: Any) -> None:
    *sections, last = name.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"command line: {name} is set inside {section}, which already has a plain value")
    tree[last] = _merge_trees(tree.get(last), value)


def _flatten_tree(section: type[Section], tree: Mapping[str, Any], origin: str, prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        field = section.model_fields.get(name)
        if field is None:
            is_table = isinstance(value, Mapping)
            raise ConfigError(f"{origin}: {_describe_unknown(section, name, prefix, is_table=is_table)}")
        inner = get_section_type(field)
        if inner is None:
            leaves[prefix + name] = None if value == "none" and _is_accepted(field, type(None)) else value
        elif isinstance(value, Mapping):
            leaves |= _flatten_tree(inner, value, origin, f"{prefix}{name}.")
        else:
            raise ConfigError(f"{origin}: {prefix}{name} is a section: set one of its keys, {prefix}{name}.KEY")
    return leaves


def _describe_unknown(section: type[Section], name: str, prefix: str, *, is_table: bool) -> str:
    if not prefix and name in ("compare", "methods", "panels"):
        return "this is a comparison of methods: trailnotes compare run FILE runs it"
    where = f"section [{prefix[:-1]}]" if prefix else "the config"
    known = [*section.model_fields, *(list_sections() if issubclass(section, Config) else ())]
    near = [prefix + match for match in difflib.get_close_matches(name, known, 1)]
    if not near and is_table and not prefix:
        return f'{where} has no section {name!r}: that of your own method needs algorithm.name = "module:NAME"'
    if not near:
        last_parts = {dotted: dotted.rpartition(".")[2] for dotted in collect_fields(full_config_type())}
        matches = difflib.get_close_matches(name, last_parts.values(), 1, 0.75)
        near = [dotted for dotted, part in last_parts.items() if part in matches]
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known)}"
    return f"{where} has no key {name!r}: {hint}"


def _merge_trees(under: Any, over: Any) -> Any:
    if not (isinstance(under, Mapping) and isinstance(over, Mapping)):
        return over
    return {**under, **{name: _merge_trees(under.get(name), value) for name, value in over.items()}}


def _explain_error(error: ValidationError, values: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    first, *others = error.errors()
    more = f" (and {len(others)} more)" if others else ""
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be", 1)
    parts = [str(part) for part in first["loc"]]
    name = next((n for n in (".".join(parts[:i]) for i in range(len(parts), 0, -1)) if n in values), "")
    if not name:
        return message + more
    meaning, _ = explain_key(name)
    if first["type"] == "dict_type":
        message = f"must be a table: write --{name}.KEY VALUE, or {{ KEY = VALUE }} for all of it"
    return f"{origins[name]}: {name} = {format_toml_value(values[name])}: {message} ({meaning}){more}"


def _iter_toml_lines(config: Config) -> Iterator[tuple[str, str]]:
    """Yield pairs of a TOML line and the dotted name of its key ('' for headers and blanks)."""
    last = ""
    for name, value in flatten_config(config).items():
        section, _, own = name.rpartition(".")
        if section != last:
            yield from (("", ""), (f"[{section}]", ""))
            last = section
        yield f"{own} = {format_toml_value(value)}", name


def format_toml_value(value: Any) -> str:
    """Write a value as TOML on one line."""
    match value:
        case None:
            return '"none"'
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            names = [name if _BARE_KEY.fullmatch(name) else format_toml_value(name) for name in value]
            items = ", ".join(
                f"{name} = {format_toml_value(item)}" for name, item in zip(names, value.values(), strict=True)
            )
            return f"{{ {items} }}" if items else "{}"
        case _:
            return f"[{', '.join(map(format_toml_value, value))}]"
