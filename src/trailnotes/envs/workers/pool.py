"""`EnvPool`: environments for many episodes at once, here or in worker processes."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from trailnotes.envs import load_env_class, make_env
from trailnotes.envs.base import Env, wrap_env_errors
from trailnotes.envs.workers.wire import encode, pack, unpack_error, unpack_observation
from trailnotes.envs.workers.worker import Worker
from trailnotes.errors import ConfigError, EnvError, TrailnotesError
from trailnotes.types import Observation, Task

if TYPE_CHECKING:
    import asyncio

    from trailnotes.config.schema import EnvConfig

    Awaited = asyncio.Future[Observation | None]

Operation = Literal["open", "reset", "step", "drop"]


class Host(ABC):
    """A place with numbered environment instances, each lent to one lease at a time and reused."""

    def __init__(self) -> None:
        self.load = 0  # live leases
        self.failure = ""  # why this host is lost; '' while it lives
        self.fatal: Exception | None = None  # why no other would do better: what the environment itself said
        self._free: list[int] = []
        self._num_slots = 0

    @abstractmethod
    async def call(self, operation: Operation, slot: int, argument: Task | str | None = None) -> Observation | None:
        """Run one operation of `Slots` on an instance; raises as `wrap_env_errors` does."""

    @abstractmethod
    def drop(self, slot: int) -> None:
        """Close an instance as soon as it is idle, without waiting."""

    @abstractmethod
    def close(self) -> None:
        """Close all instances. A second call is harmless."""

    # a host in this process needs none of these

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:  # noqa: B027
        """Listen in this event loop from now on."""

    def detach(self) -> None:  # noqa: B027
        """Stop listening in the event loop."""

    def drain(self) -> None:  # noqa: B027
        """Take all answers that have arrived."""

    def watch(self) -> None:  # noqa: B027
        """Fail if a call has waited too long; called now and then."""

    async def borrow(self) -> int:
        """Borrow an idle instance, made now if there is none."""
        if self._free:
            return self._free.pop()
        slot = self._num_slots
        self._num_slots += 1
        try:
            await self.call("open", slot)
        except BaseException:
            self.drop(slot)
            raise
        return slot

    def give_back(self, slot: int, *, healthy: bool) -> None:
        """End a loan; an unhealthy instance is not lent again."""
        if healthy:
            self._free.append(slot)
        else:
            self.drop(slot)


class LocalHost(Host):
    """Instances in this process: calls run inline, so nothing stops one that hangs."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._slots = Slots(name, options)

    async def call(self, operation: Operation, slot: int, argument: Task | str | None = None) -> Observation | None:
        """Run the operation at once."""
        return self._slots.run(operation, slot, argument)

    def drop(self, slot: int) -> None:
        """Close an instance, ignoring its errors."""
        with suppress(TrailnotesError):
            self._slots.run("drop", slot)

    def close(self) -> None:
        """Close all instances here."""
        self._slots.close()


class RemoteHost(Host):
    """Environments in another process, which answers requests one at a time, in order (`wire`).

    The time limit of a call counts from the answer before it. Once the process is lost, every call on it, now or later,
    raises `EnvError` with the reason. `label` names it in messages; both limits are in seconds.
    """

    def __init__(self, label: str, timeout: float, start_limit: float) -> None:
        super().__init__()
        self._label, self._timeout, self._start_limit = label, timeout, start_limit
        self._pending: deque[Awaited | None] = deque()  # None: no call waits for this answer
        self._head_since = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.started = False  # it imported the environment

    async def call(self, operation: Operation, slot: int, argument: Task | str | None = None) -> Observation | None:
        """Run one operation in the process. Needs `attach`."""
        if self.failure:
            raise EnvError(self.failure)
        try:
            frame = encode([operation, slot, pack(argument)])
        except (TypeError, ValueError) as error:
            raise EnvError(f"a {type(argument).__name__} does not fit JSON: {error}") from error
        import asyncio  # a worker process needs none

        answer: Awaited = asyncio.get_running_loop().create_future()
        self._request(frame, answer)
        return await answer

    def drop(self, slot: int) -> None:
        """Close an instance, after the call that it may still be in."""
        if not self.failure:
            self._request(encode(["drop", slot, None]), None)

    @abstractmethod
    def _send(self, frame: bytes, answer: Awaited | None) -> None:
        """Send a request; its answer reaches `_take`."""

    @abstractmethod
    def _end(self, why: str) -> str:
        """End the process; without `why` it ended by itself. Returns its fate, for "LABEL ..."."""

    def _request(self, frame: bytes, answer: Awaited | None) -> None:
        if not self._pending:
            self._head_since = time.monotonic()
        self._pending.append(answer)
        self._send(frame, answer)

    def _explain_overdue(self) -> str:
        """Explain why a call has waited too long; '' if none has."""
        limit = self._timeout if self.started else self._start_limit
        if not self._pending or time.monotonic() - self._head_since <= limit:
            return ""
        late = f"did not answer within env.timeout = {self._timeout:g} s"
        return late if self.started else f"did not start within {limit:g} s"

    def _take(self, message: list[Any], answer: Awaited | None) -> None:
        """Take the answer to a call that is no longer pending."""
        self._head_since = time.monotonic()
        status, *values = message
        if not self.started:
            self.started = status == "ok"
            if not self.started:
                self.fatal = unpack_error(*values)
                self._lose(f"could not start: {self.fatal}")
        if answer is None or answer.done():
            return
        if status == "ok":
            answer.set_result(None if values[0] is None else unpack_observation(values[0]))
        else:
            answer.set_exception(unpack_error(*values))

    def _lose(self, why: str = "") -> None:
        """End the process and fail all pending calls; without `why` it ended by itself."""
        if self.failure:
            return
        self.failure = f"{self._label} {self._end(why)}"
        while self._pending:
            answer = self._pending.popleft()
            if answer is not None and not answer.done():
                answer.set_exception(EnvError(self.failure))


def encode_start_request(name: str, options: Mapping[str, Any]) -> bytes:
    """Encode the first request; raises `ConfigError` for options that are not JSON."""
    try:
        return encode(["start", name, dict(options)])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env.options must hold JSON values to reach a worker: {error}") from error


class Slots:
    """Instances of one environment, by number; errors are those of `wrap_env_errors`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._options = dict(options)
        self._envs: dict[int, Env] = {}
        with wrap_env_errors(f"import of {name}"):
            load_env_class(name)

    def run(self, operation: Operation, slot: int, argument: Task | str | None = None) -> Observation | None:
        """Run the operation of this name, as a message asks for it."""
        match operation, argument:
            case "reset", Task():
                with wrap_env_errors(f"reset of task {argument.id}"):
                    return _validate_observation(self._envs[slot].reset(argument))
            case "step", str():
                with wrap_env_errors(f"step of {self._name}"):
                    return _validate_observation(self._envs[slot].step(argument))
            case "open", None:
                with wrap_env_errors(f"making {self._name}"):
                    self._envs[slot] = make_env(self._name, **self._options)
            case "drop", None:
                self.drop(slot)
            case _:
                raise EnvError(f"an environment cannot {operation} with a {type(argument).__name__}")
        return None

    def drop(self, slot: int) -> None:
        """Close the instance `slot`, if it was opened."""
        env = self._envs.pop(slot, None)
        if env is not None:
            with wrap_env_errors(f"close of {self._name}"):
                env.close()

    def close(self) -> None:
        """Close all instances, ignoring their errors."""
        for slot in list(self._envs):
            with suppress(Exception):
                self.drop(slot)


def _validate_observation(observation: object) -> Observation:
    if not isinstance(observation, Observation):
        raise EnvError(f"an environment must answer with an Observation, not {type(observation).__name__}")
    return observation


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
        """Give the environment back."""
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
