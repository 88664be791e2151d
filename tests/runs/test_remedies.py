"""What is advised to a run that does not fit is true: the estimate is smaller with it, and in the end it fits."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.runs.footprint import estimate, footprint
from trailnotes.runs.remedies import SMALLER, advice, refuse_too_large, remedies, together
from trailnotes.runs.shapes import SHAPES, Shape, shape_of

LORA = {"lora": {"enabled": True}}


def settings(billions: float = 7, **sections: dict[str, Any]) -> Config:
    model = {"path": f"Qwen/Qwen2.5-{billions:g}B", "dtype": "bfloat16", "device": "auto"} | sections.pop("model", {})
    return Config(**{"model": model, **sections})  # type: ignore[arg-type]


def shape_for(config: Config) -> Shape:
    found = shape_of(config.model)
    assert found is not None
    return found


def refused(config: Config) -> str:
    found = footprint(config)
    assert found is not None
    with pytest.raises(ConfigError) as error:
        refuse_too_large(config, found)
    return str(error.value)


def test_what_mends_it_alone_is_named_from_what_changes_least() -> None:
    assert not torch.cuda.is_available()
    said = refused(settings(model={"gradient_checkpointing": True}, env={"max_envs": 32}))
    assert "do not fit a GPU of 80 GB (74.5 GiB); none is here: " in said
    assert said.endswith(": set learner.world_size = 4, or train adapters by model.lora.enabled = true")


def test_a_preset_has_its_variants() -> None:
    config = Config(**{
        "preset": "paper-webshop", "model": {"path": "Qwen/Qwen2.5-7B", "dtype": "bfloat16", "gradient_checkpointing": True},
        "env": {"max_envs": 32},
    })  # fmt: skip
    said = refused(config)
    assert "share the update out by --preset paper-webshop-8gpu" in said
    assert "train adapters by --preset paper-webshop-lora" in said


def test_a_crowd_of_conversations_is_to_be_smaller() -> None:
    crowd = settings(model=LORA | {"gradient_checkpointing": True}, rollout={"num_tasks": 64})
    assert refused(crowd).endswith(": set env.max_envs = 128")
    assert estimate(
        crowd.model_copy(update={"env": crowd.env.model_copy(update={"max_envs": 128})}), shape_for(crowd)
    ).fits


def test_many_activations_are_to_be_computed_again() -> None:
    long = settings(model=LORA, env={"max_envs": 4}, optim={"microbatch_tokens": 16384})
    assert ": set model.gradient_checkpointing = true" in refused(long)


def test_one_device_is_not_told_to_use_several() -> None:
    one = settings(model={"device": "cpu"})
    assert not any(remedy.kind == "learner.world_size" for remedy in remedies(one))


def test_where_no_change_does_it_alone_several_are_named() -> None:
    config = settings(32, model={"dtype": "float32"})
    said = advice(config)
    assert ", and " in said
    last = together(config, shape_for(config))[-1].config
    assert estimate(last, shape_for(last)).fits


def test_what_nothing_mends_is_too_large() -> None:
    giant = settings(72, model={"device": "auto", "dtype": "float32"}, env={"max_envs": 1})
    cpu = giant.model_copy(update={"model": giant.model.model_copy(update={"device": "cpu"})})
    assert advice(cpu) == SMALLER


def test_following_the_advice_ends_in_what_fits_or_in_a_smaller_model() -> None:
    rng = random.Random(0)
    ends = []
    for _ in range(24):
        config = settings(
            rng.choice(list(SHAPES)),
            model={
                "dtype": rng.choice(["float32", "bfloat16"]), "gradient_checkpointing": rng.random() < 0.5,
                "lora": {"enabled": rng.random() < 0.3},
            },
            learner={"world_size": rng.choice([1, 1, 2, 8]), "packed": rng.choice(["auto", "always"])},
            rollout={"num_tasks": rng.choice([2, 64]), "ahead": rng.choice([0, 1])},
            optim={"microbatch_tokens": rng.choice([4096, 65536]), "logprob_chunk": rng.choice([512, 8192])},
            loss={"kl": rng.choice([0.0, 0.1])},
            engine={"name": rng.choice(["hf", "vllm"])},
        )  # fmt: skip
        shape = shape_for(config)
        before = estimate(config, shape).peak
        taken = together(config, shape)
        for remedy in taken:
            now = estimate(remedy.config, shape_for(remedy.config)).peak
            assert now < before, remedy.words
            before = now
        fits = before <= 80e9
        assert fits or advice(config) == SMALLER
        ends.append(fits)
    assert {*ends} == {True, False}
