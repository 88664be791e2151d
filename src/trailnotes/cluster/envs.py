"""Environment workers as actors: many environments in each, behind the same `Host` as a process of this machine."""

from __future__ import annotations

import json
import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from trailnotes.cluster.waiting import Deadline, extract_cause
from trailnotes.envs.workers.hosts import RemoteHost, encode_start_request
from trailnotes.envs.workers.main import EnvServer
from trailnotes.envs.workers.wire import HEADER
from trailnotes.errors import ClusterError

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
    """Environments in an actor that Ray places where it has CPUs for it.

    A lost one is not brought back: the pool's next lease asks for another, which Ray may place on another node. `index`
    is that of the worker in its pool, and `name_of` gives the name of a node in messages by its id.
    """

    def __init__(self, config: Config, index: int, name_of: Callable[[str], str]) -> None:
        import ray

        env = config.env
        greeted = encode_start_request(env.name, env.options)
        super().__init__(f"env worker {index} of {env.name}", env.timeout, config.cluster.timeout)
        self._cpus, self._name_of = config.cluster.env_cpus, name_of
        self._came: deque[tuple[Awaited | None, Future[bytes]]] = deque()
        self._patience: Deadline | None = None  # with the first of `_pending`
        self._actor = ray.remote(num_cpus=self._cpus, max_restarts=0, scheduling_strategy="SPREAD")(EnvActor).remote()
        self._where = self._actor.where.remote()
        self._request(greeted, None)

    @property
    def place(self) -> str:
        """Its process and node, for messages."""
        import ray

        ready, _ = ray.wait([self._where], timeout=0)
        with suppress(ray.exceptions.RayError):
            if ready:
                node, process = ray.get(ready[0])
                return f"(process {process} on {self._name_of(node)})"
        return "(not placed yet)"

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen in this event loop, from now on."""
        self._loop = loop
        self._head_is_new()
        self.drain()

    def detach(self) -> None:
        """Stop listening to the actor."""
        self._loop = None

    def drain(self) -> None:
        """Take all answers that came so far."""
        import ray

        while self._came and not self.failure:
            answer, future = self._came.popleft()
            try:
                frame = future.result()
            except ray.exceptions.RayError as error:
                self._lose(f"was lost: {extract_cause(error)}")
                return
            self._pending.remove(answer)
            self._take(json.loads(frame[HEADER.size :]), answer)
            self._head_is_new()

    def watch(self) -> None:
        """Report a long wait, and lose the actor if it exceeds its limit."""
        self.drain()
        if self.failure or not self._pending or self._patience is None:
            return
        try:
            self._patience.check()
        except ClusterError as error:
            if not self.started:
                self.fatal = ClusterError(
                    f"{error}: has the cluster {self._cpus:g} CPUs left for it, and env.name installed?"
                )
            self._lose(str(error).removeprefix(f"{self._label} "))

    def close(self) -> None:
        """Let it close its environments; then it ends."""
        import ray

        if not self.failure:
            closed = self._actor.close.remote()
            ray.wait([closed], timeout=STOP_LIMIT)
            self._lose("was closed")

    def _send(self, frame: bytes, answer: Awaited | None) -> None:
        if len(self._pending) == 1:
            self._head_is_new()
        future: Future[bytes] = self._actor.answer.remote(frame).future()
        future.add_done_callback(lambda done: self._hear(answer, done))

    def _hear(self, answer: Awaited | None, future: Future[bytes]) -> None:
        """Take an answer, in a thread of Ray's."""
        self._came.append((answer, future))
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it was closed a moment ago
                loop.call_soon_threadsafe(self.drain)

    def _head_is_new(self) -> None:
        limit, setting = (self._timeout, "env.timeout") if self.started else (self._start_limit, "cluster.timeout")
        self._patience = Deadline(lambda: f"{self._label} {self.place}", limit, setting, "it counts as hung")

    def _end(self, why: str) -> str:
        import ray

        place = self.place
        ray.kill(self._actor)
        return why if place in why else f"{place} {why}"
