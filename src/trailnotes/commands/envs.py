"""The commands about environments."""

from __future__ import annotations

import functools
import textwrap
from argparse import Namespace

from trailnotes.commands.command import WIDTH, Command, argument
from trailnotes.errors import (
    ConfigError,
    EnvError,
    MissingExtraError,
    find_missing_module,
    format_install_command,
    require_extra,
)

INDENT = 21  # columns before the summary of an environment
GROUPS = {
    "Small games to try methods on, on a CPU": ("sokoban", "waymarks", "waymarks-simulator"),
    "Benchmarks": ("alfworld", "scienceworld", "textworld", "textworld-express", "webshop", "wikihow"),
    "Your own agent, and environments of other libraries": ("gateway", "gymnasium", "openenv", "verifiers"),
}
OTHERS = "From other packages"
OWN = "An environment of your own needs no entry here: --env.name module:Class (docs/extending.md)."


def _list(_: Namespace) -> None:
    from importlib.metadata import entry_points

    from trailnotes.envs import ENTRY_POINTS, ENVS

    installed = {*ENVS, *(point.name for point in entry_points(group=ENTRY_POINTS))}
    others = installed.difference(*GROUPS.values())
    for heading, names in {**GROUPS, OTHERS: sorted(others)}.items():
        if present := [name for name in names if name in installed]:
            print("\n".join([heading, *map(_describe_env, present), ""]))
    print(OWN)


def _describe_env(name: str) -> str:
    """Return the first line of the class's docstring, and the command that installs what it lacks."""
    from trailnotes.envs import get_extra, load_env_class
    from trailnotes.reporting.tables import get_console_width

    try:
        about = (load_env_class(name).__doc__ or "").strip().partition("\n")[0]
    except (ConfigError, MissingExtraError) as error:
        about = f"cannot be used: {error}"
    lines = textwrap.wrap(about, min(WIDTH, get_console_width()) - INDENT - 2) or [""]
    if (extra := get_extra(name)) and find_missing_module(extra):
        lines.append(f"not installed: {format_install_command(extra)}")
    return f"  {name:<{INDENT}}" + f"\n{'':<{INDENT + 2}}".join(lines)


def _check(args: Namespace) -> None:
    from trailnotes.config.toml import is_within, resolve_config
    from trailnotes.envs import load_env_class, make_env, validate_options
    from trailnotes.envs.check import find_faults

    require_env_packages(args.name)
    resolved = resolve_config(None, args.settings)
    if ignored := [name for name in resolved.origins if not is_within(name, ("env.options", "env.timeout"))]:
        raise ConfigError(f"envs check uses env.options and env.timeout alone: leave out {', '.join(ignored)}")
    options, timeout = resolved.config.env.options, resolved.config.env.timeout
    validate_options(args.name, load_env_class(args.name), options)
    faults, unchecked = find_faults(functools.partial(make_env, args.name, **options), timeout=timeout)
    verdict = "breaks the contract" if faults else "keeps the contract" + ", as far as it was checked" * bool(unchecked)
    print(f"{args.name} {verdict}")
    for line in [*faults, *(f"not checked: {each}" for each in unchecked)]:
        print(f"  {line}")
    if faults:
        raise EnvError(f"{args.name} breaks the contract ({len(faults)} fault{'s' * (len(faults) > 1)})")


def require_env_packages(name: str) -> None:
    """Refuse an environment whose packages are missing by `MissingExtraError`."""
    from trailnotes.envs import get_extra

    if extra := get_extra(name):
        require_extra(extra, name)


COMMANDS = (
    Command(
        name="envs list", summary="list the names that env.name accepts",
        about="List built-in environments and those that installed packages offer by an entry point of the group "
        "trailnotes.envs, and say which are not installed. An environment of your own needs neither: name it "
        "module:Class.",
        example="trailnotes envs list", run=_list,
    ),
    Command(
        name="envs check", summary="check that an environment meets the contract",
        about="Test an environment: same seed, same text; endings; odd actions; calls after the end. List all faults, "
        "the likeliest first, with what to change. A call beyond env.timeout ends the check.",
        example="trailnotes envs check waymarks-simulator", run=_check,
        arguments=(
            argument("name", metavar="NAME", help="built-in name, entry point, or module:Class"),
        ),
        settings=True,
    ),
)  # fmt: skip
