"""Environment workers as actors: many environments in each, behind the same `Host` as a process of this machine."""

from __future__ import annotations

import json
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import ray

from trailnotes.envs.workers.main import HEADER, EnvServer
from trailnotes.envs.workers.pool import RemoteHost, encode_start_request
from trailnotes.errors import ClusterError
from trailnotes.runs.cluster.waiting import Bundle, extract_cause

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from trailnotes.config.schema import Config
    from trailnotes.envs.workers.pool import Awaited

STOP_LIMIT = 5.0  # seconds to close its environments


class EnvActor:
    """Actor that serves what `envs.workers.main` serves in a process of this machine. Frames are JSON, as there."""

    def __init__(self) -> None:
        self._server = EnvServer()

    def answer(self, frame: bytes) -> bytes:
        return self._server.answer(json.loads(frame[HEADER.size :]))

    def close(self) -> None:
        self._server.close()


class ActorHost(RemoteHost):
    """Environments in an actor on one bundle of a placement group.

    A lost one is not brought back: the pool's next lease asks for another on that bundle, which Ray may have moved to
    another node. `index` is that of the worker in its pool.
    """

    def __init__(self, config: Config, index: int, bundle: Bundle) -> None:
        env = config.env
        start_request = encode_start_request(env.name, env.options)
        super().__init__(f"env worker {index} of {env.name} on {bundle.node}", env.timeout, config.cluster.timeout)
        self._futures: deque[Future[bytes]] = deque()  # of the answers to all of `_pending`
        kind = ray.remote(num_cpus=config.cluster.env_cpus, max_restarts=0, scheduling_strategy=bundle.strategy)
        self.actor = kind(EnvActor).remote()
        self._request(start_request, None)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._head_since = time.monotonic()
        self.drain()

    def detach(self) -> None:
        self._loop = None

    def drain(self) -> None:
        while self._futures and self._futures[0].done() and not self.failure:
            try:
                frame = self._futures.popleft().result()
            except ray.exceptions.RayError as error:
                self._lose(f"was lost: {extract_cause(error)}")
                return
            self._take(json.loads(frame[HEADER.size :]), self._pending.popleft())

    def watch(self) -> None:
        self.drain()
        if not self.failure and (why := self._explain_overdue()):
            if not self.started:
                self.fatal = ClusterError(f"{self._label} {why}: is there room for it, and env.name installed there?")
            self._lose(why)

    def close(self) -> None:
        """Let it close its environments; then it ends."""
        if not self.failure:
            ray.wait([self.actor.close.remote()], timeout=STOP_LIMIT)
            self._lose("was closed")

    def _send(self, frame: bytes, answer: Awaited | None) -> None:  # noqa: ARG002 (answers come in order)
        future: Future[bytes] = self.actor.answer.remote(frame).future()
        self._futures.append(future)
        future.add_done_callback(self._wake)

    def _wake(self, _: Future[bytes]) -> None:
        """Have the event loop take an answer that came in a thread of Ray's."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it was closed a moment ago
                loop.call_soon_threadsafe(self.drain)

    def _end(self, why: str) -> str:
        ray.kill(self.actor)
        return why
