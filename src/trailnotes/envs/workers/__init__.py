"""Hosts of environments: worker processes, or this one.

`EnvPool` is loaded on first use, since worker processes import this package and need no asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trailnotes.envs.workers.pool import EnvPool

__all__ = ["EnvPool"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trailnotes.envs.workers import pool

    return getattr(pool, name)
