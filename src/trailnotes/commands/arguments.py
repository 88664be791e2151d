"""Arguments that several commands take, the settings that they lead to, and the last line of what they print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import argument
from trailnotes.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trailnotes.config.schema import Config

CONFIG = argument("config", type=Path, metavar="CONFIG", help="settings, a TOML file")
SUBJECT = argument(
    "subject",
    metavar="MODEL_OR_RUN",
    help="a run directory (its last checkpoint), a model directory, a hub name, openai:NAME, or random",
)
OTHER_CONFIG = argument(
    "--config", type=Path, metavar="CONFIG", help="settings, a TOML file; by default those of the run directory"
)
ALLOW_CHANGE = argument(
    "--allow-change", metavar="KEY", action="append", default=[],
    help="a key, or a section, that may differ from the run that is resumed; may be repeated",
)  # fmt: skip


def config_of(subject: str | None, path: Path | None, settings: Sequence[str]) -> Config:
    """The settings of the file given, or else of the run directory given.

    Raises:
        ConfigError: there is neither.
    """
    from trailnotes.config.toml import load_config

    own = Path(subject) / "config.toml" if subject else None
    if path is None and own is not None and own.is_file():
        path = own
    if path is None:
        if subject and subject.startswith((".", "/", "runs/")) and not Path(subject).exists():
            raise ConfigError(f"there is no {subject}")
        raise ConfigError(f"{subject} is no run directory, which would bring its settings: add --config CONFIG")
    return load_config(path, settings)


def say_where(out: Path | None) -> None:
    """Where everything was written, if anywhere."""
    if out is not None:
        print(f"written to {out}")
