"""Vectors from an endpoint: a real server over HTTP, which also does what servers do on bad days."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddings import EmbeddingServer, embedding_server
from trailnotes.commands import main
from trailnotes.config.model_schema import EndpointConfig
from trailnotes.config.schema import Config, MemoryConfig
from trailnotes.config.toml import to_toml
from trailnotes.errors import ConfigError, MemoryStoreError
from trailnotes.memory import make_config_embedder, open_memory
from trailnotes.memory.exchange import open_store
from trailnotes.memory.retrieval import EndpointEmbedder, HashingEmbedder
from trailnotes.types import Tip

pytestmark = pytest.mark.usefixtures("no_endpoint_variables")

KEY = "sk-secret-0123456789"


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with embedding_server() as server:
        yield server


def remote(server: EmbeddingServer, **endpoint: Any) -> EndpointEmbedder:
    config = EndpointConfig(base_url=server.url)
    return EndpointEmbedder("openai:small", config.model_copy(update=endpoint))


def error(status: int, message: str = "no", **facts: Any) -> Any:
    return lambda asked: (status, {"error": {"message": message, **facts}})


# --- vectors


def test_vectors_are_those_of_the_server_at_length_one(server: EmbeddingServer) -> None:
    embedder = remote(server)
    assert (embedder.name, embedder.dim) == ("openai:small", 64)
    texts = ["a hall", "", "caf\u00e9 \u6c34", "a hall"]
    vectors = embedder.embed(texts)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, HashingEmbedder(64).embed([*texts[:1], " ", *texts[2:]]), atol=1e-6)
    assert server.asked[-1] == {"model": "small", "input": ["a hall", " ", "caf\u00e9 \u6c34", "a hall"],
                               "encoding_format": "float"}  # fmt: skip
    assert embedder.embed([]).shape == (0, 64)


def test_what_is_too_long_is_cut_and_depends_on_nothing_beside_it(server: EmbeddingServer) -> None:
    embedder, text = remote(server), "one two three " * 40
    server.longest = 200
    together = embedder.embed(["short", text, "also short"])
    (alone,) = embedder.embed([text])
    np.testing.assert_array_equal(together[1], alone)
    np.testing.assert_allclose(alone, HashingEmbedder(64).embed([text[: len(text) // 4]])[0], atol=1e-6)
    for status, message in [(500, "input (992 tokens) is too large to process. increase the physical batch size"),
                            (413, "no"), (400, "the input length exceeds the context length")]:  # fmt: skip
        server.faults, before = [error(status, message)], len(server.asked)
        np.testing.assert_array_equal(embedder.embed(["a hall", "a yard"]), embedder.embed(["a hall", "a yard"]))
        assert [len(texts) for texts in server.texts[before:]] == [2, 1, 1, 2]
    server.longest = 3
    with pytest.raises(ConfigError, match="takes no text of 35 characters"):
        embedder.embed([text])


# --- a memory


@pytest.fixture
def strangers(server: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory of somebody whose every file names this server, and whose config wants keys of ours for it."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    name = f"openai:small@{server.url}"
    endpoint = {"base_url": server.url, "api_key_env": "AWS_SECRET_ACCESS_KEY"}
    config = Config(endpoint=endpoint, memory={"embedder": name, "threshold": -1.0})
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(to_toml(config))
    with open_memory(run / "memory.db", config.memory) as memory:
        memory.add([Tip("maze/1", "mind the step", "a stair", 1.0)])
    with closing(sqlite3.connect(run / "memory.db")) as connection, connection:
        connection.execute("UPDATE meta SET value = ? WHERE name = 'embedder'", (name,))
    (tmp_path / "more.jsonl").write_text(json.dumps(asdict(Tip("maze/1", "mind the well", "a yard", 1.0))) + "\n")
    server.asked.clear()
    server.keys.clear()
    return run


def test_a_person_names_the_server_of_a_memory_and_no_file_does(
    server: EmbeddingServer, strangers: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    place, more = str(strangers), str(strangers.parent / "more.jsonl")
    commands = {  # those that need vectors, by what they say
        "mind the dog": ["add", place, "mind the dog", "--task", "maze/1", "--key", "a gate"],
        "1 tips imported": ["import", place, more, "--enable"],
        "similarity 1.000": ["search", place, "maze/1", "a gate", "--top-k", "1"],
    }
    for words in (*commands.values(), ["serve", place, "--write"]):
        assert main(["memory", *words]) == 2
        assert "OPENAI_BASE_URL" in capsys.readouterr().err
    assert not server.asked
    with open_store(strangers) as store:
        assert store.identity == ("openai:small", 64), "the address in the file does not count"
    monkeypatch.setenv("TRAILNOTES_EMBEDDER_KEY", "sk-other")
    for output, words in commands.items():
        assert main(["memory", *words, "--embedder", f"openai:small@{server.url}"]) == 0
        assert output in capsys.readouterr().out
    assert set(server.keys) == {"Bearer sk-other"}


def test_an_address_in_the_name_has_a_key_of_its_own(server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    config = Config(memory={"embedder": f"openai:@me/small@{server.url}"})
    assert make_config_embedder(config).name == "openai:@me/small"
    assert server.asked[0]["model"] == "@me/small"
    assert KEY not in server.keys[0]
    monkeypatch.setenv("TRAILNOTES_EMBEDDER_KEY", "sk-other")
    make_config_embedder(config)
    assert server.keys[1] == "Bearer sk-other"


# --- bad days


def test_what_passes_is_asked_again(
    server: EmbeddingServer, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level(logging.DEBUG, "trailnotes")
    embedder = remote(server)
    wrong = [
        error(503), error(429, f"slow down, {KEY}"), lambda asked: (200, b'{"data": ['), lambda asked: (200, []),
        lambda asked: (200, {"data": []}), lambda asked: (200, {"data": [{"index": 1, "embedding": [1.0]}]}),
        lambda asked: (200, {"data": [{"index": 0, "embedding": [0.0] * 64}]}),
        lambda asked: (200, {"data": [{"index": 0, "embedding": ["x"]}]}),
        lambda asked: (200, {"data": [{"index": 0, "embedding": []}]}),
        lambda asked: (200, json.dumps({"data": [{"index": 0, "embedding": [float("nan")] * 64}]}).encode()),
    ]  # fmt: skip
    for fault in wrong:
        server.faults = [fault]
        before = len(server.asked)
        np.testing.assert_allclose(embedder.embed(["a hall"]), HashingEmbedder(64).embed(["a hall"]), atol=1e-6)
        assert len(server.asked) == before + 2
    server.faults = [lambda asked: (200, {"error": {"message": f"pay, {KEY}", "code": 402}})]
    with pytest.raises(ConfigError, match=r"402: pay, \[key\]; .* top it up"):
        embedder.embed(["a hall"])
    assert "another try" in caplog.text
    assert KEY not in caplog.text


def test_another_model_in_the_same_place_is_noticed(server: EmbeddingServer, tmp_path: Path, monkeypatch: Any) -> None:
    embedder = remote(server)
    server.embedder = HashingEmbedder(32)
    with pytest.raises(MemoryStoreError, match="vectors of 32 dimensions, and a moment ago of 64: another model"):
        embedder.embed(["a hall"])
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    config = MemoryConfig(embedder="openai:small")
    open_memory(tmp_path / "memory.db", config).close()
    server.embedder = HashingEmbedder(16)
    with pytest.raises(MemoryStoreError, match=r"vectors of openai:small \(32 dimensions\), not of .* \(16\)"):
        open_memory(tmp_path / "memory.db", config)
