"""What is advised to a run that does not fit is true: the estimate is smaller with it, and in the end it fits."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch

from trailnotes.config.model_schema import LoraConfig, ModelConfig
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.estimate import suggestions as remedies
from trailnotes.estimate.footprint import estimate_footprint, estimate_for_shape
from trailnotes.estimate.model_shape import ModelShape, infer_model_shape
from trailnotes.estimate.suggestions import FALLBACK_ADVICE, combine_changes, suggest_changes, validate_footprint

LORA = {"lora": {"enabled": True}}


def settings(billions: float = 7, preset: str = "", **sections: dict[str, Any]) -> Config:
    model = {"path": f"Qwen/Qwen2.5-{billions:g}B", "dtype": "bfloat16", "device": "auto"} | sections.pop("model", {})
    return Config(preset=preset, model=model, **sections)  # type: ignore[arg-type]


def refused(config: Config) -> str:
    found = estimate_footprint(config)
    assert found is not None
    with pytest.raises(ConfigError) as error:
        validate_footprint(config, found)
    return str(error.value)


def test_what_mends_it_alone_is_named_from_what_changes_least() -> None:
    assert not torch.cuda.is_available()
    said = refused(settings(model={"gradient_checkpointing": True}, env={"max_envs": 32}))
    assert "do not fit a GPU of 80 GB (74.5 GiB); none is here: " in said
    assert said.endswith(": set learner.world_size = 4, or train adapters by model.lora.enabled = true")


def test_a_preset_has_its_variants() -> None:
    said = refused(settings(model={"gradient_checkpointing": True}, env={"max_envs": 32}, preset="paper-webshop"))
    assert "share the update out by --preset paper-webshop-8gpu" in said
    assert "train adapters by --preset paper-webshop-lora" in said


def test_a_crowd_of_conversations_is_to_be_smaller() -> None:
    crowd = settings(model=LORA | {"gradient_checkpointing": True}, rollout={"num_tasks": 64})
    said = refused(crowd)
    assert ": set env.max_envs = 128, or " in said
    assert 'set engine.name = "vllm" and engine.devices = ["1"]' in said


def test_many_activations_are_to_be_computed_again() -> None:
    long = settings(model=LORA, env={"max_envs": 4}, optim={"microbatch_tokens": 16384})
    assert ": set model.gradient_checkpointing = true" in refused(long)


def test_a_host_is_not_told_to_use_more_devices() -> None:
    said = suggest_changes(settings(72, model={"device": "cpu", "dtype": "float32"}))
    assert said == FALLBACK_ADVICE


@pytest.mark.usefixtures("one_look")
def test_where_no_change_does_it_alone_the_fewest_are_named() -> None:
    config = settings(32, model={"dtype": "float32"})
    words = suggest_changes(config).split("; or else ")[0].split(", and ")
    assert words[0] == "set model.gradient_checkpointing = true"
    assert len(words) > 1
    assert "model.lora" not in str(words), "what changes the training comes last"


@pytest.mark.usefixtures("one_look")
def test_who_has_one_device_is_told_what_does_it_there() -> None:
    many, one = suggest_changes(settings(14)).split("; or else ")
    assert "learner.world_size" in many
    assert one.endswith("train adapters by model.lora.enabled = true")
    assert "world_size" not in one


@pytest.mark.usefixtures("one_look")
def test_the_advice_is_true_and_as_little_as_does_it() -> None:
    rng = random.Random(0)
    ends = []
    for _ in range(30):
        config = drawn(rng)
        if fits(config):
            continue
        changes = combine_changes(config)
        ends.append(bool(changes))
        if not changes:
            assert suggest_changes(config) == FALLBACK_ADVICE
            continue
        assert fits(changes[-1].config)
        assert all(not fits(change.config) for change in changes[:-1]), "no part of it does"
    assert {*ends} == {True, False}
    assert len(ends) > 15


def drawn(rng: random.Random) -> Config:
    return settings(
        rng.choice([0.5, 7, 32, 72]),
        model={
            "dtype": rng.choice(["float32", "bfloat16"]), "gradient_checkpointing": rng.random() < 0.5,
            "lora": {"enabled": rng.random() < 0.3}, "device": rng.choice(["auto", "auto", "cpu"]),
        },
        learner={"world_size": rng.choice([1, 1, 2, 8]), "packed": rng.choice(["auto", "always"])},
        rollout={"num_tasks": rng.choice([2, 64]), "max_async_iterations": rng.choice([0, 1])},
        optim={"microbatch_tokens": rng.choice([4096, 65536]), "logprob_chunk": rng.choice([512, 8192])},
        loss={"kl": rng.choice([0.0, 0.1])},
        engine={"name": rng.choice(["hf", "vllm"])},
    )  # fmt: skip


def fits(config: Config) -> bool:
    shape = remedies.infer_model_shape(config.model)
    assert shape is not None
    return estimate_for_shape(config, shape).fits


@pytest.fixture
def one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model's parameters are counted once."""

    @cache
    def found(path: str, lora: bool) -> ModelShape | None:
        return infer_model_shape(ModelConfig(path=path, lora=LoraConfig(enabled=lora)))

    monkeypatch.setattr(remedies, "infer_model_shape", lambda model: found(model.path, model.lora.enabled))
