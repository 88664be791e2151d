"""The program of an engine at an address, as a process with a made-up model: uploads and strangers."""

from __future__ import annotations

import importlib
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from children import wait_for
from trailnotes.policies.vllm.worker import wire
from trailnotes.policies.vllm.worker.core import Core

MAIN = Path(wire.__file__).with_name("main.py")
CORE = Path(__file__).with_name("markov.py")
HANDSHAKES = 64
# Whose patience with strangers no test outlasts.
PROGRAM = (
    "import runpy, sys, wire; wire.HANDSHAKE_TIMEOUT = 600.0; del sys.argv[0]; "
    "runpy.run_path(sys.argv[0], None, '__main__')"
)
SECRET = "a secret of some length"
MOST = 1 << 20


class Engine:
    """A process that serves at `address`, and keeps what it is sent in `spool`."""

    def __init__(self, address: tuple[str, int], spool: Path) -> None:
        self.address, self.spool = address, spool

    def connect(self) -> socket.socket:
        """A connection to it, after the handshake."""
        connection = socket.create_connection(self.address, 30)
        try:
            wire.handshake_as_policy(connection, SECRET)
        except BaseException:  # it is busy
            connection.close()
            raise
        connection.settimeout(30)
        return connection

    def kept(self) -> list[Path]:
        """The files that it has been sent."""
        return [*self.spool.iterdir()]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    settings = {"vocabulary": 3, "fingerprint": "f", "lora_rank": 0, "context": 9}
    settings |= {"token": SECRET, "spool": str(tmp_path), "most_bytes": MOST}
    ours, theirs = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as door, ours:
        command = [sys.executable, "-c", PROGRAM, str(MAIN), str(theirs.fileno()), "1.0", str(CORE)]
        environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(MAIN.parent)}
        with subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno(), door.fileno()]) as process:
            theirs.close()
            ours.sendall(wire.encode_frame(["start", {**settings, "listen": door.fileno()}]))
            try:
                yield Engine(door.getsockname(), tmp_path)
            finally:
                process.kill()


def answers(connection: socket.socket) -> Iterator[list[Any]]:
    """What an engine says but for signs of life, until it hangs up."""
    with connection.makefile("rb") as reader:
        for _ in range(20):
            if (found := wire.read_frame(reader.read)) is None:
                return
            if found[0][0] not in {"alive", "ready"}:
                yield found[0]
    pytest.fail("it goes on")


def test_an_upload_that_is_dropped_is_removed(engine: Engine) -> None:
    connection = engine.connect()
    connection.sendall(wire.encode_frame(["load", 1, {}], MOST) + b"half of it")
    wait_for(engine.kept)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()  # with a reset, as of a process that is killed
    wait_for(lambda: not engine.kept())


def test_what_comes_with_another_message_is_removed(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.sendall(wire.encode_frame(["abort", 7], 5) + b"bytes")
        connection.sendall(wire.encode_frame(["score", 1, {"rows": [], "temperature": 1.0}]))
        assert next(answers(connection)) == ["done", 1, []]
        assert engine.kept() == []


def test_more_than_weights_may_have_is_refused_before_it_comes(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.sendall(wire.encode_frame(["load", 1, {}], 1 << 40))
        ((name, number, text),) = answers(connection)
    assert (name, number) == ("failed", 1)
    assert text == f"{1 << 40} bytes are more than its model may have: start it with this run's config"
    assert engine.kept() == []


def test_a_message_that_no_reader_can_hold_ends_its_link_alone(engine: Engine) -> None:
    with engine.connect() as connection:
        body = b"[" * 100_000
        connection.sendall(wire.HEADER.pack(len(body), 0) + body)
        assert list(answers(connection)) == []
    wait_for(lambda: is_free(engine))


def is_free(engine: Engine) -> bool:
    """Whether it serves a new policy."""
    try:
        engine.connect().close()
    except wire.BusyError:
        return False
    return True


def test_whoever_says_nothing_gives_way(engine: Engine) -> None:
    silent = [socket.create_connection(engine.address, 30) for _ in range(HANDSHAKES)]
    engine.connect().close()
    assert silent[0].recv(1) == b""
    for each in silent:
        each.close()


def test_weights_do_not_meet_what_another_engine_keeps_in_the_same_directory(tmp_path: Path) -> None:
    cores = [Core.__new__(Core) for _ in range(2)]
    upload = tmp_path / "upload"
    upload.touch()
    seen = []

    def reload(_: Any, args: tuple[str]) -> None:
        seen.append(args[0])
        assert (Path(args[0]) / "model.safetensors").resolve() == upload
        if len(seen) == 1:
            cores[1].load(upload, {"version": 1})
            raise RuntimeError("out of memory")

    for core in cores:
        core.spool, core.engine, core._num_loads = tmp_path, Mock(collective_rpc=Mock(side_effect=reload)), 0
    with pytest.raises(RuntimeError, match="out of memory"):
        cores[0].load(upload, {"version": 1})
    assert len(set(seen)) == 2
    assert [*tmp_path.iterdir()] == [upload]


def test_whoever_comes_while_the_core_gets_ready_hears_it_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "wire", wire)
    main = importlib.import_module("trailnotes.policies.vllm.worker.main")
    monkeypatch.setattr(main.PolicyConnection, "start", lambda _: None)  # nobody is listened to
    monkeypatch.setattr(wire, "handshake_as_engine", lambda *_, **__: True)
    ours, control = socket.socketpair()
    near, far = socket.socketpair()
    with ours, control, near, far:
        server = main.EngineServer(control)
        server.inbox.put((server.links[0], ["start", {}], None))
        starting = threading.Thread(target=server.start, args=[lambda _: Mock(about={})])

        class Links(list[Any]):
            def append(self, link: Any) -> None:
                super().append(link)
                starting.start()
                starting.join(0.2)  # in vain where the policy is let in and told in one piece

        server.links = Links(server.links)
        server._handshake(far, main.deque([far]), {"token": SECRET, "spool": str(tmp_path), "most_bytes": MOST})
        starting.join()
        far.shutdown(socket.SHUT_WR)
        with near.makefile("rb") as reader:
            heard = iter(lambda: wire.read_frame(reader.read), None)
            assert [found[0][0] for found in heard if found] == ["ready"]
