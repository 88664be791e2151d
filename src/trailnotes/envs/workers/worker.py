"""The pool's side of one worker process: starts, talks to, watches and ends it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trailnotes.envs.workers.hosts import RemoteHost, encode_start_request
from trailnotes.envs.workers.wire import FrameDecoder
from trailnotes.storage.child import describe_exit, kill_group, last_line, start_child

if TYPE_CHECKING:
    from trailnotes.envs.workers.hosts import Awaited

START_TIMEOUT = 120.0  # seconds for a process to start and import the environment; more if a call may take more
STOP_TIMEOUT = 5.0  # seconds to close its environments and exit
READ_CHUNK_BYTES = 1 << 18

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from trailnotes.envs.workers.main import main; main(int(sys.argv[2]), float(sys.argv[3]))"
)


class Worker(RemoteHost):
    """One process in its own process group, which Ctrl-C in the terminal does not reach.

    Heartbeats come from a thread of the worker, so a stopped one is noticed without any call. A lost worker is killed
    with all its children.
    """

    def __init__(self, label: str, name: str, options: Mapping[str, Any], *, timeout: float, heartbeat: float) -> None:
        """Start the process. `heartbeat`: seconds of silence after which it counts as hung."""
        greeted = encode_start_request(name, options)  # before a process is started
        super().__init__(label, timeout, max(START_TIMEOUT, timeout))
        self._silence = heartbeat
        self._outbox, self._frames = bytearray(), FrameDecoder()
        self._last_words = b""
        self._heard = False
        self._last_heard = time.monotonic()
        self._process, self._socket = _spawn_worker(beat=heartbeat / 5)
        assert self._process.stderr is not None
        self._stderr = self._process.stderr.fileno()
        os.set_blocking(self._stderr, False)
        self._request(greeted, None)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen in this event loop; whatever came before counts as heard now."""
        if self.failure:
            return
        self._loop = loop
        self._last_heard = self._head_since = time.monotonic()
        loop.add_reader(self._socket, self.drain)
        loop.add_reader(self._stderr, self._read_stderr)
        if self._outbox:
            loop.add_writer(self._socket, self._flush)

    def detach(self) -> None:
        """Stop listening in the event loop."""
        if self._loop and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_reader(self._stderr)
            self._loop.remove_writer(self._socket)
        self._loop = None

    def drain(self) -> None:
        """Take everything that the worker has said so far."""
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
            self._heard, self._last_heard = True, time.monotonic()
            for message in self._frames.feed(data):
                if not self.failure:  # the message before may have been its last that counts
                    self._take(message, self._pending.popleft())

    def watch(self) -> None:
        """Lose the worker if it is silent, or in one call, for too long; called now and then."""
        self.drain()  # before any judgement: it may be this process that was away
        if self.failure:
            return
        silent = time.monotonic() - self._last_heard
        if silent > (self._silence if self._heard else self._start_limit):
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


def _spawn_worker(beat: float) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Spawn a fresh interpreter, no fork of a process with torch; returns it and our end of the socket."""
    ours, theirs = socket.socketpair()
    arguments = [json.dumps([str(path) for path in sys.path]), str(theirs.fileno()), str(beat)]
    command = [sys.executable, "-c", _BOOTSTRAP, *arguments]
    with theirs:
        process = start_child(command, stderr=subprocess.PIPE, pass_fds=[theirs.fileno()])
    ours.setblocking(False)
    return process, ours
