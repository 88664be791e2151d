"""The memory of the devices, told from shapes alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig

from small import small_config
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.policies.hf import policy
from trailnotes.runs.estimate import footprint
from trailnotes.runs.estimate.footprint import (
    GIB,
    PROCESS_BYTES,
    DeviceMemory,
    estimate_footprint,
    estimate_weight_copies,
    fit_microbatch,
    has_room_to_fold,
)
from trailnotes.runs.estimate.model_shape import ModelShape, infer_model_shape

pytestmark = pytest.mark.usefixtures("fast_bfloat16")
SHAPES = Path(__file__).parents[2] / "data"  # each with the config.json of a model alone
SEVEN, HALF = str(SHAPES / "qwen2.5-7b"), str(SHAPES / "qwen2.5-0.5b")
FULL = {"dtype": "bfloat16", "gradient_checkpointing": True}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def settings(path: str = SEVEN, **sections: dict[str, Any]) -> Config:
    model = {"path": path, "dtype": "bfloat16", "device": "auto"} | sections.pop("model", {})
    return Config(**{"model": model, **sections})


def alone(config: Config) -> DeviceMemory:
    """Return the estimate of the one device of a run."""
    (device,) = estimate_footprint(config).devices
    return device


def seven() -> ModelShape:
    return infer_model_shape(settings().model)


@pytest.mark.parametrize(("path", "billions"), [(HALF, 0.494), (SEVEN, 7.616)])
def test_parameter_counts_by_config(path: str, billions: float) -> None:
    assert alone(settings(path)).static["weights, bfloat16"] / 2e9 == pytest.approx(billions, abs=0.001)


def test_a_cpu_that_is_slow_in_bfloat16_holds_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "multiplies_bfloat16", lambda: False)
    on_cpu = alone(settings(HALF, model={"device": "cpu"})).static
    assert on_cpu["weights, float32"] == 2 * alone(settings(HALF)).static["weights, bfloat16"], "auto plans for a GPU"


def test_no_shape_is_guessed_from_a_name() -> None:
    assert estimate_footprint(settings("Qwen/Qwen2.5-7B-Instruct")) is None


def test_4_bit_base_quantizes_linear_layers_only() -> None:
    shape = seven()
    linear = 28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944)
    assert shape.linear == linear
    lora = {"load_in_4bit": True, "lora": {"enabled": True}}
    kept = alone(settings(model=lora)).static
    scales = linear / 64 + 4 * linear / (64 * 256)  # in 8 bits; and 32 bits for 256 of these
    assert kept["weights, 4 bits"] == pytest.approx(linear / 2 + scales + 2 * (shape.whole - linear))
    whole = alone(settings(model=lora | {"load_in_4bit": False})).static
    assert kept["weights, 4 bits"] < whole["weights, bfloat16"] / 2


def test_seven_billion_in_full_by_hand() -> None:
    """bfloat16 weights, 2 bytes; a float32 copy, its gradients and two moments, 16: 18 each, and 2 of gradients."""
    config = settings(loss={"kl": 0.01}, model=FULL)
    result = alone(config)
    count = result.static["weights, bfloat16"] / 2
    assert result.static["reference: the weights of the start"] == 2 * count
    assert sum(result.static.values()) == pytest.approx(20 * count)
    (gradients,) = result.phases["learning"].values()
    assert gradients == 2 * count + 4 * seven().head, "of a whole pass, and the largest as it is added to the others"
    assert not estimate_footprint(config).fits
    assert estimate_footprint(config).room == 80e9
    assert "it does not fit a GPU of 80 GB (74.5 GiB); none is here" in estimate_footprint(config).report()


@pytest.mark.parametrize(
    ("sections", "kept"),
    [
        ({"algorithm": {"author": "start"}}, False),  # the author alone does
        ({"rehearsal": {"split": "spare"}}, True),
        ({"rehearsal": {"split": "spare"}, "algorithm": {"name": "grpo"}}, False),
    ],
)
def test_reference_model_in_memory_where_needed(sections: dict[str, Any], kept: bool) -> None:
    assert ("reference: the weights of the start" in alone(settings(**sections)).static) == kept


def test_adapters_of_seven_billion_fit() -> None:
    config = settings(model={"lora": {"enabled": True}, "gradient_checkpointing": True}, env={"max_envs": 32})
    result = alone(config)
    # rank 16 on q, k, v, o (3584 to 3584, 512, 512, 3584) and gate, up, down (3584 to 18944) of 28 layers
    width = (3584 + 3584) + 2 * (3584 + 512) + (3584 + 3584) + 3 * (3584 + 18944)
    _, adapters, gradients, moments, start = result.static.values()
    assert adapters == gradients == start == moments / 2 == 28 * 16 * width * 4
    # keys and values of 4 heads of 128, 2 bytes each: 57,344 bytes a token
    cache, _ = result.phases["acting"].values()
    assert 57_344 * 32 * 4500 <= cache <= 57_344 * 32 * 8192 + 2**31
    assert "it fits a GPU of 80 GB (74.5 GiB)" in estimate_footprint(config).report()


def test_the_config_of_a_directory_is_counted(start_model: Path) -> None:
    config = small_config(model={"path": str(start_model)})
    result = estimate_footprint(config)
    real = AutoModelForCausalLM.from_pretrained(start_model)
    assert result.devices[0].static["weights, float32"] == 4 * sum(p.numel() for p in real.parameters())
    assert "this machine's memory" in result.device
    assert result.fits
    assert [*result.host] == ["Python and its libraries"], "the device is the host"


@pytest.mark.parametrize(("scale", "copies"), [(1.0, 0), (8.0, 4)])
def test_scaled_logits_are_computed_whole(scale: float, copies: int, tmp_path: Path) -> None:
    GraniteConfig(vocab_size=50_000, hidden_size=64, logits_scaling=scale).save_pretrained(tmp_path)
    result = alone(settings(str(tmp_path), model={"lora": {"enabled": True}}, optim={"microbatch_tokens": 8192}))
    learning, acting = result.phases["learning"], result.phases["acting"]
    assert learning.get("logits of 8,192 tokens", 0) == copies * 8192 * 50_000 * 2
    assert (acting["pass of 4,096 tokens"] > 2 * 4096 * 50_000 * 2) == bool(copies)


# -- several devices


def test_eight_ranks_split_the_weights() -> None:
    elsewhere = {"name": "vllm", "devices": ("8",)}
    config = settings(model=FULL, learner={"world_size": 8}, loss={"kl": 0.01}, engine=elsewhere)
    shape, (ranks, _) = seven(), estimate_footprint(config).devices
    assert (ranks.name, ranks.count) == ("ranks 0 to 7", 8)
    assert sum(ranks.static.values()) == pytest.approx((16 + 2) * shape.whole / 8), "with the reference, in bfloat16"
    learning = ranks.phases["learning"]
    assert learning["weights gathered for a pass"] == 2 * (shape.around + 3 * shape.block)
    assert learning["the reference's gathered"] == 2 * shape.around


def test_rank_0_holds_the_acting_model() -> None:
    first, others = estimate_footprint(settings(model=FULL, learner={"world_size": 2}, env={"max_envs": 8})).devices
    assert (first.name, others.name) == ("rank 0", "rank 1")
    assert dict(first.static) == {**others.static, "weights of the model that acts": 2 * seven().whole}
    assert [*others.phases] == ["learning"]
    assert [*first.phases] == ["acting", "learning"]


def test_engine_on_its_own_device() -> None:
    learner, engines = estimate_footprint(
        settings(engine={"name": "vllm", "replicas": 2, "devices": ["1", "2"]})
    ).devices
    assert not learner.phases.get("acting")
    assert (engines.name, engines.count) == ("engines 0 to 1", 2)
    assert engines.peak == pytest.approx(0.9 * 80e9)
    assert engines.static["engine: weights"] == 2 * seven().whole
    *_, spread = estimate_footprint(settings(engine={"name": "vllm", "devices": ["1,2"]})).devices
    assert spread.static["engine: weights"] == seven().whole
    (elsewhere,) = estimate_footprint(settings(engine={"name": "vllm", "urls": ["http://elsewhere:7465"]})).devices
    assert not elsewhere.phases.get("acting")


@pytest.mark.parametrize(
    ("sections", "copies"),
    [
        ({}, 0),
        ({"learner": {"world_size": 2}}, 2),
        ({"rollout": {"max_async_iterations": 1}}, 2),
        ({"rollout": {"max_async_iterations": 1}, "algorithm": {"author": "start"}}, 2),  # another model writes
        ({"rollout": {"max_async_iterations": 2}}, 3),
        ({"engine": {"name": "vllm"}}, 2),
        ({"engine": {"name": "vllm"}, "algorithm": {"author": "start"}}, 3),
        ({"engine": {"name": "vllm"}, "algorithm": {"name": "grpo", "author": "start"}}, 2),
    ],
)
def test_weight_copies_on_the_host(sections: dict[str, Any], copies: int) -> None:
    count = seven().whole
    parts = estimate_weight_copies(settings(model=FULL, **sections), seven())
    assert parts.get("weights handed to the policy", 0.0) == copies * 2 * count
    assert parts.get("the same in files", 0.0) == (4 * count if "engine" in sections else 0.0)
    on_cpu = estimate_footprint(settings(model=FULL | {"device": "cpu"}, **sections))
    assert parts.items() <= on_cpu.devices[0].static.items()


# -- the table of the page


@pytest.mark.long
def test_the_table_of_what_fits_is_current() -> None:
    root = Path(__file__).parents[3]
    spec = importlib.util.spec_from_file_location("memory_table", root / "docs" / "memory.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    *head, last = page.table(sizes=(0.5, 7)).splitlines()
    text = (root / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert all(line in text for line in [*head, last]), "print it anew: python docs/memory.py"


def test_cpu_memory_counts_process_and_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout, env = {"num_tasks": 4, "group_size": 8}, {"name": "waymarks", "max_envs": 20}
    config = settings(model=FULL | {"device": "cpu"}, rollout=rollout, env=env)
    assert "20 environments" not in estimate_footprint(config).host
    monkeypatch.setattr("trailnotes.envs.waymarks.env.WaymarksEnv.memory_bytes", 5e6, raising=False)
    result = estimate_footprint(config)
    assert result.host == {"Python and its libraries": PROCESS_BYTES, "20 environments": 20 * 5e6}
    assert result.peak == pytest.approx(result.devices[0].peak + PROCESS_BYTES + 1e8)


def test_warning_of_too_little_free_memory(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    config = settings(HALF)
    monkeypatch.setattr(footprint, "resolve_device", lambda _name: torch.device("cpu"))
    for free, warns in ((64 * GIB, False), (2 * GIB, True)):
        monkeypatch.setattr(footprint, "_read_free_memory", lambda free=free: float(free))
        footprint.warn_of_memory(config)
        assert ("2.0 GiB are free: the system may kill it" in caplog.text) == warns
    monkeypatch.setattr(footprint, "resolve_device", lambda _name: torch.device("cuda"))
    caplog.clear()
    footprint.warn_of_memory(config)
    assert not caplog.records


def test_a_shared_card_without_room_is_refused_by_what_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "resolve_device", lambda _name: torch.device("cuda"))
    monkeypatch.setattr(footprint, "_detect_device", lambda _config: ("a card", 80e9))
    fits, fails = (settings(p, model=FULL, engine={"name": "vllm", "shared_card": True}) for p in (HALF, SEVEN))
    footprint.warn_of_memory(fits)
    with pytest.raises(ConfigError, match=r"fit a card \(moments, float32 56\.7, .*lower .*engine\.device_memory"):
        footprint.warn_of_memory(fails)
    footprint.warn_of_memory(settings(model=FULL, engine={"name": "vllm"}))


@pytest.mark.parametrize(
    "sections",
    [
        {"engine": {"urls": ["http://elsewhere:1"]}}, {"engine": {"devices": ["1"]}}, {"learner": {"world_size": 2}},
        {"rollout": {"max_async_iterations": 1}}, {"cluster": {"address": "auto"}},
    ],
)  # fmt: skip
def test_a_shared_card_has_one_learner_that_waits(sections: dict[str, Any]) -> None:
    engine = {"name": "vllm", "shared_card": True} | sections.pop("engine", {})
    with pytest.raises(ValueError, match=r"engine\.shared_card is for engines that take turns"):
        settings(engine=engine, **sections)
    settings(engine=engine | {"name": "hf", "devices": [], "urls": []}, **sections)


# -- what the estimate decides

AUTO = {"microbatch_tokens": 0}


def test_microbatches_are_the_largest_that_fit_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = {"max_context_tokens": 1024}
    given = settings(model=FULL | {"lora": {"enabled": True}}, optim=AUTO, rollout=rollout)
    chosen = []
    for gigabytes in (40, 80, 140):
        monkeypatch.setattr(footprint, "_detect_device", lambda config, size=gigabytes: ("a GPU", 1e9 * size))
        fitted = fit_microbatch(given)
        chosen.append(fitted.optim.microbatch_tokens)
        optim = fitted.optim.model_copy(update={"microbatch_tokens": 2 * chosen[-1]})
        twice = fitted.model_copy(update={"optim": optim})
        assert estimate_footprint(fitted).peak <= 1e9 * gigabytes < estimate_footprint(twice).peak
        assert estimate_footprint(given).peak == estimate_footprint(fitted).peak, "--dry-run tells what is run"
    assert chosen == sorted(set(chosen))
    assert fit_microbatch(settings(optim={"microbatch_tokens": 512})).optim.microbatch_tokens == 512
    on_cpu = settings(model={"device": "cpu"}, optim=AUTO)
    assert fit_microbatch(on_cpu).optim.pass_tokens == 8192


def test_the_cache_of_static_steps_is_there_while_the_learner_updates() -> None:
    plain, graphs = alone(settings(model=FULL)), alone(settings(model=FULL, engine={"graphs": True}))
    (together,) = graphs.phases.values()
    assert sum(together.values()) == sum(sum(parts.values()) for parts in plain.phases.values())


def test_folded_adapters_take_the_linear_layers_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    lora = FULL | {"lora": {"enabled": True}}
    plain, folded = settings(model=lora), settings(model=lora, engine={"fold_adapters": True})
    room = estimate_footprint(plain).peak + 1e9
    more = sum(alone(folded).static.values()) - sum(alone(plain).static.values())
    assert more == pytest.approx(2 * seven().linear)
    monkeypatch.setattr(footprint, "_detect_device", lambda config: ("a GPU", room))
    assert has_room_to_fold(plain)
    assert not has_room_to_fold(folded)
