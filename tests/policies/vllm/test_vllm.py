"""vLLM itself, on a CPU: what the made-up model of the other files cannot show. An engine takes a minute to start."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from children import alive
from puppet import ask
from trailnotes.config.model_schema import ModelConfig
from trailnotes.config.schema import Config
from trailnotes.policies.hf.policy import load_model
from trailnotes.policies.vllm import VLLMPolicy, make_vllm_policy, server
from trailnotes.policies.vllm.server import EngineServer
from trailnotes.types import Sampling

pytestmark = pytest.mark.vllm

VLLM = os.environ.get("TRAILNOTES_TEST_VLLM", "")
CLOSE = 2e-5  # nats on average, in float32 on a CPU
HEADS = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}  # of 32 channels


@pytest.fixture
def saved(tmp_path: Path, tokenizer_of: Any, model_of: Any) -> Callable[..., Path]:
    def save(**options: Any) -> Path:
        model_of("qwen2", positions=256, **HEADS | options).save_pretrained(tmp_path / "model")
        tokenizer_of().save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


def config_of(path: Path, **engine: Any) -> Config:
    return Config(
        run={"deterministic": False},
        model={"path": str(path), "device": "cpu"},
        engine={"name": "vllm", "python": VLLM, "max_concurrent": 8, "start_timeout": 1800.0, **engine},
    )


@pytest.fixture
def policy_of() -> Iterator[Callable[[Config], VLLMPolicy]]:
    made: list[VLLMPolicy] = []

    def make(config: Config) -> VLLMPolicy:
        made.append(make_vllm_policy(config))
        return made[-1]

    yield make
    for policy in made:
        policy.close()


def samplings(num: int = 3, max_tokens: int = 20) -> list[Sampling]:
    return [Sampling(max_tokens=max_tokens, seed=seed) for seed in range(num)]


@pytest.mark.parametrize("tied", [True, False])
def test_weights_arrive_whole_and_again_after_a_kill(policy_of, saved, learner, tied: bool) -> None:
    path = saved(tie_word_embeddings=tied)
    policy, learner.model = policy_of(config_of(path)), load_model(ModelConfig(path=str(path), device="cpu"))[0]
    before = ask(policy, *samplings())
    old = learner.score(before)
    assert old == [pytest.approx(list(each.logprobs), abs=1e-4) for each in before]  # as the engine read it
    for version in (1, 2, 3):
        assert asyncio.run(policy.load(learner.update(version), version, learner.score(policy.probes))) < CLOSE
    assert max(abs(a - b) for a, b in zip(old[0], learner.score(before)[0], strict=True)) > 0.5
    expected = ask(policy, *samplings())
    assert learner.score(expected) == [pytest.approx(list(each.logprobs), abs=1e-4) for each in expected]
    if not tied:
        return
    pid = policy.replicas[0].client.server.process.pid
    os.kill(pid, signal.SIGSTOP)  # or it would be done before it is killed
    killer = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
    killer.start()
    again = ask(policy, *samplings(max_tokens=100))
    killer.join(60)
    assert policy.replicas[0].num_rebuilds == 1
    assert not alive(pid)
    assert learner.score(again) == [pytest.approx(list(each.logprobs), abs=1e-4) for each in again]
    assert [each.token_ids for each in ask(policy, *samplings())] == [each.token_ids for each in expected]


def test_an_engine_behind_an_address(saved, policy_of, learner, tmp_path: Path) -> None:
    path = saved()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    config = config_of(path, start_timeout=400.0, urls=[f"http://127.0.0.1:{port}"])
    folder = tmp_path / "server"
    folder.mkdir()

    def serve() -> EngineServer:
        return server.start_engine(config_of(path), 0, folder, host="127.0.0.1", port=port)

    served = serve()
    try:
        policy = policy_of(config)
        learner.model = load_model(ModelConfig(path=str(path), device="cpu"))[0]
        assert asyncio.run(policy.load(learner.update(1), 1, learner.score(policy.probes))) < CLOSE
        served.close("was replaced")
        served = serve()
        (completion,) = ask(policy, *samplings(1))
        assert learner.score([completion])[0] == pytest.approx(list(completion.logprobs), abs=1e-4)
        assert policy.replicas[0].num_rebuilds == 1
    finally:
        served.close("was closed")
