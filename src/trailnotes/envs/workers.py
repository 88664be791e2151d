"""`EnvPool`: environments for many episodes at once, in this process or in worker processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Literal, Self

from trailnotes.config import EnvConfig
from trailnotes.envs.hosts import Host, LocalHost
from trailnotes.types import Observation, Task


class Lease:
    """One environment, lent for one episode (or several, one after the other)."""

    def __init__(self, host: Host, slot: int) -> None:
        self._host = host
        self._slot = slot
        self._healthy = True

    async def reset(self, task: Task) -> Observation:
        """Start `task`. Raises `EnvError` if the environment fails, or its worker is lost or too slow."""
        return await self._call("reset", task)

    async def step(self, action: str) -> Observation:
        """Take one action. Raises as `reset` does; the lease is of no use afterwards."""
        return await self._call("step", action)

    def release(self) -> None:
        """Give the environment back."""
        self._host.give_back(self._slot, healthy=self._healthy)

    async def _call(self, operation: Literal["reset", "step"], argument: Task | str) -> Observation:
        healthy, self._healthy = self._healthy, False  # an error or a cancellation leaves it so
        observation = await self._host.call(operation, self._slot, argument)
        assert observation is not None
        self._healthy = healthy
        return observation


class EnvPool:
    """Lends environments to episodes; it serves one event loop after another, and all leases of a loop at once.

    With ``num_workers = 0`` the environments live in this process and calls run inline. Use it as a context manager,
    or call `close`.
    """

    def __init__(self, env: EnvConfig) -> None:
        self._config = env
        self._hosts: list[Host] = []

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Lease]:
        """Borrow an environment: ``async with pool.lease() as env: await env.reset(task)``.

        Raises:
            ConfigError: the environment cannot be started at all.
            MissingExtraError: a package that it needs is not installed.
        """
        host, slot = await self._borrow()
        lease = Lease(host, slot)
        try:
            yield lease
        finally:
            lease.release()
            host.load -= 1

    async def _borrow(self) -> tuple[Host, int]:
        if not self._hosts:
            self._hosts = [LocalHost(self._config.name, self._config.options)]
        host = min(self._hosts, key=lambda candidate: candidate.load)
        slot = await host.borrow()
        host.load += 1
        return host, slot

    def close(self) -> None:
        """Close all environments and end all workers. Twice is fine."""
        for host in self._hosts:
            host.close()
        self._hosts = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
