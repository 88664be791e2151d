"""An engine that sleeps while the learner on its device learns, and reads the learner's memory: the fake server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from puppet import ask
from trailnotes.config.schema import Config
from trailnotes.errors import PolicyError
from trailnotes.policies.vllm.worker.engine_worker import export_tensor, open_tensor
from trailnotes.runs.training import WeightSync
from trailnotes.types import Message, Sampling

HALL = [Message("user", "A hall.")]
ONE = Sampling(max_tokens=6, seed=3)


def list_calls(engine_faults: Path) -> list[str]:
    return (engine_faults / "calls").read_text().splitlines()


async def hand_over(policy: Any, learner: Any, version: int, among: str = "") -> float:
    """Sleep, learn, wake, and load."""
    await policy.sleep()
    learner.update(version, among)
    assert await policy.wake() == policy.reads_learner_memory
    weights = {name: each for name, each in learner.model.named_parameters() if among in name}
    return await policy.load(weights, version, learner.score(policy.probes))


@pytest.mark.parametrize("tensor", [torch.randn(5, 3).T[1:], torch.randn(7).bfloat16(), torch.arange(12)[5:]])
def test_an_exported_tensor_is_the_same_memory(tensor: torch.Tensor) -> None:
    name, found = open_tensor(*export_tensor("w", tensor))
    assert name == "w"
    assert torch.equal(found, tensor)
    tensor.add_(1)
    assert torch.equal(found, tensor)


def test_engine_sleeps_wakes_and_takes_the_learners_weights_from_memory(
    policy_of, learner, engine_faults: Path
) -> None:
    policy = policy_of(shared_card=True)
    for version in (1, 2):
        (engine_faults / "calls").unlink(missing_ok=True)
        assert asyncio.run(hand_over(policy, learner, version)) < 1e-4
        order = ["/sleep?level=2", "/wake_up", "/pause", "replace_weights", "/resume", "/v1/completions"]
        assert list_calls(engine_faults) == order
        (completion,) = ask(policy, ONE)
        assert list(completion.logprobs) == pytest.approx(learner.score([completion])[0], abs=1e-4)
    assert not list(policy._folder.glob("weights-*")), "there are no files"
    learner.update(3)
    assert ask(policy, ONE) == [completion], "an engine has copies"


def test_adapters_come_in_files_to_weights_that_level_1_keeps(policy_of, engine_faults: Path) -> None:
    policy = policy_of(shared_card=True, model={"lora": {"enabled": True, "rank": 2}})
    assert not policy.reads_learner_memory
    before = ask(policy, ONE)
    asyncio.run(policy.sleep())
    assert not asyncio.run(policy.wake())
    assert ask(policy, ONE) == before
    assert list_calls(engine_faults)[-3:] == ["/sleep?level=1", "/wake_up", "/v1/completions"]


def test_an_engine_stays_awake_unless_it_shares_its_device(policy_of, engine_faults: Path) -> None:
    policy = policy_of()
    asyncio.run(policy.sleep())
    assert ask(policy, ONE)
    assert "/sleep" not in "".join(list_calls(engine_faults))


async def test_nobody_waits_for_an_engine_that_sleeps(policy_of) -> None:
    policy = policy_of(shared_card=True)
    policy.open_episode("e")
    await policy.sleep()
    for request in (policy.generate(HALL, ONE, "e"), policy.score(HALL, [""])):
        with pytest.raises(PolicyError, match="await wake"):
            await asyncio.wait_for(request, 5)


def test_weights_that_cannot_be_shared(policy_of) -> None:
    policy = policy_of(shared_card=True)
    with pytest.raises(PolicyError, match=r"the learner's weights: .*; set engine.shared_card = false"):
        asyncio.run(policy.load({"w": torch.empty(2, device="meta")}, 1))


async def test_weights_that_sleep_has_dropped_are_sent_again_without_an_update(
    policy_of, learner, engine_faults: Path
) -> None:
    policy = policy_of(shared_card=True)

    class LiveLearner:
        def live_weights(self) -> dict[str, torch.Tensor]:
            return dict(learner.model.named_parameters())

        def logprobs(self, rows: Any) -> list[Any]:
            scores = iter(learner.score(policy.probes))
            return [(*(0.0 for row_mask in row.loss_mask if not row_mask), *next(scores)) for row in rows]

    sync = WeightSync(Config(engine={"name": "vllm"}), policy, LiveLearner(), None)
    for loads in (1, 2):
        await sync.acquire()
        assert list_calls(engine_faults).count("replace_weights") == loads
        await policy.sleep()
        sync.release()
