"""Where environments live: many side by side in this process, or (`RemoteHost`) in another."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from trailnotes.envs import load_env_class, make_env
from trailnotes.envs.base import Env, wrap_env_errors
from trailnotes.envs.workers.wire import encode, pack, unpack_error, unpack_observation
from trailnotes.errors import ConfigError, EnvError, TrailnotesError
from trailnotes.types import Observation, Task

if TYPE_CHECKING:
    import asyncio

    Awaited = asyncio.Future[Observation | None]

Operation = Literal["open", "reset", "step", "drop"]


class Host(ABC):
    """A place with numbered environment instances, each lent to one lease at a time and used again later."""

    def __init__(self) -> None:
        self.load = 0  # live leases
        self.failure = ""  # why this host is lost; '' while it lives
        self.fatal: Exception | None = None  # why no other would do better: what the environment itself said
        self._free: list[int] = []
        self._num_slots = 0

    @abstractmethod
    async def call(self, operation: Operation, slot: int, argument: Task | str | None = None) -> Observation | None:
        """Run one operation of `Slots` on an instance. Raises what `wrap_env_errors` lets through."""

    @abstractmethod
    def drop(self, slot: int) -> None:
        """Close an instance as soon as it is idle, without waiting for it."""

    @abstractmethod
    def close(self) -> None:
        """Close all instances. Twice is fine."""

    # a host in this process needs none of these

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:  # noqa: B027
        """Listen in this event loop, from now on."""

    def detach(self) -> None:  # noqa: B027
        """Stop listening."""

    def drain(self) -> None:  # noqa: B027
        """Take what has been answered so far."""

    def watch(self) -> None:  # noqa: B027
        """Be lost if somebody has waited for too long. To be called now and then."""

    async def borrow(self) -> int:
        """An idle instance, made now if there is none."""
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
        """End a loan. An instance that failed, or was interrupted in a call, is not lent again."""
        if healthy:
            self._free.append(slot)
        else:
            self.drop(slot)


class LocalHost(Host):
    """Instances in this process: calls run inline, so nothing guards against one that hangs."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._slots = Slots(name, options)

    async def call(self, operation: Operation, slot: int, argument: Task | str | None = None) -> Observation | None:
        """Run the operation at once."""
        return self._slots.run(operation, slot, argument)

    def drop(self, slot: int) -> None:
        """Close an instance; what it raises no longer matters."""
        with suppress(TrailnotesError):
            self._slots.run("drop", slot)

    def close(self) -> None:
        """Close all instances."""
        self._slots.close()


class RemoteHost(Host):
    """Environments in another process, which answers requests in their order, one at a time, as `wire` words them.

    The time limit of a call counts from when the call before it was answered. Once the process is lost, for whatever
    reason, every call on it, now or later, raises `EnvError` with that reason.

    Args:
        label: what messages call it.
        timeout: seconds that one call may take.
        start_limit: seconds that it may take to start.
    """

    def __init__(self, label: str, timeout: float, start_limit: float) -> None:
        super().__init__()
        self._label, self._timeout, self._start_limit = label, timeout, start_limit
        self._pending: deque[Awaited | None] = deque()  # None: nobody waits for this answer
        self._head_since = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.started = False  # it imported the environment

    async def call(self, operation: Operation, slot: int, argument: Task | str | None = None) -> Observation | None:
        """Run one operation there. Needs `attach`."""
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
        """Hand a request on; `_take` gets what comes back."""

    @abstractmethod
    def _end(self, why: str) -> str:
        """End the process. Without `why` it ended by itself. Returns what became of it, for "LABEL ..."."""

    def _request(self, frame: bytes, answer: Awaited | None) -> None:
        if not self._pending:
            self._head_since = time.monotonic()
        self._pending.append(answer)
        self._send(frame, answer)

    def _explain_overdue(self) -> str:
        """Why whoever waits has waited too long; '' if nobody has."""
        limit = self._timeout if self.started else self._start_limit
        if not self._pending or time.monotonic() - self._head_since <= limit:
            return ""
        return (
            f"did not answer within env.timeout = {self._timeout:g} s"
            if self.started
            else f"did not start within {limit:g} s"
        )

    def _take(self, message: list[Any], answer: Awaited | None) -> None:
        """An answer came, to the call that waits for `answer`: it is no longer pending."""
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
        """End the process and all that waits for it. Without `why` it ended by itself: say how."""
        if self.failure:
            return
        self.failure = f"{self._label} {self._end(why)}"
        while self._pending:
            answer = self._pending.popleft()
            if answer is not None and not answer.done():
                answer.set_exception(EnvError(self.failure))


def encode_start_request(name: str, options: Mapping[str, Any]) -> bytes:
    """The first request. Raises `ConfigError` for options that are not JSON."""
    try:
        return encode(["start", name, dict(options)])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env.options must hold JSON values to reach a worker: {error}") from error


class Slots:
    """Instances of one environment, by number. All errors are those of `wrap_env_errors`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._options = dict(options)
        self._envs: dict[int, Env] = {}
        with wrap_env_errors(f"import of {name}"):
            load_env_class(name)

    def run(self, operation: Operation, slot: int, argument: Task | str | None = None) -> Observation | None:
        """One of the operations below, by name: how a message is carried out."""
        match operation, argument:
            case "reset", Task():
                return self.reset(slot, argument)
            case "step", str():
                return self.step(slot, argument)
            case "open", None:
                self.open(slot)
            case "drop", None:
                self.drop(slot)
            case _:
                raise EnvError(f"an environment cannot {operation} with a {type(argument).__name__}")
        return None

    def open(self, slot: int) -> None:
        """Make the instance `slot`."""
        with wrap_env_errors(f"making {self._name}"):
            self._envs[slot] = make_env(self._name, **self._options)

    def reset(self, slot: int, task: Task) -> Observation:
        """Start `task` in instance `slot`."""
        with wrap_env_errors(f"reset of task {task.id}"):
            return _validate_observation(self._envs[slot].reset(task))

    def step(self, slot: int, action: str) -> Observation:
        """Take one action in instance `slot`."""
        with wrap_env_errors(f"step of {self._name}"):
            return _validate_observation(self._envs[slot].step(action))

    def drop(self, slot: int) -> None:
        """Close the instance `slot`; one that was never opened is fine."""
        env = self._envs.pop(slot, None)
        if env is not None:
            with wrap_env_errors(f"close of {self._name}"):
                env.close()

    def close(self) -> None:
        """Close all instances, whatever they raise."""
        for slot in list(self._envs):
            with suppress(Exception):
                self.drop(slot)


def _validate_observation(observation: object) -> Observation:
    if not isinstance(observation, Observation):
        raise EnvError(f"an environment must answer with an Observation, not {type(observation).__name__}")
    return observation
