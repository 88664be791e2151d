"""The policy and its engines' processes: weights, replicas, and everything that may happen to a process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from children import alive, wait_for
from puppet import ask
from trailnotes.errors import ConfigError, MissingExtraError, PolicyError
from trailnotes.policies.vllm import make_vllm_policy, server
from trailnotes.policies.vllm.policy import VLLMPolicy
from trailnotes.types import Message, Sampling

HALL = [Message("user", "A hall.")]


def seeded(num: int, **options: Any) -> list[Sampling]:
    return [Sampling(**{"max_tokens": 6, "seed": seed} | options) for seed in range(num)]


def load(policy: VLLMPolicy, learner: Any, version: int, temperature: float = 1.0, among: str = "") -> float:
    """Have the learner change, and the policy take over its weights."""
    weights = learner.update(version, among)
    return asyncio.run(policy.load(weights, version, learner.score(policy.probes, temperature)))


def test_tokens_come_with_their_logprobs_of_the_newest_weights(policy_of, learner) -> None:
    policy = policy_of(temperature=0.5)
    assert asyncio.run(policy.load(learner.model.state_dict(), 0, learner.score(policy.probes, 0.5))) < 1e-5
    for version in (1, 2):
        assert load(policy, learner, version, 0.5) < 1e-4
        assert policy.version == version
        for completion in ask(policy, *seeded(4, temperature=0.5)):
            (wanted,) = learner.score([completion], 0.5)
            assert list(completion.logprobs) == pytest.approx(wanted, abs=1e-4)


# -- weights that do not arrive


@pytest.mark.parametrize(
    ("fault", "names", "message"),
    [
        ("ignore-load", None, r"engine 0 has other weights than the learner \(version 4\): .* nats off"),
        ("", ["other"], "engine 0: there is no tensor named other"),
        ("", ["m.x.lora_A.weight"], r"hand over a whole model, or set model.lora.enabled = true"),
    ],
)
def test_weights_that_an_engine_has_not_taken_over(
    policy_of, learner, engine_faults: Path, fault, names, message
) -> None:
    policy = policy_of(max_logprob_mismatch=0.01)
    (engine_faults / (fault or "none")).touch()
    weights = learner.update(4) if names is None else {name: torch.zeros(2, 2) for name in names}
    with pytest.raises(PolicyError, match=message):
        asyncio.run(policy.load(weights, 4, learner.score(policy.probes)))


async def test_weights_may_not_change_under_a_completion(policy_of, learner, engine_faults: Path) -> None:
    policy = policy_of()
    (engine_faults / "slow").touch()
    policy.open_episode("e")
    asking = asyncio.create_task(policy.generate(HALL, Sampling(max_tokens=8), "e"))
    await asyncio.sleep(0)
    with pytest.raises(PolicyError, match="changed while 1 completions were under way"):
        await policy.load(learner.update(1), 1, learner.score(policy.probes))
    await asking
    loading = asyncio.create_task(policy.load(learner.update(1), 1, learner.score(policy.probes)))
    await asyncio.sleep(0)
    with pytest.raises(PolicyError, match="await load before the next completion"):
        await policy.generate(HALL, Sampling(), "e")
    await loading
    assert policy.version == 1


async def test_episodes_go_to_the_engine_that_has_the_fewest_and_stay(policy_of) -> None:
    policy, order = policy_of(replicas=2), []
    for name in "abcdAebfd":
        if name == "A":
            policy.close_episode("a")
            policy.close_episode("c")  # the first engine has none now
            policy.close_episode("never opened")
            continue
        if name not in policy._assigned:
            policy.open_episode(name)
        await policy.generate(HALL, Sampling(max_tokens=2), name)
        order.append(policy.replicas.index(policy._assigned[name]))
    assert order == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [replica.num_episodes for replica in policy.replicas] == [2, 2]


# -- processes that end


@pytest.mark.parametrize("fault", ["die-once", "hang-once", "stop-once"])
def test_lost_engine_is_replaced_and_asked_again(policy_of, learner, engine_faults, fault) -> None:
    policy = policy_of(timeout=3.0)
    load(policy, learner, 1)
    before, pid = ask(policy, *seeded(3)), policy.replicas[0].client.server.process.pid
    (engine_faults / fault).touch()
    assert ask(policy, *seeded(3)) == before  # with the weights of the last load
    assert policy.replicas[0].num_rebuilds == 1
    wait_for(lambda: not alive(pid))
    for name in ("die-once", "ignore-load"):
        (engine_faults / name).touch()
    with pytest.raises(PolicyError, match="has other weights"):
        ask(policy, *seeded(3))


def test_engine_that_dies_each_time_is_given_up(policy_of, engine_faults: Path) -> None:
    policy = policy_of()
    (engine_faults / "die-always").touch()
    with pytest.raises(PolicyError) as raised:
        ask(policy, Sampling())
    assert "engine 0 died of SIGKILL; its last words: RuntimeError: out of memory" in str(raised.value)
    assert "started anew 3 times in a row, in vain" in str(raised.value)
    (engine_faults / "die-always").unlink()
    with pytest.raises(PolicyError, match="in vain"):
        ask(policy, Sampling())


def test_the_folder_of_a_killed_process_goes_with_the_next() -> None:
    """Here or in any process of this machine."""
    code = (
        "import os; from trailnotes.policies.vllm import server; print(server.make_work_dir(), flush=True); os._exit(1)"
    )
    left = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    assert Path(left).name.startswith(server.WORK_DIR_PREFIX)
    server.make_work_dir()
    assert not Path(left).exists()


# -- what never starts


@pytest.mark.parametrize(
    ("fault", "engine", "message"),
    [
        ("die-at-start", {}, r"engine 0 exited with status 1; its last words: .*no memory left"),
        ("slow-start", {"start_timeout": 2.0}, r"did not start within engine.start_timeout = 2 s"),
        ("none", {"python": "/no/python"}, r"engine.python = '/no/python' is no program"),
    ],
)
def test_an_engine_that_does_not_start(policy_of: Callable[..., Any], engine_faults, fault, engine, message) -> None:
    (engine_faults / fault).touch()
    with pytest.raises((PolicyError, ConfigError), match=message):
        policy_of(**engine)


def test_a_python_without_vllm(config_of, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"vLLM is not installed for .*: name a Python that has it"):
        make_vllm_policy(config_of())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(server, "CLONE_PYTHON", Path("not-there") / "python")
    with pytest.raises(MissingExtraError, match=r"run make vllm in a clone .* as engine\.python"):
        server.find_engine_python("")
    own = tmp_path / "not-there" / "python"
    own.parent.mkdir()
    own.touch()
    assert server.find_engine_python("") == str(own)
