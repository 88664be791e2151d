"""Errors that Trailnotes raises on purpose.

A `ConfigError` is also a `ValueError`, so callers of the Python API may catch either. `Interrupted` is a
`KeyboardInterrupt` instead: nothing that catches errors may catch it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from typing import Final

EXTRAS = {
    "train": ("torch", "transformers", "tokenizers", "safetensors", "peft", "huggingface_hub"),
    "quantize": ("bitsandbytes",),
    "textworld": ("textworld", "jericho"),
    "openai": ("openai",),
    "plot": ("matplotlib",),
    "embed": ("sentence_transformers",),
    "vllm": ("vllm",),
    "ray": ("ray",),
    "tinker": ("tinker",),
    "web": ("starlette", "uvicorn", "jinja2"),
    "mcp": ("mcp",),
}
"""Extra of this distribution -> the modules that it brings."""
EXTRAS_GROUP = "trailnotes.extras"
"""Entry points ``DISTRIBUTION = "module:EXTRAS"``, by which other distributions of ours name theirs."""


SECRET_NAMES: Final = "api_?key|key|token|secret|password|passwd|credentials"  # noqa: S105 - endings of names
SECRET_NAME: Final = re.compile(rf"(^|[._-])({SECRET_NAMES})$", re.IGNORECASE)
MIN_SECRET_CHARS: Final = 8  # shorter ones ("EMPTY", "ollama") are placeholders, and words of ordinary texts


def redact_environment(text: str) -> str:
    """Replace the keys and passwords of the environment in `text`, the output or error of foreign code, by names."""
    for name, secret in sorted(os.environ.items(), key=lambda item: -len(item[1])):
        if len(secret) >= MIN_SECRET_CHARS and SECRET_NAME.search(name):
            text = text.replace(secret, f"[{name}]")
    return text


class TrailnotesError(Exception):
    """Base of all errors raised on purpose; its text is one line fit for a user."""


class ConfigError(TrailnotesError, ValueError):
    """A setting that cannot work. The text names the key and the fix."""


class MissingExtraError(TrailnotesError, ImportError):
    """An optional dependency is not installed. The text names the extra."""


class EnvError(TrailnotesError):
    """An environment failed. The episode is recorded with `outcome = "error"` and never trained on."""

    traceback = ""  # of the environment's own code, where that raised


class SessionOver(TrailnotesError):  # noqa: N818 (it is no fault)
    """The session of an agent has ended, by its report or by the run."""


class PolicyError(TrailnotesError):
    """The policy could not be loaded, or could not answer."""


class BudgetError(TrailnotesError):
    """A request could have passed a spending limit, and was not sent. The text names the limit."""


class MemoryStoreError(TrailnotesError):
    """A memory file that is corrupt, locked or of a newer version."""


class RunError(TrailnotesError):
    """A run directory that is locked, damaged or belongs to another config."""


class ClusterError(TrailnotesError):
    """The Ray cluster cannot be reached, lacks what is asked of it, or does not answer. The text says what."""


class LearnerError(TrailnotesError):
    """A process of the learner died, hung or failed. The text says which, and why."""


class ServerError(TrailnotesError):
    """A server that trains and samples refused, failed or did not answer. The text says which, and names the fix."""

    def __init__(self, text: str, *, lost: bool = False) -> None:
        super().__init__(text)
        self.lost = lost  # whether it does not have what it was asked for


class NonFiniteError(TrailnotesError):
    """A loss or gradient was NaN or infinite; the text names the dump of the batch, whose `trajectories` are known."""

    def __init__(self, text: str, trajectories: Iterable[int] = ()) -> None:
        super().__init__(text)
        self.trajectories = tuple(trajectories)


class Interrupted(KeyboardInterrupt):
    """A signal that asked this process to end, with its `number`; the text says what is kept."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(text)
        self.number = number


def format_error(error: BaseException) -> str:
    """Format type and text of an error on one line of bounded length."""
    text = sanitize_text(str(error), 500)
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def sanitize_text(text: str, most: int) -> str:
    """Make untrusted text fit for an error: one line, cut, without keys, with "?" for what a terminal would obey."""
    line = " ".join(redact_environment(text).split())
    return "".join(letter if letter.isprintable() else "?" for letter in line[:most])


def list_extras() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Map every extra to its distribution and the modules that it brings."""
    from importlib.metadata import entry_points

    known = {extra: ("trailnotes", modules) for extra, modules in EXTRAS.items()}
    for point in entry_points(group=EXTRAS_GROUP):
        with contextlib.suppress(ImportError):  # the metadata of a package whose modules are gone
            known |= {extra: (point.name, modules) for extra, modules in point.load().items()}
    return known


def find_missing_module(extra: str) -> str:
    """Return the first module of an extra that is not installed; "" if all are. Imports none of them."""
    from importlib.util import find_spec

    return next((name for name in list_extras()[extra][1] if find_spec(name) is None), "")


def require_extra(extra: str, what: str) -> None:
    """Raise `MissingExtraError` where a package of an extra that `what` needs is not installed."""
    if package := find_missing_module(extra):
        raise MissingExtraError(f"{what} needs the package {package}: {format_install_command(extra)}")


def format_install_command(*extras: str) -> str:
    """Return the command that adds extras to this installation, wherever pip had it from."""
    known = list_extras()
    distributions = dict.fromkeys(known[extra][0] for extra in extras)
    named = (f"'{each}[{','.join(extra for extra in extras if known[extra][0] == each)}]'" for each in distributions)
    return f"pip install {' '.join(named)}"


def format_sibling_command(distribution: str) -> str:
    """Return the command that installs another distribution of ours."""
    folder = f"./packages/{distribution.removeprefix('trailnotes-')}"
    return f"pip install {distribution} (in a clone of Trailnotes: pip install -e {folder})"
