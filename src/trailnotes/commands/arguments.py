"""Arguments of several commands, their settings, and the last line of their output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trailnotes.commands.command import argument
from trailnotes.errors import ConfigError, MissingExtraError, format_install_command

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from trailnotes.config.schema import Config

CONFIG = argument(
    "config", type=Path, metavar="CONFIG", help="TOML file of settings, or a name of `config list`, such as demo"
)
OPTIONAL_CONFIG = argument("config", type=Path, metavar="CONFIG", nargs="?",
    help="TOML file of settings, or a name of `config list`; optional with --env.name")  # fmt: skip
MODEL_OR_RUN = argument("subject", metavar="MODEL_OR_RUN",
    help="a run directory (its last checkpoint), a model directory, a hub name, openai:NAME, or random")  # fmt: skip
OTHER_CONFIG = argument("--config", type=Path, metavar="CONFIG",
    help="TOML file of settings (default: that of the run directory); optional with --env.name")  # fmt: skip
ALLOW_CHANGE = argument("--allow-change", metavar="KEY", action="append", default=[],
    help="key or section of settings that may differ from the resumed run; may be repeated")  # fmt: skip

HUB_ARGUMENTS = (
    argument("--push-to-hub", metavar="OWNER/NAME",
        help="print what is published, and upload it to this repository on the Hugging Face hub"),
    argument("--private", action="store_true", help="with --push-to-hub: the repository is private"),
    argument("--licence", metavar="ID", default="",
        help="with --push-to-hub: licence that the card states, as the hub spells it (apache-2.0); without it, none"),
    argument("--dry-run", action="store_true", help="with --push-to-hub: upload nothing"),
)  # fmt: skip


def require_hub_arguments(args: Namespace) -> None:
    """Refuse `HUB_ARGUMENTS` that cannot work, before the command writes anything."""
    if args.push_to_hub is None:
        if args.private or args.licence or args.dry_run:
            raise ConfigError("--private, --licence and --dry-run need --push-to-hub OWNER/NAME")
        return
    try:
        from trailnotes.runs.hub import require_repository_name

        require_repository_name(args.push_to_hub)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"--push-to-hub needs {error.name}: {format_install_command('train')}") from error


def publish_folder(folder: Path, kind: Literal["model", "dataset"], args: Namespace) -> None:
    """Print what a folder with a card holds, and publish it as the `HUB_ARGUMENTS` say."""
    from trailnotes.runs.hub import list_files, publish

    print("\n".join(list_files(folder)))
    if args.dry_run:
        print("dry run: nothing was uploaded")
    else:
        print(f"published: {publish(folder, args.push_to_hub, kind, private=args.private)}")


def load_command_config(subject: str | None, path: Path | None, settings: Sequence[str]) -> Config:
    """Load the settings of the given file, else of the given run, else of the command line alone.

    Raises:
        ConfigError: there is no file, and the command line does not say which environment.
    """
    from trailnotes.config.toml import load_config, resolve_config

    if path is None and subject:
        named = Path(subject)
        run = named.parent.parent if named.parent.name == "checkpoints" else named
        path = run / "config.toml" if (run / "config.toml").is_file() else None
    if path is not None:
        return load_config(path, settings)
    alone = resolve_config(None, settings)
    if "env.name" in alone.origins:
        return alone.config
    no_run = f"{subject} is no run directory, which would bring its settings: " if subject else ""
    raise ConfigError(f"{no_run}name a CONFIG, or an environment by --env.name (module:Class is one of your own)")


def print_output_path(out: Path | None) -> None:
    """Print where a command wrote its files, if anywhere."""
    if out is not None:
        print(f"written to {out}")
