"""The program of an engine's process: requests in from a socket, sampled tokens out, and a sign of life in between.

    python main.py DESCRIPTOR BEAT CORE

It serves the socket DESCRIPTOR that it inherits from its parent, with a heartbeat each BEAT seconds, by the class
`Core` of the file CORE (`core.py`: vLLM). It ends with its parent: by the parent-death signal on Linux, by the end of
the stream otherwise, even in the middle of a step. Where the settings name a listening socket, it also serves policies
on other machines, one at a time.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import socket
import struct
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trailnotes.policies.vllm.worker import wire
else:
    import wire  # beside this file: where vLLM is installed, Trailnotes need not be

SEND_LIMIT = 120  # seconds that a policy on another machine may take to read what it is sent
HANDSHAKES = 64  # under way at once; one more, and the oldest gives way

InboxItem = tuple["PolicyConnection", list[Any] | None, Path | None]


class PolicyConnection:
    """Socket to a policy, whose thread puts messages into the inbox, and their raw bytes, up to a limit, into `spool`.

    `lost` is called when there are no more.
    """

    def __init__(
        self, connection: socket.socket, inbox: queue.SimpleQueue[InboxItem], lost: Callable[[], object],
        spool: str = "", most_bytes: int = 0,
    ) -> None:  # fmt: skip
        self._connection, self._inbox, self._lost = connection, inbox, lost
        self._spool, self._most_bytes = spool, most_bytes
        self._writing = threading.Lock()

    def start(self) -> None:
        """Start the thread that reads."""
        threading.Thread(target=self._read_loop, name="reader", daemon=True).start()

    def send(self, *message: Any) -> None:
        """Send a message; the reader notices where it is not heard."""
        with self._writing, suppress(OSError):
            self._connection.sendall(wire.encode_frame(list(message)))

    def close(self) -> None:
        """Shut the connection down."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _read_loop(self) -> None:
        try:
            with suppress(OSError, wire.WireError), self._connection.makefile("rb") as reader:
                while (found := wire.read_frame(reader.read)) is not None:
                    message, size = found
                    if size > self._most_bytes:
                        text = f"{size} bytes are more than its model may have: start it with this run's config"
                        self.send("failed", *message[1:2], text)
                        break
                    self._inbox.put((self, message, self._spool_payload(reader.read, size) if size else None))
        finally:
            self._lost()
            self._inbox.put((self, None, None))

    def _spool_payload(self, read: Callable[[int], bytes], size: int) -> Path:
        """Write raw bytes to a file, a piece at a time: weights may be larger than the free memory."""
        with (
            tempfile.NamedTemporaryFile(dir=self._spool, suffix=wire.WEIGHTS_SUFFIX, delete=False) as file,
            ExitStack() as dropped,
        ):
            path = Path(file.name)
            dropped.callback(path.unlink)
            while size and (data := read(min(size, wire.CHUNK_SIZE))):
                file.write(data)
                size -= len(data)
            if size:
                raise OSError("the stream ended within a message")
            file.flush()
            dropped.pop_all()  # whole, and whoever takes it out of the inbox removes it
        return path


class EngineServer:
    """Server that runs the core, a step at a time, for all connected policies."""

    def __init__(self, control: socket.socket) -> None:
        self.inbox: queue.SimpleQueue[InboxItem] = queue.SimpleQueue()
        self.steps = 0  # of the core, and messages: what stands still while it works is hung
        self.working = False
        self.links = [PolicyConnection(control, self.inbox, lost=lambda: os._exit(1))]
        self.links[0].start()
        self.core: Any = None
        self._requests: dict[int, tuple[PolicyConnection, int]] = {}
        self._next = 0
        self._guard = threading.Lock()  # a policy that comes while the core gets ready is told so once
        self._about: dict[str, Any] | None = None

    def start(self, make_core: Callable[[dict[str, Any]], Any]) -> bool:
        """Wait for the settings and build the core; return whether there is one, and tell the parent why not."""
        control, message, _ = self.inbox.get()
        assert message is not None
        settings = message[1]
        if settings.get("listen") is not None:
            threading.Thread(target=self._accept_connections, args=(settings,), name="listener", daemon=True).start()
        try:
            self.core = make_core(settings)
        except Exception as error:  # noqa: BLE001 - the boundary: vLLM raises whatever it does, and its user must hear
            traceback.print_exc()
            control.send("refused", " ".join(str(error).split()) or type(error).__name__)
            return False
        with self._guard:
            self._about, waiting = {**self.core.about, "pid": os.getpid()}, list(self.links)
        for link in waiting:
            link.send("ready", self._about)
        return True

    def run(self) -> None:
        """Serve until the parent ends the engine."""
        while True:
            while not self.core.busy or not self.inbox.empty():
                self.working = self.core.busy
                item = self.inbox.get()
                self.working = True
                if not self._handle_message(*item):
                    return
                self.steps += 1
            self._send_tokens(self.core.step())
            self.steps += 1

    def send_heartbeats(self, seconds: float) -> None:
        """Report the number of steps each `seconds`."""
        while True:
            for link in list(self.links):
                link.send("alive", self.steps, self.working)
            threading.Event().wait(seconds)

    def _handle_message(self, link: PolicyConnection, message: list[Any] | None, payload: Path | None) -> bool:
        try:
            if message is None:
                self._abort(link)
                if link in self.links:
                    self.links.remove(link)
            elif message[0] == "end":
                return link is not self.links[0]
            elif message[0] == "generate":
                self._generate(link, *message[1:])
            elif message[0] == "abort":
                self._abort(link, message[1])
            else:
                self._handle_call(link, message, payload)
        finally:  # whatever it came with, and whatever became of it
            if payload:
                payload.unlink(missing_ok=True)
        return True

    def _generate(self, link: PolicyConnection, number: int, ids: list[int], sampling: dict[str, Any]) -> None:
        key = self._next = self._next + 1
        try:
            self.core.add(key, ids, sampling)
        except ValueError as error:
            link.send("failed", number, " ".join(str(error).split()))
        else:
            self._requests[key] = link, number

    def _handle_call(self, link: PolicyConnection, message: list[Any], payload: Path | None) -> None:
        """Do what is no completion. A refusal of the core is answered; other errors end this process."""
        name, number, argument = message
        if self._requests and name != "score":
            link.send("failed", number, f"{len(self._requests)} completions are under way")
            return
        if name == "load" and payload is None and link is not self.links[0]:  # only our parent may name a file of ours
            link.send("failed", number, "weights come with the message")
            return
        try:
            if name == "load":
                value = self.core.load(payload or Path(argument["path"]), argument)
            elif name == "score":
                value = self.core.score(argument["rows"], argument["temperature"])
            else:
                value = self.core.sleep() if name == "sleep" else self.core.wake()
        except ValueError as error:
            link.send("failed", number, " ".join(str(error).split()))
        else:
            link.send("done", number, value)

    def _send_tokens(self, news: list[tuple[int, list[int], list[float], str | None, int]]) -> None:
        parts: dict[PolicyConnection, list[Any]] = {}
        for key, ids, logprobs, reason, cached in news:
            if key in self._requests:
                link, number = self._requests[key]
                parts.setdefault(link, []).append([number, ids, logprobs, reason, cached])
                if reason:
                    del self._requests[key]
        for link, part in parts.items():
            link.send("tokens", part)

    def _abort(self, link: PolicyConnection, number: int | None = None) -> None:
        """Abort a completion of a policy; None: all of them."""
        for key, (owner, own) in list(self._requests.items()):
            if owner is link and number in (None, own):
                del self._requests[key]
                self.core.abort(key)

    def _accept_connections(self, settings: dict[str, Any]) -> None:
        """Let policies on other machines in, one at a time, each after its handshake."""
        strangers: deque[socket.socket] = deque()  # whoever takes one out decides what becomes of it
        with socket.socket(fileno=settings["listen"]) as listening:
            listening.set_inheritable(False)
            while True:
                with suppress(OSError):
                    connection, _ = listening.accept()
                    strangers.append(connection)
                    if len(strangers) > HANDSHAKES:
                        with suppress(OSError):  # it may have gone by itself
                            strangers.popleft().shutdown(socket.SHUT_RDWR)  # its thread ends by it
                    threading.Thread(
                        target=self._handshake, args=(connection, strangers, settings), daemon=True
                    ).start()

    def _handshake(self, connection: socket.socket, strangers: deque[socket.socket], settings: dict[str, Any]) -> None:
        served = False
        with suppress(OSError):
            served = wire.handshake_as_engine(connection, settings["token"], busy=lambda: len(self.links) > 1)
        try:
            strangers.remove(connection)
        except ValueError:
            served = False
        if not served:
            connection.close()
            return
        # Without them one policy that is gone would hold up the heartbeats of all.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_LIMIT, 0))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        link = PolicyConnection(connection, self.inbox, connection.close, settings["spool"], settings["most_bytes"])
        with self._guard:
            self.links.append(link)  # before it can be lost, or it would be there for good
            about = self._about
        link.start()
        if about is not None:
            link.send("ready", about)


def main(descriptor: int, beat: float, core: str) -> None:
    """Serve the socket `descriptor` of the parent."""
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)  # or a grandchild would keep the stream open after us
    server = EngineServer(control)
    threading.Thread(target=server.send_heartbeats, args=(beat,), name="heartbeat", daemon=True).start()
    if server.start(load_core(core)):
        server.run()
        server.core.close()
    sys.stdout.flush()
    os._exit(0)  # threads of libraries may never end


def load_core(path: str) -> Callable[[dict[str, Any]], Any]:
    """Load the class `Core` of a file."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # vLLM's own processes find its functions by this name
    spec.loader.exec_module(module)
    core: Callable[[dict[str, Any]], Any] = module.Core
    return core


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
