"""`check_env`: does an environment keep the contract? For authors of environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trailnotes.envs.base import Env
from trailnotes.types import Task


def check_env(env_factory: Callable[[], Env], tasks: Sequence[Task] | None = None) -> tuple[str, ...]:
    """Run every check on an environment."""
    raise NotImplementedError
