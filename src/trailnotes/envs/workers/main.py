"""Main function of a worker process: environments by slot, one call at a time, and a heartbeat.

It loads no torch and inherits nothing but one socket, so that printing environments cannot touch the protocol. It ends
with its parent: by the parent-death signal on Linux, by the end of the stream otherwise, even in the middle of a call.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from trailnotes.envs.workers.hosts import Slots
from trailnotes.envs.workers.wire import HEARTBEAT, encode, pack, pack_error, read_frame, unpack_task
from trailnotes.errors import EnvError, TrailnotesError
from trailnotes.types import Observation


def main(descriptor: int, beat: float) -> None:
    """Serve the socket `descriptor` of the parent, with a heartbeat each `beat` seconds."""
    with socket.socket(fileno=descriptor) as connection:
        connection.set_inheritable(False)  # or a grandchild would keep the stream open after us
        serve(connection, beat, lost=lambda: os._exit(1))


def serve(connection: socket.socket, beat: float, lost: Callable[[], object] = lambda: None) -> None:
    """Answer requests until the stream ends; `lost` is called from a thread if it ends during a call."""
    writing, done = threading.Lock(), threading.Event()

    def send(frame: bytes) -> None:
        with writing:
            connection.sendall(frame)

    def keep_beating() -> None:
        while not done.wait(beat):
            try:
                send(HEARTBEAT)
            except OSError:
                lost()
                return

    heart = threading.Thread(target=keep_beating, name="heartbeat", daemon=True)
    heart.start()
    server = EnvServer()
    with suppress(OSError), connection.makefile("rb") as reader:  # a pool that is gone needs no answer
        while (request := read_frame(reader.read)) is not None:
            send(server.answer(request))
    done.set()
    server.close()


class EnvServer:
    """A server of environment requests; the first is ``["start", name, options]``."""

    def __init__(self) -> None:
        self._slots: Slots | None = None

    def answer(self, request: list[Any]) -> bytes:
        """Answer a request with one frame; errors become answers too."""
        try:
            return encode(["ok", pack(self._run_request(request))])
        except TrailnotesError as error:
            return encode(pack_error(error))
        except (TypeError, ValueError) as error:
            return encode(pack_error(EnvError(f"an observation does not fit JSON: {error}")))

    def _run_request(self, request: list[Any]) -> Observation | None:
        operation, slot, argument = request
        if operation == "start":
            self._slots = Slots(slot, argument)
            return None
        if self._slots is None:
            raise EnvError("the worker has not been started")
        return self._slots.run(operation, slot, unpack_task(argument) if operation == "reset" else argument)

    def close(self) -> None:
        if self._slots:
            self._slots.close()
