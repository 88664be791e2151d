"""Where environments live: many in each of several worker processes, or in this one.

`EnvPool` is loaded when it is first used: a worker process imports its own side of this package, and needs no asyncio.
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
