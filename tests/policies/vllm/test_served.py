"""Engines behind an address, with a made-up model: how they are reached, given weights, and lost."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from children import alive, wait_for
from puppet import ask
from trailnotes.config.schema import Config
from trailnotes.errors import PolicyError
from trailnotes.policies.hf.engine import StopCondition
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.policies.vllm import make_vllm_policy
from trailnotes.policies.vllm.engine import EngineClient, EngineLostError
from trailnotes.policies.vllm.server import EngineServer, build_command, start_engine
from trailnotes.types import Sampling


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def served(config: Config, port: int) -> Iterator[int]:
    """The process that `trailnotes engine serve` becomes."""
    command, variables = build_command(config, alone=True)
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            process.kill()


ONE = Sampling(max_tokens=9, seed=4)


def test_a_served_engine_is_given_its_weights_again(config_of, learner, engine_faults: Path) -> None:
    port = find_port()
    with served(config_of(), port) as first:
        policy = make_vllm_policy(config_of(urls=[f"http://127.0.0.1:{port}"]), trains=True)
        assert asyncio.run(policy.load(learner.update(1), 1, learner.score(policy.probes))) < 1e-4
        before = ask(policy, ONE)
    wait_for(lambda: not alive(first))
    with served(config_of(), port) as second:
        assert ask(policy, ONE) == before
        assert policy.replicas[0].num_rebuilds == 1
        policy.close()
        assert alive(second)  # it is not ours


def test_weights_for_other_machines_are_in_the_run_directory(
    config_of, learner, engine_faults: Path, tmp_path: Path
) -> None:
    run, port = tmp_path / "run", find_port()
    (run / "engine-weights" / "of a killed run").mkdir(parents=True)
    config = config_of()

    def connect() -> EngineServer:
        return start_engine(config, 0, tmp_path, host="127.0.0.1", port=port)

    policy = make_vllm_policy(config, trains=True, connects=[connect], directory=run)
    asyncio.run(policy.load(learner.update(1), 1, learner.score(policy.probes)))
    assert [path.name[:8] for path in (run / "engine-weights").iterdir()] == ["weights-"]
    policy.close()
    assert not (run / "engine-weights").exists()


@pytest.mark.long
def test_initial_weights_replace_those_of_the_server(
    config_of, model_of, tokenizer_of, engine_faults: Path, tmp_path: Path
) -> None:
    other = model_of()
    with torch.no_grad():
        other.model.norm.weight.mul_(3.0)
    other.save_pretrained(tmp_path / "other")
    tokenizer_of().save_pretrained(tmp_path / "other")
    port = find_port()
    with served(config_of(model={"path": str(tmp_path / "other")}), port):
        policy = make_vllm_policy(config_of(urls=[f"http://127.0.0.1:{port}"]))
        (found,), (wanted,) = ask(policy, ONE), ask(HFPolicy(model_of(), tokenizer_of()), ONE)
        policy.close()
    assert found.token_ids == wanted.token_ids
    assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)


@pytest.mark.long
def test_a_request_that_waits_while_others_are_served_is_repeated(config_of, engine_faults: Path) -> None:
    """An engine hangs only where no request at all makes progress."""
    port = find_port()
    with served(config_of(), port) as pid:
        client = EngineClient(
            EngineServer("engine", f"http://127.0.0.1:{port}"), config_of().engine.model_copy(update={"timeout": 1.0})
        )
        client.wait_until_ready()
        with pytest.raises(PolicyError, match="its server has no /v2/pause: start it by trailnotes engine serve"):
            client.call("/v2/pause")
        os.kill(pid, signal.SIGSTOP)

        async def run() -> None:
            endings = StopCondition(lambda _: "", ())
            asking = asyncio.create_task(client.complete((3,), Sampling(max_tokens=3, seed=1), endings))
            await asyncio.sleep(0)
            client._progressed_at = time.monotonic() + 60  # other requests get tokens all the while
            with pytest.raises(EngineLostError, match="other requests took all of the engine's time"):
                await asking

        asyncio.run(run())
        assert not client.failure
        os.kill(pid, signal.SIGCONT)
        client.close()
