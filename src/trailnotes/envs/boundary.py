"""The one place where whatever environment code raises becomes an `EnvError`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trailnotes.errors import ConfigError, EnvError, MissingExtraError


@contextmanager
def boundary(what: str) -> Iterator[None]:
    """Run environment code: one episode is lost, not the run.

    What an environment says on purpose about the configuration (`ConfigError`, `MissingExtraError`) passes as it is.
    """
    try:
        yield
    except (ConfigError, MissingExtraError, EnvError):
        raise
    except (Exception, SystemExit) as error:
        raise EnvError(f"{what} raised {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """Type and text of an error on one line of bounded length."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {text[:500]}" if text else name
