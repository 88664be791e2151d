"""Training, acting and evaluation on the pretend device: every number is that of the CPU, to the last bit.

`test_pretend_device.py` runs this file in a process of its own; pytest does not collect it by its name.
"""

from __future__ import annotations

import asyncio
import copy
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from pretend_device import DEVICE, NAME, WAITS
from pretend_graphs import record_graphs
from sharded_cases import Case, rows_of
from small import small_config
from tiny import tiny_model
from tinyrun import SAME, differences, equal_weights, tiny_config, train_in_process
from trailnotes.config.model_schema import EngineConfig, ModelConfig
from trailnotes.config.schema import Config, LossConfig, OptimConfig
from trailnotes.errors import Interrupted
from trailnotes.learner.learner import Learner
from trailnotes.policies.hf import attention, decoder
from trailnotes.policies.hf.decoder import RecomputeDecoder, SlotDecoder
from trailnotes.policies.hf.graphs import StaticDecoder
from trailnotes.policies.hf.policy import HFPolicy, load_model
from trailnotes.storage.demonstrations import Demonstration, write_demonstrations
from trailnotes.types import Completion, Message, Sampling
from trailnotes.warmstart import training
from trailnotes.warmstart.training import warmstart

pytestmark = pytest.mark.usefixtures("fast_bfloat16")  # both devices have it

# -- updates


@pytest.fixture(autouse=True)
def _same_attention(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch and this package have attention of their own for CPUs; both devices compute by plain products instead."""
    ours = attention.attend

    def attend(*args: Any, **given: Any) -> Any:
        return (ours if given.get("shared_rows") else attention.sdpa_attention_forward)(*args, **given)

    monkeypatch.setattr(decoder, "use_cached_attention", lambda model: False)
    monkeypatch.setattr(attention, "attend", attend)  # which the learner has the model use
    with sdpa_kernel(SDPBackend.MATH):
        yield


def same(one: Any, other: Any) -> bool:
    """Whether two results of `learn` are equal in everything but time."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one if not k.startswith("seconds"))
    return bool(one == other)


def test_a_saved_state_continues_on_the_device_and_on_the_cpu(tmp_path: Path) -> None:
    def learner(device: str, seed: int = 0) -> Learner:
        return Learner(tiny_model(seed, torch.bfloat16).to(device), OptimConfig(lr=1e-3), LossConfig())

    rows, first = rows_of(Case()), learner(NAME)
    first.update(rows)
    first.save(tmp_path)
    others = [learner(NAME, 1), learner("cpu", 1)]
    for other in others:
        other.load(tmp_path)
    assert all(tensor.device.type == NAME for tensor in others[0]._optimizer.live_tensors().values())
    metrics = [each.update(rows, seed=1) for each in (first, *others)]
    assert same(metrics[0], metrics[1])
    assert same(metrics[0], metrics[2])
    assert same(first.weights(), others[1].weights())
    assert all(type(tensor) is Tensor for tensor in first.weights().values()), "engines get them from the CPU"


# -- acting


async def talk(policy: HFPolicy) -> list[Any]:
    """Three episodes of two turns at three ways of sampling: all completions, and the scores of two replies."""
    asked = [Message("system", "you are in a hall ; go north or south " * 3), Message("user", "what now ?")]
    samplings = [
        Sampling(max_tokens=4, seed=1, temperature=0.7),
        Sampling(max_tokens=6, seed=2, top_k=5, top_p=0.9),
        Sampling(max_tokens=4, seed=3, temperature=0.0),
    ]
    said: list[list[Completion]] = []
    for episode in "abc":
        policy.open_episode(episode)
    for _ in range(2):
        each = zip(samplings, "abc", strict=True)
        said.append(await asyncio.gather(*(policy.generate(asked, sampling, name) for sampling, name in each)))
        asked = [*asked, Message("assistant", said[-1][0].text or "go north"), Message("user", "and then ?")]
    for episode in "abc":
        policy.close_episode(episode)
    return [said, await policy.score(asked, ["go north", "take the key"])]


@pytest.mark.parametrize("cached", [True, False])
def test_a_policy_samples_the_same_as_on_the_cpu(start_model: Path, cached: bool) -> None:
    found = []
    for device in (NAME, "cpu"):
        loaded = load_model(ModelConfig(path=str(start_model), device=device))
        policy = HFPolicy(*loaded, engine=EngineConfig(burst=8))
        assert isinstance(policy.engine.decoder, SlotDecoder)
        if not cached:
            policy.engine.decoder = RecomputeDecoder(policy.engine.decoder.network)
        found.append(asyncio.run(talk(policy)))
    assert found[0] == found[1]


@pytest.mark.parametrize("burst", [1, 8])
def test_replayed_steps_draw_the_same(start_model: Path, monkeypatch: pytest.MonkeyPatch, burst: int) -> None:
    """Also with new weights: in their old place a replay finds them, in a new one they are captured again."""
    graphs = record_graphs(monkeypatch)
    found = []
    for engine in (EngineConfig(burst=1), EngineConfig(burst=burst, graphs=True)):
        model, tokenizer = load_model(ModelConfig(path=str(start_model), device=NAME))
        policy = HFPolicy(model, tokenizer, engine=engine)
        said, made = [], [len(graphs)]
        for change in ("", "in place", "elsewhere"):
            if change == "in place":
                with torch.no_grad():
                    model.model.norm.weight.mul_(1.5)
            if change == "elsewhere":
                model.model.norm.weight = torch.nn.Parameter(model.model.norm.weight.detach() * 0.5)
            policy.bump_version()
            said += asyncio.run(talk(policy))[0]
            made.append(len(graphs))
        found.append([completion for turn in said for completion in turn])
    assert made[1] > made[0] > 0, "some are made by the probe at the start"
    assert made[2] == made[1]
    assert made[3] > made[2]
    assert all(graph.replays for graph in graphs)
    for one, other in zip(*found, strict=True):
        assert one.token_ids == other.token_ids
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-5)
    assert found[0][:6] != found[0][6:12] != found[0][12:]


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(("burst", "waits"), [(1, 32), (0, 4)])  # 0: as on a GPU, eight at a time
def test_the_host_waits_once_for_a_burst(
    start_model: Path, monkeypatch: pytest.MonkeyPatch, burst: int, waits: int, graphs: bool
) -> None:
    record_graphs(monkeypatch)
    model, tokenizer = load_model(ModelConfig(path=str(start_model), device=NAME))
    policy = HFPolicy(model, tokenizer, engine=EngineConfig(burst=burst, graphs=graphs))
    assert isinstance(policy.engine.decoder, StaticDecoder) == graphs
    policy.engine.endings.end_ids = frozenset()

    async def ask() -> list[Completion]:
        for episode in "ab":
            policy.open_episode(episode)
        samplings = (Sampling(max_tokens=32, temperature=0.7, top_p=0.9), Sampling(max_tokens=32, seed=1))
        asked = zip(samplings, "ab", strict=True)
        return await asyncio.gather(*(policy.engine.generate((5, 6, 7), each, name) for each, name in asked))

    WAITS.clear()
    asyncio.run(ask())
    assert sum(WAITS.values()) == waits, WAITS


# -- whole runs


@pytest.fixture
def rehearsed(tmp_path: Path) -> str:
    """A file of two conversations."""
    words = [("a door", "open it"), ("a key", "take the key")]
    path = tmp_path / "rehearsed.jsonl"
    write_demonstrations(
        [Demonstration((Message("user", a), Message("assistant", b)), frozenset({1})) for a, b in words], path
    )
    return str(path)


def config_on(device: str, start: Path, sections: Mapping[str, Any]) -> Config:
    own = {"train": {"iterations": 2}, "model": {}, "engine": {"burst": 8}, **sections}
    return tiny_config(start, **{**own, "model": {"path": str(start), "device": device, **own["model"]}})


RUNS: dict[str, dict[str, Any]] = {
    "empo2, held, rehearsed and credited": {
        "algorithm": {"anchor_tips": 1.0, "anchor_reading": 1.0, "author_credit": 0.5, "intrinsic": "counts"},
        "memory": {"write_temperature": 1.0},
        "learner": {"packed": "shared"},
        "train": {"iterations": 2, "eval_every": 1},
        "rehearsal": {"imitate": 0.1},
    },
    "adapters in bfloat16, with a reference": {
        "model": {"lora": {"enabled": True, "rank": 4}, "dtype": "bfloat16", "gradient_checkpointing": True},
        "loss": {"kl": 0.1},
        "learner": {"packed": "always"},
    },
    "a row a step, with random network distillation": {
        "algorithm": {"intrinsic": "rnd"},
        "optim": {"rows": "step"},
        "train": {"iterations": 1},
    },
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_the_same_as_on_the_cpu(name: str, start_model: Path, tmp_path: Path, rehearsed: str) -> None:
    sections = copy.deepcopy(RUNS[name])
    if "rehearsal" in sections:
        sections["rehearsal"]["path"] = rehearsed
    run = train_in_process(config_on(NAME, start_model, sections), tmp_path / NAME)
    assert {model.device for model in [run.policy.model, *run.learner.models]} == {DEVICE}
    train_in_process(config_on("cpu", start_model, sections), tmp_path / "cpu")
    assert differences(tmp_path / NAME, tmp_path / "cpu") == SAME
    assert not equal_weights(tmp_path / NAME, start_model)
    assert isinstance(run.policy.engine.decoder, SlotDecoder)


def test_a_warm_start_resumes_and_gives_the_same_model_as_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, collate, devices = training._iter_texts, training.collate, list[torch.device]()
    monkeypatch.setattr(training, "_iter_texts", lambda config: texts(config, 100))
    monkeypatch.setattr(training, "collate", lambda rows, device: devices.append(device) or collate(rows, device))
    settings = {"steps": 3, "num_layers": 2, "copying": True}
    config = small_config(model={"device": NAME}, warmstart=settings)
    with pytest.raises(Interrupted, match="stopped after step 1"):
        warmstart(config, tmp_path / NAME, progress=lambda _state: signal.raise_signal(signal.SIGINT))
    warmstart(config, tmp_path / NAME)
    assert devices == [DEVICE] * 3
    warmstart(small_config(model={"device": "cpu"}, warmstart=settings), tmp_path / "cpu")
    assert equal_weights(tmp_path / NAME, tmp_path / "cpu")
