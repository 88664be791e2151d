"""`EnvPool`: environments for many episodes at once, in this process (`LocalHost`) or others (`RemoteHost`)."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from trailnotes.envs.workers.main import (
    READ_CHUNK_BYTES,
    Operation,
    Slots,
    decode_frames,
    encode,
    unpack_error,
    unpack_observation,
)
from trailnotes.errors import ConfigError, EnvError, TrailnotesError
from trailnotes.storage.child import STOP_TIMEOUT, describe_exit, kill_group, last_line, start_child
from trailnotes.types import Observation, Task

if TYPE_CHECKING:
    from trailnotes.config.schema import EnvConfig

Awaited = asyncio.Future[Observation | None]
START_TIMEOUT = 120.0  # seconds for a process to start and import the environment; more if a call may take more
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from trailnotes.envs.workers.main import main; main(int(sys.argv[2]), float(sys.argv[3]))"
)
MAX_ATTEMPTS = 3  # workers started for one lease before the environment is given up


class Host(ABC):
    """A place with numbered environment instances, each lent to one lease at a time and reused."""

    def __init__(self) -> None:
        self.load = 0  # live leases
        self.failure = ""  # why this host is lost; '' while it lives
        self.fatal: Exception | None = None  # the environment's own error, which any other host would meet
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
        """Close all instances; twice is fine."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:  # noqa: B027
        """Listen in this event loop from now on, until `detach`."""

    def detach(self) -> None: ...  # noqa: B027

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
        self._free.append(slot) if healthy else self.drop(slot)


class LocalHost(Host):
    """Instances in this process: calls run inline, so nothing stops one that hangs."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._slots = Slots(name, options)

    async def call(self, operation: Operation, slot: int, argument: Task | str | None = None) -> Observation | None:
        return self._slots.run(operation, slot, argument)

    def drop(self, slot: int) -> None:
        with suppress(TrailnotesError):
            self._slots.run("drop", slot)

    def close(self) -> None:
        self._slots.close()


class RemoteHost(Host):
    """Environments in another process, which answers requests one at a time, in order (`workers/main.py`).

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
            frame = encode([operation, slot, argument])
        except (TypeError, ValueError) as error:
            raise EnvError(f"a {type(argument).__name__} does not fit JSON: {error}") from error
        answer: Awaited = asyncio.get_running_loop().create_future()
        self._request(frame, answer)
        return await answer

    def drop(self, slot: int) -> None:
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


class Worker(RemoteHost):
    """One process in its own process group, which Ctrl-C in the terminal does not reach.

    Heartbeats come from a thread of the worker, so a stopped one is noticed without any call; a call may hold the
    interpreter, and silence it, until its own time limit. A lost worker is killed with all its children.
    """

    def __init__(self, label: str, name: str, options: Mapping[str, Any], *, timeout: float, heartbeat: float) -> None:
        """Start the process. `heartbeat`: seconds of silence without a call after which it counts as hung."""
        start_request = encode_start_request(name, options)  # before a process is started
        super().__init__(label, timeout, max(START_TIMEOUT, timeout))
        self._silence = heartbeat
        self._outbox, self._inbox = bytearray(), bytearray()
        self._last_words = b""
        self._last_message_at = time.monotonic()
        self._socket, theirs = socket.socketpair()
        arguments = [json.dumps([str(path) for path in sys.path]), str(theirs.fileno()), str(heartbeat / 5)]
        command = [sys.executable, "-c", _BOOTSTRAP, *arguments]  # no fork of a process with torch
        with theirs:
            self._process = start_child(command, stderr=subprocess.PIPE, pass_fds=[theirs.fileno()])
        self._socket.setblocking(False)
        assert self._process.stderr is not None
        self._stderr = self._process.stderr.fileno()
        os.set_blocking(self._stderr, False)
        self._request(start_request, None)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen in this event loop; silence counts from now on."""
        if self.failure:
            return
        self._loop = loop
        self._last_message_at = self._head_since = time.monotonic()
        loop.add_reader(self._socket, self.drain)
        loop.add_reader(self._stderr, self._read_stderr)
        if self._outbox:
            loop.add_writer(self._socket, self._flush)

    def detach(self) -> None:
        if self._loop and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_reader(self._stderr)
            self._loop.remove_writer(self._socket)
        self._loop = None

    def drain(self) -> None:
        while not self.failure:
            try:
                data = self._socket.recv(READ_CHUNK_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lose()
                return
            self._last_message_at = time.monotonic()
            self._inbox += data
            for message in decode_frames(self._inbox):
                if not self.failure:  # the message before may have been its last that counts
                    self._take(message, self._pending.popleft())

    def watch(self) -> None:
        self.drain()  # before any judgement: it may be this process that was away
        if self.failure:
            return
        silent = time.monotonic() - self._last_message_at
        if silent > self._silence and not self._pending:
            self._lose(f"gave no sign of life for {silent:.3g} s (stopped, or hung)")
        elif why := self._explain_overdue():
            self._lose(why)

    def close(self) -> None:
        """Let the worker close its environments and exit; kill it if that takes too long."""
        if self.failure:
            return
        deadline = time.monotonic() + STOP_TIMEOUT
        self._socket.setblocking(True)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left)
                if not self._socket.recv(READ_CHUNK_BYTES):
                    break
        self._lose("was closed")

    def _send(self, frame: bytes, answer: Awaited | None) -> None:  # noqa: ARG002 (answers come in order)
        self._outbox += frame
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox:
                sent = self._socket.send(self._outbox)
                del self._outbox[:sent]
        except BlockingIOError:
            if self._loop:
                self._loop.add_writer(self._socket, self._flush)
            return
        except OSError:
            self._lose()
            return
        if self._loop:
            self._loop.remove_writer(self._socket)

    def _read_stderr(self) -> None:
        try:
            data = os.read(self._stderr, READ_CHUNK_BYTES)
        except BlockingIOError:
            return
        self._last_words = (self._last_words + data)[-4096:]
        if not data and self._loop:
            self._loop.remove_reader(self._stderr)

    def _end(self, why: str) -> str:
        self.detach()
        kill_group(self._process, STOP_TIMEOUT)
        self._read_stderr()
        self._socket.close()
        assert self._process.stderr is not None
        self._process.stderr.close()
        how, last = why or describe_exit(self._process.returncode), last_line(self._last_words)
        return how if why or not last else f"{how}; its last words: {last}"


class Lease:
    """One environment, lent for one episode or several in a row; useless after its first error."""

    def __init__(self, host: Host, slot: int, failure: EnvError | None = None) -> None:
        self._host = host
        self._slot = slot
        self._failure = failure  # why the environment could not be made: the first call says so
        self._healthy = failure is None

    async def reset(self, task: Task) -> Observation:
        """Start `task`. Raises `EnvError`, as `step`, if the environment fails or its worker is lost or too slow."""
        return await self._call("reset", task)

    async def step(self, action: str) -> Observation:
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


class EnvPool(AbstractContextManager["EnvPool"]):
    """A lender of environments; it serves one event loop after another, and all leases of a loop at once.

    ``env.num_workers`` processes share the leases evenly; 0 keeps them in this process, without time limits. A worker
    that dies, hangs or stops is killed, its leases fail with `EnvError`, and the next lease starts another. Use the
    pool as a context manager, or call `close`.
    """

    def __init__(
        self, env: EnvConfig, *, heartbeat: float = 15.0, make_host: Callable[[int], Host] | None = None
    ) -> None:
        """`heartbeat`: seconds of silence after which an idle worker is hung; `make_host`: starts one elsewhere."""
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
        self._stop_listening()
        for host in self._hosts:
            if host:
                host.close()
        self._hosts = [None] * len(self._hosts)

    def __exit__(self, *_: object) -> None:
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
