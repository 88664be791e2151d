"""Frames, the handshake, and engines behind an address: what answers there, who is let in, and who is not."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from children import alive, children_of, wait_for
from trailnotes.config.model_schema import ENGINE_TOKEN_VARIABLE
from trailnotes.config.toml import to_toml
from trailnotes.errors import ConfigError, PolicyError
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.policies.vllm import building, link, make_vllm_policy
from trailnotes.policies.vllm.building import count_weight_bytes
from trailnotes.policies.vllm.process import WORK_DIR_PREFIX
from trailnotes.policies.vllm.replica import write_adapters, write_full_model
from trailnotes.policies.vllm.worker import wire
from trailnotes.types import Completion, Message, Sampling

CORE = Path(__file__).with_name("markov.py")
SECRET = "a secret of some length"
ROOTS = Path("/dev/shm"), Path(tempfile.gettempdir())  # where engines keep weights
SERVE = """
import sys
from pathlib import Path
from trailnotes.config.toml import load_config
from trailnotes.policies.vllm.building import serve_engine
config, core = load_config(Path(sys.argv[1])), Path(sys.argv[2])
serve_engine(config, "127.0.0.1", 0, say=lambda text: print(text, flush=True), core=core)
"""


# -- frames


@given(st.lists(st.tuples(st.lists(st.integers() | st.text() | st.none(), min_size=1), st.binary(max_size=20))))
def test_messages_and_what_is_behind_them_survive(messages: list[tuple[list[Any], bytes]]) -> None:
    stream = io.BytesIO(b"".join(wire.encode_frame(message, len(payload)) + payload for message, payload in messages))
    for message, payload in messages:
        assert wire.read_frame(stream.read) == (message, len(payload))
        assert stream.read(len(payload)) == payload
    assert wire.read_frame(stream.read) is None


def test_a_torn_frame_ends_the_stream() -> None:
    whole = wire.encode_frame(["look"])
    assert all(wire.read_frame(io.BytesIO(whole[:cut]).read) is None for cut in range(len(whole)))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "that is no engine"),
        (wire.HEADER.pack(3, 0) + b"{]x", "no JSON"),
        (wire.HEADER.pack(100_000, 0) + b"[" * 100_000, "no JSON"),
        (wire.HEADER.pack(2, 0) + b"{}", "without a name"),
        (wire.HEADER.pack(2, 0) + b"[]", "without a name"),
    ],
)
def test_what_is_no_message_is_an_error(data: bytes, what: str) -> None:
    with pytest.raises(wire.WireError, match=what):
        wire.read_frame(io.BytesIO(data).read)


# -- weights as a file


def test_the_file_is_what_the_library_reads(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    embedding = torch.randn(5, 3)
    weights = {"embed": embedding, "norm": torch.randn(4).to(torch.bfloat16), "lm_head": embedding, "t": embedding.T}
    write_full_model(weights, tmp_path / "w", torch.float32)
    read = load_file(tmp_path / "w")
    assert set(read) == {"embed", "norm", "t"}  # what is tied is written once; a transposed view is another tensor
    for name, tensor in read.items():
        torch.testing.assert_close(tensor, weights[name].float(), rtol=0, atol=0)
    write_full_model({"w": embedding}, tmp_path / "b", torch.bfloat16)
    assert load_file(tmp_path / "b")["w"].equal(embedding.to(torch.bfloat16))


def test_adapters_of_several_ranks_are_refused(tmp_path: Path) -> None:
    adapters = {"m.q.lora_A.weight": torch.zeros(2, 8), "m.q.lora_B.weight": torch.zeros(8, 2)}
    config = write_adapters(adapters, tmp_path / "a", torch.float32, {"lora_alpha": 4.0})
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 4.0, ["q"])
    adapters["m.v.lora_A.weight"] = torch.zeros(4, 8)
    with pytest.raises(PolicyError, match=r"ranks \[2, 4\]"):
        write_adapters(adapters, tmp_path / "a", torch.float32, {})


# -- the handshake


def handshake(ours: str, theirs: str, busy: bool = False) -> bool:
    """Whether the engine serves; what the policy raises comes through."""
    policy, engine = socket.socketpair()
    served: list[bool] = []

    def welcome() -> None:
        with engine:
            served.append(wire.handshake_as_engine(engine, theirs, lambda: busy))

    thread = threading.Thread(target=welcome)
    thread.start()
    try:
        with policy:
            wire.handshake_as_policy(policy, ours)
    finally:
        thread.join(10)
    return served == [True]


def test_who_knows_the_token_is_let_in() -> None:
    assert handshake("", "")
    assert handshake(SECRET, SECRET)
    with pytest.raises(wire.WireError, match="knows another token"):
        handshake(SECRET, "another secret of length")
    with pytest.raises(wire.WireError, match="serves another run"):
        handshake(SECRET, SECRET, busy=True)


@pytest.mark.parametrize(
    ("says", "error"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", r"is no engine of Trailnotes \(it says 'SSH-2.0-OpenSSH_9.6'\)"),
        (b"", "is no engine of Trailnotes"),
        (b"TRAILNOTES-ENGINE 99 abc\n", "speaks protocol 99, this side 1: install the same version"),
        (b"TRAILNOTES-ENGINE 1 abc\nwelcome 0000\n", "does not know the token"),
        (b"\xff" * 300, "is no engine of Trailnotes"),
    ],
)
def test_what_else_may_answer(says: bytes, error: str) -> None:
    policy, other = socket.socketpair()
    with policy, other:
        other.sendall(says)
        other.shutdown(socket.SHUT_WR)
        with pytest.raises(wire.WireError, match=error):
            wire.handshake_as_policy(policy, SECRET)


def test_an_engine_serves_nobody_who_says_something_else() -> None:
    for says in (b"GET / HTTP/1.1\r\n", b"TRAILNOTES-ENGINE 2 abc\n", b"", b"\x00" * 300):
        engine, other = socket.socketpair()
        with engine, other:
            other.sendall(says)
            other.shutdown(socket.SHUT_WR)
            assert not wire.handshake_as_engine(engine, SECRET, lambda: False)


class Drip:
    """A connection over which a byte comes each 9 seconds of a clock that it moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def settimeout(self, seconds: float | None) -> None:
        assert seconds is None or seconds > 0

    def sendall(self, data: bytes) -> None:
        pass

    def recv(self, size: int) -> bytes:
        self.now += 9.0
        return b"x"


def test_a_handshake_has_one_limit_however_slowly_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    drip: Any = Drip(monkeypatch)
    with pytest.raises(TimeoutError):
        wire.handshake_as_engine(drip, SECRET, lambda: False)
    assert drip.now < wire.HANDSHAKE_TIMEOUT + 9
    with pytest.raises(TimeoutError):
        wire.handshake_as_policy(drip, SECRET)


# -- addresses


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert link.parse_address("tcp://10.0.0.7:99") == ("10.0.0.7", 99)
    assert link.parse_address("gpu-3") == ("gpu-3", link.PORT)
    for url in ("http://host:1", "tcp://host:port", "tcp://", "tcp://host:1/v1"):
        with pytest.raises(ConfigError, match="is no address of an engine"):
            link.parse_address(url)
    monkeypatch.delenv(ENGINE_TOKEN_VARIABLE, raising=False)
    assert link.get_token("127.0.0.1") == ""
    for name in ("127.evil.example", "localhost.evil.example"):  # names, which may lead anywhere
        with pytest.raises(ConfigError, match="between machines an engine needs a token"):
            link.get_token(name)
    for value in ("", "short"):
        monkeypatch.setenv(ENGINE_TOKEN_VARIABLE, value)
        with pytest.raises(ConfigError, match=f"set {ENGINE_TOKEN_VARIABLE} to the same 16 characters"):
            link.get_token("0.0.0.0")


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen at 127.0.0.1:{port} \(Address already in use\)"):
            building.open_listener("127.0.0.1", port)


def test_an_address_where_nobody_is_or_something_else(config_of) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        url = f"tcp://127.0.0.1:{door.getsockname()[1]}"

        def answer() -> None:
            connection, _ = door.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(PolicyError, match=r"is no engine of Trailnotes \(it says 'HTTP/1.1 400 Bad Request'\)"):
            make_vllm_policy(config_of(urls=[url]), trains=True)
        thread.join()
    with pytest.raises(PolicyError, match=r"does not answer \(Connection refused\): start an engine there with"):
        make_vllm_policy(config_of(urls=[url]), trains=True)


# -- engines that are served


@contextlib.contextmanager
def served(config: Any, folder: Path, core: Path = CORE) -> Iterator[tuple[str, int]]:
    """The address of an engine, and the process that serves it."""
    (folder / "config.toml").write_text(to_toml(config))
    command = [sys.executable, "-c", SERVE, str(folder / "config.toml"), str(core)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout
        try:
            yield server.stdout.readline().strip(), server.pid
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


def test_a_served_engine(config_of, learner, faults: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENGINE_TOKEN_VARIABLE, SECRET)
    with served(config_of(timeout=3.0), tmp_path) as (address, server):
        policy = make_vllm_policy(config_of(urls=[f"tcp://{address}"], timeout=60.0), trains=True)

        def ask() -> Any:
            async def run() -> Any:
                policy.open_episode("e")
                try:
                    return await policy.generate([Message("user", "A hall.")], Sampling(max_tokens=9, seed=4), "e")
                finally:
                    policy.close_episode("e")

            return asyncio.run(run())

        assert asyncio.run(policy.load(learner.update(1), 1, learner.score(policy.probes))) < 1e-5
        before = ask()
        with pytest.raises(PolicyError, match="serves another run"):
            make_vllm_policy(config_of(urls=[f"tcp://{address}"]), trains=True)
        with monkeypatch.context() as patch:
            patch.setenv(ENGINE_TOKEN_VARIABLE, "another secret of length")
            with pytest.raises(
                PolicyError, match=f"knows another token: set {ENGINE_TOKEN_VARIABLE} to the same on both"
            ):
                make_vllm_policy(config_of(urls=[f"tcp://{address}"]), trains=True)
        (spool,) = (path for root in ROOTS for path in root.glob(f"{WORK_DIR_PREFIX}{server}-*"))
        upload = spool / f"upload{wire.WEIGHTS_SUFFIX}"
        upload.touch()  # as an engine that is killed leaves one
        for fault in ("die-once", "hang-once"):
            (faults / fault).touch()
            assert ask() == before  # started anew over there, and given the weights again
            assert not upload.exists()
        assert policy.replicas[0].num_rebuilds >= 2
        (worker,) = children_of(server)
        policy.close()
        assert alive(worker)
        with pytest.raises(PolicyError, match="was started for adapters of rank 0"):
            make_vllm_policy(config_of(urls=[f"tcp://{address}"], model={"lora": {"enabled": True}}), trains=True)
        again = make_vllm_policy(config_of(urls=[f"tcp://{address}"]), trains=True)
        with pytest.raises(PolicyError, match="weights come with the message"):  # no file of that machine is read
            again.replicas[0]._link.call("load", {"version": 1, "adapters": None, "path": "/etc/hostname"})
        again.close()
    wait_for(lambda: not alive(worker))


def test_nobody_plays_with_the_weights_that_an_engine_was_started_with(
    config_of, model_of, tokenizer_of, tmp_path: Path
) -> None:
    other = model_of()
    with torch.no_grad():
        other.model.norm.weight.mul_(3.0)
    other.save_pretrained(tmp_path / "other")
    tokenizer_of().save_pretrained(tmp_path / "other")
    config = config_of(model={"path": str(tmp_path / "other")})
    with served(config, tmp_path, Path(__file__).parents[2] / "causal.py") as (address, _):
        policy = make_vllm_policy(config_of(urls=[f"tcp://{address}"]))

        async def ask(policy: Any) -> Completion:
            policy.open_episode("e")
            return await policy.generate([Message("user", "A hall.")], Sampling(max_tokens=9, seed=4), "e")

        found, wanted = asyncio.run(ask(policy)), asyncio.run(ask(HFPolicy(model_of(), tokenizer_of())))
        policy.close()
    assert found.token_ids == wanted.token_ids
    assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)


def test_weights_may_have_four_times_the_bytes_of_the_model(config_of, tmp_path: Path) -> None:
    size = count_weight_bytes(config_of())
    assert size
    assert building.max_weight_bytes(config_of(), tmp_path) == building.WEIGHT_BYTES_ALLOWANCE + 4 * size


def test_a_server_that_is_killed_takes_its_engine_with_it(config_of, tmp_path: Path) -> None:
    with served(config_of(), tmp_path) as (_, server):
        (worker,) = children_of(server)
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: not alive(worker))
