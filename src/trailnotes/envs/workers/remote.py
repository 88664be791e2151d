"""What the pool's side of any process with environments has in common: calls that wait for answers, in order."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any

from trailnotes.envs.workers.hosts import Host, Operation
from trailnotes.envs.workers.wire import encode, pack, unpack_error, unpack_observation
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task

START_LIMIT = 120.0  # seconds for a process to start and import the environment; more if a call may take more

Awaited = asyncio.Future[Observation | None]


class RemoteHost(Host):
    """Environments in another process, which answers requests in their order, one at a time, as `wire` words them.

    The time limit of a call counts from when the call before it was answered. Once the process is lost, for whatever
    reason, every call on it, now or later, raises `EnvError` with that reason.

    Args:
        label: what messages call it.
        timeout: seconds that one call may take.
        start_limit: seconds that it may take to start.
    """

    def __init__(self, label: str, timeout: float, start_limit: float = START_LIMIT) -> None:
        super().__init__()
        self._label, self._timeout, self._start_limit = label, timeout, max(start_limit, timeout)
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

    def _overdue(self) -> str:
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


def greeting(name: str, options: Mapping[str, Any]) -> bytes:
    """The first request. Raises `ConfigError` for options that are not JSON."""
    try:
        return encode(["start", name, dict(options)])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env.options must hold JSON values to reach a worker: {error}") from error
