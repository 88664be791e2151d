"""`EnvPool`: environments for many episodes at once, here or in worker processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from trailnotes.envs.workers.hosts import Host, LocalHost, Worker
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task

if TYPE_CHECKING:
    from trailnotes.config.schema import EnvConfig

MAX_ATTEMPTS = 3  # workers started for one lease before the environment is given up


class Lease:
    """One environment, lent for one episode (or several, one after the other)."""

    def __init__(self, host: Host, slot: int, failure: EnvError | None = None) -> None:
        self._host = host
        self._slot = slot
        self._failure = failure  # why the environment could not be made: the first call says so
        self._healthy = failure is None

    async def reset(self, task: Task) -> Observation:
        """Start `task`. Raises `EnvError` if the environment fails, or its worker is lost or too slow."""
        return await self._call("reset", task)

    async def step(self, action: str) -> Observation:
        """Take one action. Raises as `reset` does; the lease is of no use afterwards."""
        return await self._call("step", action)

    def release(self) -> None:
        self._host.load -= 1
        if not self._failure:
            self._host.give_back(self._slot, healthy=self._healthy)

    async def _call(self, operation: Literal["reset", "step"], argument: Task | str) -> Observation:
        if self._failure:
            raise self._failure
        healthy, self._healthy = self._healthy, False  # an error or a cancellation leaves it so
        observation = await self._host.call(operation, self._slot, argument)
        assert observation is not None
        self._healthy = healthy
        return observation


class EnvPool:
    """A lender of environments; it serves one event loop after another, and all leases of a loop at once.

    ``env.num_workers`` processes share the leases evenly; 0 keeps them in this process, without time limits. A worker
    that dies, hangs or stops is killed, its leases fail with `EnvError`, and the next lease starts another. Use the
    pool as a context manager, or call `close`.
    """

    def __init__(
        self, env: EnvConfig, *, heartbeat: float = 15.0, make_host: Callable[[int], Host] | None = None
    ) -> None:
        """Prepare a pool; nothing starts before the first lease.

        `heartbeat` is the silence in seconds after which a worker counts as hung; `make_host` starts the worker of an
        index elsewhere.
        """
        self._config = env
        self._heartbeat = heartbeat
        self._make_host = make_host if make_host and env.num_workers else self._start_host
        self._hosts: list[Host | None] = [None] * max(1, env.num_workers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._num_leases = 0

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Lease]:
        """Borrow an environment: ``async with pool.lease() as env: await env.reset(task)``.

        Raises:
            ConfigError: the environment cannot be started. MissingExtraError: a package that it needs is not installed.
        """
        self._listen()
        self._num_leases += 1
        try:
            lease = await self._borrow()
            try:
                yield lease
            finally:
                lease.release()
        finally:
            self._num_leases -= 1
            if not self._num_leases:
                self._stop_listening()

    def close(self) -> None:
        """Close all environments and end all workers. A second call is harmless."""
        self._stop_listening()
        for host in self._hosts:
            if host:
                host.close()
        self._hosts = [None] * len(self._hosts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def _borrow(self) -> Lease:
        """Borrow on the least loaded host; a worker lost meanwhile is not the fault of any episode."""
        failure = ""
        for _ in range(MAX_ATTEMPTS):
            host = self._least_loaded()
            host.load += 1
            try:
                return Lease(host, await host.borrow())
            except EnvError as error:
                if not host.failure:
                    return Lease(host, -1, error)
                host.load -= 1
                if host.fatal:
                    raise host.fatal from error
                failure = host.failure
            except BaseException:
                host.load -= 1
                raise
        raise ConfigError(f"env.name = {self._config.name!r} cannot be started ({MAX_ATTEMPTS} attempts): {failure}")

    def _least_loaded(self) -> Host:
        for index, old in enumerate(self._hosts):
            if old:
                old.drain()
            if old is None or old.failure:
                self._hosts[index] = host = self._make_host(index)
                if self._loop:
                    host.attach(self._loop)
        return min((host for host in self._hosts if host), key=lambda host: host.load)

    def _start_host(self, index: int) -> Host:
        config = self._config
        if not config.num_workers:
            return LocalHost(config.name, config.options)
        label = f"worker {index} of {config.name}"
        return Worker(label, config.name, config.options, timeout=config.timeout, heartbeat=self._heartbeat)

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop and not self._loop.is_closed():
            raise RuntimeError("an EnvPool serves one event loop at a time")
        self._loop = loop
        for host in filter(None, self._hosts):
            host.attach(loop)
        if self._config.num_workers:
            self._watch()

    def _stop_listening(self) -> None:
        if self._timer:
            self._timer.cancel()
        for host in filter(None, self._hosts):
            host.detach()
        self._loop = self._timer = None

    def _watch(self) -> None:
        for host in filter(None, self._hosts):
            host.watch()
        if self._loop:
            self._timer = self._loop.call_later(min(1.0, self._heartbeat / 5, self._config.timeout / 5), self._watch)
