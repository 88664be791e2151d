"""One tiny model, and servers of it: the stand-in in both dialects, and the real skyrl-tx where there is one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from tinker_servers import REAL, Forks, Server, SkyRL, StandIn
from trailnotes.config.builtin import BUILTIN


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 that transformers 4.57 reads as well: the real server has that version."""
    path = tmp_path_factory.mktemp("tinker") / "model"
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN / "waymarks-start")
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=1024, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
        model.model.embed_tokens.weight.data.mul_(10.0)  # far from uniform, so that no two tokens nearly tie
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    change(path / "config.json", lambda names: names | {"rope_theta": names["rope_parameters"]["rope_theta"]})
    special = "additional_special_tokens"
    change(path / "tokenizer_config.json", lambda names: {special: names.pop("extra_special_tokens")} | names)
    return path


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.process.kill()
    forks.process.communicate()


@pytest.fixture
def stand_in(model_dir: Path, forks: Forks, tmp_path: Path) -> Iterator[Callable[..., StandIn]]:
    """Start a stand-in of one's own: ``stand_in("documented", "--key", KEY)``; it ends with the test."""
    started: list[StandIn] = []

    def start(dialect: str, *options: str) -> StandIn:
        root = tmp_path / f"server-{len(started)}"
        server = StandIn(dialect, model_dir, root, forks=forks, options=options)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture(
    scope="session",
    params=[
        "documented",
        pytest.param("skyrl", marks=pytest.mark.long),
        pytest.param("real", marks=pytest.mark.tinker),
    ],
)
def server(
    request: pytest.FixtureRequest, model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One server for all tests that share it: both dialects of the stand-in, and the real skyrl-tx."""
    is_real = request.param == "real"
    if is_real and not REAL:
        pytest.skip("TRAILNOTES_TEST_TINKER names no Python with skyrl-tx")
    root = tmp_path_factory.mktemp("server") / "root"
    server: Server = SkyRL("skyrl", model_dir, root)
    if not is_real:
        server = StandIn(request.param, model_dir, root, forks=request.getfixturevalue("forks"))
    try:
        server.start()
        yield server
    finally:
        server.close()


def change(path: Path, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
