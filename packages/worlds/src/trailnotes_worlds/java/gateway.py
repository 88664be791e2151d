"""Calls into a Java process: the client's side of py4j's wire protocol, over one socket.

py4j's own Python client is not used: it sends a command again when a connection ends (an action would be taken
twice), logs to the root logger, and shuts a connection down that a forked child merely inherited.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from trailnotes.errors import EnvError

HOST = "127.0.0.1"
CHUNK_BYTES = 1 << 16  # bytes read at once
QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux


class SimulatorLostError(EnvError):
    """The Java process died, hangs, or was interrupted in a call: only a new one can continue."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An object that stays in Java until it is released."""

    id: str


Value = None | bool | int | float | str | Reference

_REFERENCE_TAGS = frozenset("rlhatg")  # object, list, set, map, array, iterator


class JavaGateway:
    """One authenticated connection, one call at a time.

    A call that is interrupted at any moment closes the connection: its answer must not be taken for the next one's.
    """

    def __init__(self, port: int, token: str, timeout: float) -> None:
        """Connect.

        Args:
            port: on this machine.
            token: what py4j printed beside the port.
            timeout: seconds without a byte after which a call is given up.

        Raises:
            SimulatorLostError: nothing answers there, or not to this token.
        """
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
        """From now on, seconds without a byte after which a call is given up."""
        self._timeout = timeout
        self._socket.settimeout(timeout)

    def call(self, target: Reference | str, method: str, *arguments: Value) -> Value:
        """Call a method of an object, or a static one of a class given by its full name.

        Raises:
            SimulatorLostError: there is no answer.
            EnvError: Java raised an exception; the text is its first line.
        """
        owner = target.id if isinstance(target, Reference) else f"z:{target}"
        parts = "".join(f"{encode_value(argument)}\n" for argument in arguments)
        return self._decode_answer(self._send_command(f"c\n{owner}\n{method}\n{parts}e\n"), method)

    def create(self, name: str, *arguments: Value) -> Reference:
        """Make an object of the class `name`. Raises as `call` does."""
        parts = "".join(f"{encode_value(argument)}\n" for argument in arguments)
        made = self._decode_answer(self._send_command(f"i\n{name}\n{parts}e\n"), name)
        assert isinstance(made, Reference)
        return made

    def release(self, reference: Reference) -> None:
        """Let Java forget an object."""
        self._send_command(f"m\nd\n{reference.id}\ne\n")

    def close(self) -> None:
        """Drop the connection. Twice is fine; a copy of it in another process keeps working."""
        if self._open:
            self._socket.close()
        self._open = False

    def _send_command(self, command: str) -> str:
        """Send one command and read its one line."""
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
        """The answer to one command; without its end if the connection ends there.

        Java sends a long one in parts, each when the part before is acknowledged (Nagle's algorithm). The kernel puts
        that off for 40 ms, unless it is told after each part to do it now: then thousands of actions come at once.
        """
        parts = [self._socket.recv(CHUNK_BYTES)]
        while parts[-1] and not parts[-1].endswith(b"\n"):
            if QUICKACK is not None:
                self._socket.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)
            parts.append(self._socket.recv(CHUNK_BYTES))
        return b"".join(parts)

    def _decode_answer(self, answer: str, method: str) -> Value:
        if answer.startswith("!y"):
            return decode_value(answer[2:])
        raised = decode_value(answer[2:]) if answer[2:] else "no reason given"
        if isinstance(raised, Reference):
            trace = self._send_command(f"p\nr{raised.id}\ne\n")
            self.release(raised)
            raised = decode_value(trace[2:])
        raise EnvError(f"the simulator failed in {method}: {str(raised).strip().splitlines()[0][:500]}")


def encode_value(value: Value) -> str:
    r"""An argument on one line, as py4j reads it: ``"a\nb"`` is ``sa\\nb``, 3 is ``i3``."""
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
    """The value in an answer: the inverse of `encoded`, with the many kinds of reference as one."""
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
    raise EnvError(f"Java answered what no call of ours returns: {text[:100]!r}")
