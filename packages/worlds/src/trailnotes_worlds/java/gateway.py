"""Client side of py4j's wire protocol, over one socket.

It replaces py4j's own Python client, which sends a command again when a connection ends (an action would happen twice),
logs to the root logger, and shuts down a connection that a forked child merely inherited.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass

from trailnotes.errors import EnvError

HOST = "127.0.0.1"
CHUNK_BYTES = 1 << 16  # bytes read at once
QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux


class SimulatorLostError(EnvError):
    """Java process that died, hangs, or was interrupted in a call: only a new one can continue."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Object that stays in Java until `JavaGateway.release`."""

    id: str


Value = None | bool | int | float | str | Reference

_REFERENCE_TAGS = frozenset("rlhatg")  # object, list, set, map, array, iterator


class JavaGateway:
    """Authenticated connection for one call at a time.

    An interrupted call closes the connection, since its answer could be taken for that of the next call.
    """

    def __init__(self, port: int, token: str, timeout: float) -> None:
        self._timeout = timeout
        self._open = False
        try:
            self._socket = socket.create_connection((HOST, port), timeout)
        except OSError as error:
            raise SimulatorLostError(f"port {port} cannot be reached: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open = True
        if self._send_command(f"A\n{token}\n") != "!yv":
            self.close()
            raise SimulatorLostError(f"port {port} belongs to another program")

    def set_timeout(self, timeout: float) -> None:
        self._timeout = timeout
        self._socket.settimeout(timeout)

    def call(self, target: Reference | str, method: str, *arguments: Value) -> Value:
        """Call a method of an object, or a static one of a class given by its full name."""
        owner = target.id if isinstance(target, Reference) else f"z:{target}"
        return self._send_call(f"c\n{owner}\n{method}\n", arguments, method)

    def create(self, name: str, *arguments: Value) -> Reference:
        """Make an object of the class `name`. Raises as `call` does."""
        made = self._send_call(f"i\n{name}\n", arguments, name)
        assert isinstance(made, Reference)
        return made

    def release(self, reference: Reference) -> None:
        self._send_command(f"m\nd\n{reference.id}\ne\n")

    def close(self) -> None:
        """Close the connection, but not its copy in another process. A second call is harmless."""
        if self._open:
            self._socket.close()
        self._open = False

    def _send_command(self, command: str) -> str:
        if not self._open:
            raise SimulatorLostError("the connection was closed in an earlier call")
        try:
            self._socket.sendall(command.encode("utf-8", "replace"))
            line = self._read_answer()
        except TimeoutError as error:
            self.close()
            raise SimulatorLostError(f"no answer within timeout = {self._timeout:g} s") from error
        except OSError as error:
            self.close()
            raise SimulatorLostError(f"the connection broke: {error}") from error
        except BaseException:
            self.close()
            raise
        if not line.endswith(b"\n"):
            self.close()
            raise SimulatorLostError("the connection ended")
        return line[:-1].decode("utf-8", "replace")

    def _read_answer(self) -> bytes:
        # Java sends a long answer in parts, each after the acknowledgement of the one before (Nagle's algorithm). The
        # kernel delays that by 40 ms, unless QUICKACK is set after each part: then thousands of actions come at once.
        parts = [self._socket.recv(CHUNK_BYTES)]
        while parts[-1] and not parts[-1].endswith(b"\n"):
            if QUICKACK is not None:
                self._socket.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)
            parts.append(self._socket.recv(CHUNK_BYTES))
        return b"".join(parts)

    def _send_call(self, head: str, arguments: Iterable[Value], method: str) -> Value:
        answer = self._send_command(head + "".join(f"{encode_value(argument)}\n" for argument in arguments) + "e\n")
        if answer.startswith("!y"):
            return decode_value(answer[2:])
        raised = decode_value(answer[2:]) if answer[2:] else "no reason given"
        if isinstance(raised, Reference):
            trace = self._send_command(f"p\nr{raised.id}\ne\n")
            self.release(raised)
            raised = decode_value(trace[2:])
        raise EnvError(f"the simulator failed in {method}: {str(raised).strip().splitlines()[0][:500]}")


def encode_value(value: Value) -> str:
    r"""Encode an argument on one line for py4j: ``"a\nb"`` is ``sa\\nb``, 3 is ``i3``."""
    match value:
        case None:
            return "n"
        case bool():
            return f"b{value}"
        case int():
            return f"i{value}"
        case float():
            return f"d{value!r}"
        case str():
            return "s" + value.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
        case Reference():
            return f"r{value.id}"


def decode_value(text: str) -> Value:
    """Decode the value in an answer: the inverse of `encode_value`, with one type for all kinds of reference."""
    kind, value = text[:1], text[1:]
    match kind:
        case "s":
            return "\\".join(part.replace("\\n", "\n").replace("\\r", "\r") for part in value.split("\\\\"))
        case "b":
            return value.lower() == "true"
        case "i" | "L":
            return int(value)
        case "d" | "D":
            return float(value)
        case "n" | "v":
            return None
    if kind in _REFERENCE_TAGS:
        return Reference(value)
    raise EnvError(f"Java returned an unexpected value: {text[:100]!r}")
