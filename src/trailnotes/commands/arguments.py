"""Arguments of several commands, and their settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import argument
from trailnotes.errors import ConfigError

if TYPE_CHECKING:
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


def load_command_config(
    subject: str | None, path: Path | None, settings: Sequence[str], *, plays_panel: bool = False
) -> Config:
    """Load the settings of the given file, else of the given run, else of the command line alone.

    Raises:
        ConfigError: there is no file, and the command line does not say which environment; it names another model
            than `subject`; it names a server, and `subject` is no model of one, so that the hub would be asked; or a
            setting of training batches, for a panel.
    """
    from trailnotes.config.toml import BATCH_SETTINGS, resolve_config

    if path is None and subject:
        named = Path(subject)
        run = named.parent.parent if named.parent.name == "checkpoints" else named
        path = run / "config.toml" if (run / "config.toml").is_file() else None
    resolved = resolve_config(path, settings)
    if path is None and "env.name" not in resolved.origins:
        if subject and subject.endswith(".toml"):
            raise ConfigError(f"{subject} is a config: name the model or the run, and --config {subject} behind it")
        no_run = f"{subject} is no run directory, which would bring its settings: " if subject else ""
        raise ConfigError(f"{no_run}name a CONFIG, or an environment by --env.name (module:Class is one of your own)")
    given = {name for name, origin in resolved.origins.items() if origin == "command line"}
    for name, other in BATCH_SETTINGS.items():
        if plays_panel and name in given:
            raise ConfigError(f"--{name} is of training batches: panels are played by --{other}")
    if subject and "model.path" in given:
        raise ConfigError(f"{subject} is the model here, and --model.path another: leave out --model.path")
    config, is_here = resolved.config, subject is None or subject == "random" or Path(subject).exists()
    names = (subject or "", config.memory.embedder, config.algorithm.author)
    asks_server = any(name.startswith(("openai:", "builtin:")) for name in names)
    if "endpoint.base_url" in given and not is_here and not asks_server:
        raise ConfigError(f"{subject} is no directory here: did you mean openai:{subject}, at the endpoint.base_url?")
    return config
