"""Environment workers as actors: many environments in each, behind the same `Host` as a process of this machine."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trailnotes.cluster.waiting import extract_cause
from trailnotes.envs.workers.hosts import RemoteHost, encode_start_request
from trailnotes.envs.workers.main import EnvServer
from trailnotes.envs.workers.wire import HEADER

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import Future

    from trailnotes.config.schema import Config
    from trailnotes.envs.workers.hosts import Awaited

STOP_LIMIT = 5.0  # seconds to close its environments


class EnvActor:
    """Actor that serves what `envs.workers.main` serves in a process of this machine. Frames are JSON, as there."""

    def __init__(self) -> None:
        self._server = EnvServer()

    def where(self) -> tuple[str, int]:
        """Return the id of its node, and its process there."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def answer(self, frame: bytes) -> bytes:
        """Answer one request frame."""
        return self._server.answer(json.loads(frame[HEADER.size :]))

    def close(self) -> None:
        """Close all of its environments."""
        self._server.close()


class ActorHost(RemoteHost):
    """Environments in an actor on one bundle of a placement group.

    A lost one is not brought back: the pool's next lease asks for another on that bundle, which Ray may have moved to
    another node. `index` is that of the worker in its pool, `bundle` a scheduling strategy, and `name_of` gives the
    name of a node in messages by its id.
    """

    def __init__(self, config: Config, index: int, bundle: Any, name_of: Callable[[str], str]) -> None:
        import ray

        env = config.env
        start_request = encode_start_request(env.name, env.options)
        super().__init__(f"env worker {index} of {env.name}", env.timeout, config.cluster.timeout)
        self._name_of = name_of
        self._futures: deque[Future[bytes]] = deque()  # of the answers to all of `_pending`
        kind = ray.remote(num_cpus=config.cluster.env_cpus, max_restarts=0, scheduling_strategy=bundle)(EnvActor)
        self._actor = kind.remote()
        self._where = self._actor.where.remote()
        self._request(start_request, None)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen in this event loop, from now on."""
        self._loop = loop
        self._head_since = time.monotonic()
        self.drain()

    def detach(self) -> None:
        """Stop listening to the actor."""
        self._loop = None

    def drain(self) -> None:
        """Take all answers that came so far."""
        import ray

        while self._futures and self._futures[0].done() and not self.failure:
            try:
                frame = self._futures.popleft().result()
            except ray.exceptions.RayError as error:
                self._lose(f"was lost: {extract_cause(error)}")
                return
            self._take(json.loads(frame[HEADER.size :]), self._pending.popleft())

    def watch(self) -> None:
        """Lose the actor if it exceeds its limit."""
        self.drain()
        if not self.failure and (why := self._explain_overdue()):
            self._lose(why)

    def close(self) -> None:
        """Let it close its environments; then it ends."""
        import ray

        if not self.failure:
            ray.wait([self._actor.close.remote()], timeout=STOP_LIMIT)
            self._lose("was closed")

    def _send(self, frame: bytes, answer: Awaited | None) -> None:  # noqa: ARG002 (answers come in order)
        future: Future[bytes] = self._actor.answer.remote(frame).future()
        self._futures.append(future)
        future.add_done_callback(self._wake)

    def _wake(self, _: Future[bytes]) -> None:
        """Have the event loop take an answer that came in a thread of Ray's."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it was closed a moment ago
                loop.call_soon_threadsafe(self.drain)

    def _end(self, why: str) -> str:
        import ray

        place = "not placed yet"
        with suppress(ray.exceptions.RayError):
            node, process = ray.get(self._where, timeout=0)
            place = f"process {process} on {self._name_of(node)}"
        ray.kill(self._actor)
        return f"({place}) {why}"
