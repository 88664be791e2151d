"""The memory of the device, told from shapes alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from small import small_config
from trailnotes.config.model_schema import LoraConfig
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.policies.hf.adapters import new_adapters
from trailnotes.runs import footprint as module
from trailnotes.runs.footprint import GIB, Footprint, footprint, refuse_too_large

SEVEN = "Qwen/Qwen2.5-7B-Instruct"


def settings(path: str = SEVEN, **sections: dict[str, Any]) -> Config:
    model = {"path": path, "dtype": "bfloat16", "device": "auto"} | sections.pop("model", {})
    return Config(**{"model": model, **sections})  # type: ignore[arg-type]


def estimated(config: Config) -> Footprint:
    found = footprint(config)
    assert found is not None
    return found


@pytest.mark.parametrize(("size", "billions"), [("0.5", 0.494), ("1.5", 1.544), ("3", 3.086), ("7", 7.616)])
def test_known_names_have_the_published_number_of_parameters(size: str, billions: float) -> None:
    found = estimated(settings(f"Qwen/Qwen2.5-{size}B-Instruct"))
    assert found.held["weights, bfloat16"] / 2e9 == pytest.approx(billions, abs=0.001)


def test_seven_billion_in_full_by_hand() -> None:
    """bfloat16 weights and gradients, 2 + 2 bytes; a float32 copy, its gradients and two moments, 16: 20 each."""
    found = estimated(settings(loss={"kl": 0.01}))
    count = found.held["weights, bfloat16"] / 2
    reference = found.held["reference: the weights of the start"]
    before_activations = sum(found.held.values()) + found.learning["bfloat16 gradients"] - reference
    assert before_activations == pytest.approx(20 * count)
    assert before_activations / GIB == pytest.approx(142, abs=0.5)
    assert reference == 2 * count
    assert not found.fits
    assert not torch.cuda.is_available()
    assert found.room == 80e9
    with pytest.raises(ConfigError, match=r"do not fit a GPU of 80 GB .*train adapters by model\.lora\.enabled = true"):
        refuse_too_large(settings(), found)


@pytest.mark.parametrize(
    ("sections", "held"),
    [
        ({}, False),
        ({"algorithm": {"anchor_tips": 0.25}}, True),
        ({"algorithm": {"anchor_tips": 0.25, "anchor_weight": 0.0}}, False),
        ({"algorithm": {"author": "start"}}, True),
        ({"rehearsal": {"split": "spare"}}, True),
        ({"rehearsal": {"split": "spare", "hold": 0.0, "imitate": 0.1}}, False),
        ({"rehearsal": {"split": "spare"}, "algorithm": {"name": "grpo"}}, False),
    ],
)
def test_whatever_holds_to_the_start_model_needs_it_in_memory(sections: dict[str, Any], held: bool) -> None:
    assert ("reference: the weights of the start" in estimated(settings(**sections)).held) == held


def test_lamer_holds_its_tips_by_whole_distributions_where_there_is_any_kl() -> None:
    held, free = (settings(algorithm={"name": "lamer"}, loss={"kl": kl}).holds_rows for kl in (0.01, 0.0))
    assert (held, free) == (True, False)


def test_an_author_of_its_own_has_a_cache_of_its_own() -> None:
    one, two = (estimated(settings(algorithm={"author": author})).acting for author in ("policy", "start"))
    assert [*two.values()] == 2 * [*one.values()]
    adapters = settings(model={"lora": {"enabled": True}}, algorithm={"author": "start"})
    assert [*estimated(adapters).acting.values()] == [*one.values()], "the same engine, its adapters set back"


def test_what_is_held_by_whole_distributions_takes_more_of_each_logit() -> None:
    plain = estimated(settings(loss={"kl": 0.01})).learning["logits of 1,024 tokens"]
    assert plain == 1024 * 152064 * 16
    for sections in ({"algorithm": {"anchor_tips": 0.25}}, {"rehearsal": {"split": "spare"}}):
        assert estimated(settings(**sections)).learning["logits of 1,024 tokens"] == 1024 * 152064 * 29


def test_float32_takes_weights_gradients_and_two_moments(start_model: Path) -> None:
    found = estimated(small_config(model={"path": str(start_model)}, loss={"kl": 0.0}))
    weights, optimiser = found.held.values()
    assert optimiser == 3 * weights
    assert not any("gradients" in name for name in found.learning)


def test_adapters_of_seven_billion_fit() -> None:
    config = settings(model={"lora": {"enabled": True}, "gradient_checkpointing": True}, env={"max_envs": 32})
    found = estimated(config)
    # rank 16 on q, k, v, o (3584 to 3584, 512, 512, 3584) and gate, up, down (3584 to 18944) of 28 layers
    width = (3584 + 3584) + 2 * (3584 + 512) + (3584 + 3584) + 3 * (3584 + 18944)
    assert found.held["adapters, their gradients and two moments, float32"] == 28 * 16 * width * 16
    # keys and values of 4 heads of 128, 2 bytes each: 57,344 bytes a token
    (cache,) = found.acting.values()
    assert 57_344 * 32 * 4500 <= cache <= 57_344 * 32 * 8192 + 2**31
    assert found.fits
    assert "it fits a GPU of 80 GB (74.5 GiB)" in found.report()


def test_the_config_of_a_directory_is_counted(start_model: Path) -> None:
    config = small_config(model={"path": str(start_model)})
    found = estimated(config)
    real = AutoModelForCausalLM.from_pretrained(start_model)
    assert found.held["weights, float32"] == 4 * sum(p.numel() for p in real.parameters())
    assert "by its config.json" in found.report()
    assert "this machine's memory" in found.device
    assert found.fits


def test_a_name_without_a_size_says_nothing_and_another_is_a_guess() -> None:
    assert footprint(settings("somebody/model")) is None
    found = estimated(settings("somebody/thing-8B-it"))
    assert "8.00 billion parameters; guessed from its name" in found.model
    assert "0.13 billion" in estimated(settings("somebody/thing-135M")).model.replace("135.0 million", "0.13 billion")


def test_what_is_advised_helps() -> None:
    lora = {"lora": {"enabled": True}}
    crowd = settings(model=lora | {"gradient_checkpointing": True}, rollout={"num_tasks": 64})
    with pytest.raises(ConfigError, match=r"lower env\.max_envs, now as many as there are episodes"):
        refuse_too_large(crowd, estimated(crowd))
    long = settings(model=lora, env={"max_envs": 4}, optim={"microbatch_tokens": 16384})
    with pytest.raises(ConfigError, match=r"set model\.gradient_checkpointing = true"):
        refuse_too_large(long, estimated(long))
    large = settings("Qwen/Qwen2.5-72B", model=lora)
    with pytest.raises(ConfigError, match=r"set model\.path to a smaller model"):
        refuse_too_large(large, estimated(large))


def shape_of(layers: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=64, hidden_size=64, intermediate_size=256, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=512,
    )  # fmt: skip


def saved_by(model: Any) -> int:
    """Bytes that autograd keeps of a forward pass over 256 tokens, weights left out."""
    owned = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=torch.randint(0, 64, (1, 256)), use_cache=False)
    return sum(saved.values())


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_further_layer_takes_what_a_forward_pass_saves(dtype: str, lora: bool, again: bool) -> None:
    counted, told = [], []
    config = settings(
        model={"dtype": dtype, "lora": {"enabled": lora}, "gradient_checkpointing": again},
        optim={"microbatch_tokens": 256}, rollout={"max_context_tokens": 256},
    )  # fmt: skip
    for layers in (2, 4):
        model: Any = Qwen2ForCausalLM(shape_of(layers)).to(getattr(torch, dtype))
        if lora:
            model = new_adapters(model, LoraConfig(rank=2), "")
        if again:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        counted.append(saved_by(model.train()))
        parts = module._learning(shape_of(layers), config, 4 if dtype == "float32" else 2)
        told.append(parts["activations of 256 tokens"])
    assert told[1] - told[0] == pytest.approx(counted[1] - counted[0], rel=0.1)
