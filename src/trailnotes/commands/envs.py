"""The commands about environments."""

from __future__ import annotations

import functools
import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING

from trailnotes.commands.command import WIDTH, Command, argument

if TYPE_CHECKING:
    from argparse import Namespace

INDENT = 21  # columns before what is said of an environment


def _list(_: Namespace) -> None:
    from importlib.metadata import entry_points

    from trailnotes.envs import ENTRY_POINTS, ENVS, EXTRAS, env_class
    from trailnotes.errors import ConfigError, MissingExtraError, how_to_install, missing_package

    names = [*ENVS, *(point.name for point in entry_points(group=ENTRY_POINTS))]
    for name in sorted(set(names)):
        try:
            about = (env_class(name).__doc__ or "").strip().partition("\n")[0]
        except (ConfigError, MissingExtraError) as error:
            about = f"cannot be used: {error}"
        lines = textwrap.wrap(about, WIDTH - INDENT) or [""]
        if name in EXTRAS and missing_package(EXTRAS[name]):
            lines.append(f"not installed: {how_to_install(EXTRAS[name])}")
        print("\n".join(f"{head:<{INDENT}}{line}".rstrip() for head, line in zip_longest([name], lines, fillvalue="")))


def _check(args: Namespace) -> None:
    from trailnotes.config.toml import load_config
    from trailnotes.envs import EXTRAS, check_env, env_class
    from trailnotes.errors import MissingExtraError, how_to_install, missing_package

    if args.name in EXTRAS and (package := missing_package(EXTRAS[args.name])):
        raise MissingExtraError(f"{args.name} needs the package {package}: {how_to_install(EXTRAS[args.name])}")
    options = load_config(None, args.settings).env.options
    skipped = check_env(functools.partial(env_class(args.name), **options))
    print(f"{args.name} keeps the contract")
    for line in skipped:
        print(f"  not checked: {line}")


COMMANDS = (
    Command(
        name="envs list",
        summary="the environments that can be named in env.name",
        about="List built-in environments and those that installed packages offer by an entry point of the group "
        "trailnotes.envs, and say which are not installed. An environment of your own needs neither: name it "
        "module:Class.",
        example="trailnotes envs list",
        run=_list,
    ),
    Command(
        name="envs check",
        summary="does an environment keep the contract?",
        about="Play an environment as an author's test would: same seed, same text; endings; odd actions; what comes "
        "after the end. Stops at the first violation and says what to change.",
        example="trailnotes envs check waymarks-simulator",
        run=_check,
        arguments=(argument("name", metavar="NAME", help="built-in name, entry point, or module:Class"),),
        settings=True,
    ),
)
