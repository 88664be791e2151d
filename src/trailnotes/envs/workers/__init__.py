"""Where environments live: many in each of several worker processes, or in this one."""

from trailnotes.envs.workers.pool import EnvPool

__all__ = ["EnvPool"]
