"""Hosts of environments: many side by side in this process, or in another (`RemoteHost`)."""

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
        with suppress(TrailnotesError):
            self._slots.run("drop", slot)

    def close(self) -> None:
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
            try:
                answer.set_result(None if values[0] is None else unpack_observation(values[0]))
            except (TypeError, ValueError) as error:  # the call is no longer pending: nothing else would end it
                answer.set_exception(EnvError(f"{self._label} sent no observation: {error}"))
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
        env = self._envs.pop(slot, None)
        if env is not None:
            with wrap_env_errors(f"close of {self._name}"):
                env.close()

    def close(self) -> None:
        for slot in list(self._envs):
            with suppress(Exception):
                self.drop(slot)


def _validate_observation(observation: object) -> Observation:
    if not isinstance(observation, Observation):
        raise EnvError(f"an environment must answer with an Observation, not {type(observation).__name__}")
    actions = observation.actions
    if actions is not None and not (isinstance(actions, tuple | list) and all(isinstance(a, str) for a in actions)):
        raise EnvError(f"Observation.actions must be a tuple of texts or None, not {actions!r:.80}")
    return observation
