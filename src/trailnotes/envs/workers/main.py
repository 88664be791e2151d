"""The worker's side: environments by slot, one call at a time, a heartbeat, and the protocol; it loads no asyncio.

A worker process inherits nothing but one socket, so that printing environments cannot touch the protocol. It ends with
its parent: by the parent-death signal on Linux, by the end of the stream otherwise, even in the middle of a call.

A frame is four bytes of length, big-endian, and that many bytes of ASCII JSON (so that lone surrogates survive), never
pickle; an empty frame is a heartbeat. Requests are ``[operation, slot, argument]``, the first ``["start", name,
options]``; answers are ``["ok", observation | null]`` or ``["error", type, text, traceback]``, in order.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from trailnotes.envs import load_env_class, make_env
from trailnotes.envs.base import Env, wrap_env_errors
from trailnotes.errors import ConfigError, EnvError, MissingExtraError, TrailnotesError
from trailnotes.types import Observation, Task

Operation = Literal["open", "reset", "step", "drop"]
HEADER = struct.Struct("!I")
HEARTBEAT = HEADER.pack(0)
READ_CHUNK_BYTES = 1 << 18
_ERRORS = {kind.__name__: kind for kind in (EnvError, ConfigError, MissingExtraError)}


def encode(message: object) -> bytes:
    """Encode one frame; raises `TypeError` or `ValueError` for what JSON cannot hold."""
    body = json.dumps(message, separators=(",", ":"), default=_to_plain).encode("ascii")
    return HEADER.pack(len(body)) + body


def _to_plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value):  # a task or an observation, as its fields in order
        return [getattr(value, field.name) for field in fields(value)]
    if hasattr(value, "tolist"):  # numbers and arrays of numpy and torch
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def decode_frames(buffer: bytearray) -> Iterator[Any]:
    """Take all complete messages out of `buffer`; heartbeats are skipped."""
    while len(buffer) >= HEADER.size:
        end = HEADER.size + HEADER.unpack_from(buffer)[0]
        if len(buffer) < end:
            return
        body = bytes(buffer[HEADER.size : end])
        del buffer[:end]
        if body:
            yield json.loads(body)


def unpack_observation(values: list[Any]) -> Observation:
    """Unpack an observation from its fields; lists inside `info` stay lists."""
    text, reward, terminated, truncated, actions, *others = values
    return Observation(text, reward, terminated, truncated, None if actions is None else tuple(actions), *others)


def unpack_error(kind: str, text: str, traceback: str = "") -> TrailnotesError:
    error = _ERRORS.get(kind, EnvError)(text)
    if isinstance(error, EnvError):
        error.traceback = traceback
    return error


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
                    return _validate_observation(self._envs[slot].reset(argument), self._envs[slot].reset)
            case "step", str():
                with wrap_env_errors(f"step of {self._name}"):
                    return _validate_observation(self._envs[slot].step(argument), self._envs[slot].step)
            case "open", None:
                with wrap_env_errors(f"making {self._name}"):
                    self._envs[slot] = make_env(self._name, **self._options)
            case "drop", None if env := self._envs.pop(slot, None):
                with wrap_env_errors(f"close of {self._name}"):
                    env.close()
        return None

    def close(self) -> None:
        """Close all instances, ignoring their errors."""
        for slot in list(self._envs):
            with suppress(Exception):
                self.run("drop", slot)


def _validate_observation(observation: object, method: Callable[..., object]) -> Observation:
    """Require what a prompt and the records can hold, alike with and without worker processes."""
    if not isinstance(observation, Observation):
        code = getattr(method, "__code__", None)
        place = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else ""
        raise EnvError(f"an environment must answer with an Observation, not {type(observation).__name__}{place}")
    actions, instruction, info = observation.actions, observation.instruction, observation.info
    if actions is not None and not (isinstance(actions, tuple | list) and all(isinstance(a, str) for a in actions)):
        raise EnvError(f"Observation.actions must be a tuple of texts or None, not {actions!r:.80}")
    if not isinstance(instruction, str | None):
        raise EnvError(f"Observation.instruction must be a text or None, not {instruction!r:.80}")
    try:
        plain = json.loads(json.dumps(dict(info), default=_to_plain, allow_nan=False)) if info else {}
    except (TypeError, ValueError) as error:
        raise EnvError(f"Observation.info must hold JSON values: {error}") from error
    values = {field.name: getattr(observation, field.name) for field in fields(Observation)}  # no subclass's
    return Observation(**{**values, "actions": None if actions is None else tuple(actions), "info": plain})


class EnvServer:
    def __init__(self) -> None:
        self._slots: Slots | None = None

    def answer(self, request: list[Any]) -> bytes:
        """Answer a request with one frame; errors become answers too."""
        operation, slot, argument = request
        try:
            if operation == "start":
                self._slots, observation = Slots(slot, argument), None
            else:
                assert self._slots is not None, "the first request is the start"
                observation = self._slots.run(operation, slot, Task(*argument) if operation == "reset" else argument)
            return encode(["ok", observation])
        except TrailnotesError as error:
            return encode(["error", type(error).__name__, str(error), getattr(error, "traceback", "")])

    def close(self) -> None:
        if self._slots:
            self._slots.close()


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

    threading.Thread(target=keep_beating, name="heartbeat", daemon=True).start()
    server, buffer = EnvServer(), bytearray()
    with suppress(OSError):  # a pool that is gone needs no answer
        while data := connection.recv(READ_CHUNK_BYTES):
            buffer += data
            for request in decode_frames(buffer):
                send(server.answer(request))
    done.set()
    server.close()
