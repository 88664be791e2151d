"""Adapters apart from their base: saved, found again, merged on request."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from puppet import ask
from tiny import draw_adapters, tiny_model
from trailnotes.config.model_schema import EngineConfig, LoraConfig, ModelConfig
from trailnotes.errors import ConfigError, PolicyError
from trailnotes.learner.states import export_model
from trailnotes.policies.hf.adapters import FoldedModel, _round_spread, add_adapters, merge_adapters
from trailnotes.policies.hf.policy import HFPolicy, get_context_length, load_model, require_trainable
from trailnotes.types import Sampling

IDS = torch.tensor([[5, 6, 7, 8]])


def settings(path: Path, **values: Any) -> ModelConfig:
    return ModelConfig(**{"path": str(path), "device": "cpu"} | values)


def with_adapters(start: Path, dtype: str = "float32", size: float = 0.01) -> tuple[Any, Any]:
    """A peft model whose B matrices are drawn, and its tokenizer."""
    model, tokenizer = load_model(settings(start, dtype=dtype, lora=LoraConfig(enabled=True, rank=4)))
    draw_adapters(model, 1, size, "lora_B")
    return model, tokenizer


@pytest.fixture
def saved(start_model: Path, tmp_path: Path) -> Path:
    model, tokenizer = with_adapters(start_model)
    export_model(model, tmp_path / "adapters", tokenizer)
    return tmp_path / "adapters"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_was_saved_is_what_acts(dtype: str, start_model: Path, tmp_path: Path) -> None:
    model, tokenizer = with_adapters(start_model, dtype, size=1e-4)
    export_model(model, tmp_path / "adapters", tokenizer)
    again, own = load_model(settings(tmp_path / "adapters", dtype=dtype))
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    assert own.get_vocab() == tokenizer.get_vocab()
    about = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == str(start_model.resolve())


def test_a_base_that_has_moved_is_asked_for_and_found(saved: Path, start_model: Path, tmp_path: Path) -> None:
    shutil.copytree(start_model, tmp_path / "moved")
    about = json.loads((saved / "adapter_config.json").read_text())
    (saved / "adapter_config.json").write_text(json.dumps(about | {"base_model_name_or_path": str(tmp_path / "gone")}))
    with pytest.raises(ConfigError, match=r"belong to the model '.*gone', which is not there: set model\.base"):
        load_model(settings(saved))
    with pytest.raises(ConfigError, match=r"set model\.base"):
        get_context_length(settings(saved))
    model, _ = load_model(settings(saved, base=str(tmp_path / "moved")))
    assert torch.equal(model(IDS).logits, with_adapters(start_model)[0](IDS).logits)


def test_they_are_trained_further_only_as_they_are(saved: Path) -> None:
    again, _ = load_model(settings(saved, lora=LoraConfig(enabled=True, rank=4)))
    trained = {name for name, parameter in again.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in again.named_parameters() if "lora_" in name}
    for lora, word in [({"rank": 8}, "rank"), ({"rank": 4, "alpha": 1.0}, "alpha")]:
        with pytest.raises(ConfigError, match=rf"set model\.lora\.{word} to that, or merge them first"):
            load_model(settings(saved, lora=LoraConfig(enabled=True, **lora)))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"model\.lora\.target_modules = \['q_proj'\]"):
        load_model(settings(saved, lora=LoraConfig(enabled=True, rank=4, target_modules=("q_proj",))))
    with pytest.raises(ConfigError, match=r"model\.lora\.enabled = true"):
        require_trainable(settings(saved))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "targets", [None, ("q_proj",), ("lm_head",), ("embed_tokens",), ("embed_tokens", "lm_head", "v_proj")]
)
def test_a_merged_model_gives_the_logits_of_the_adapted_one(
    tied: bool, targets: tuple[str, ...] | None, start_model: Path, tmp_path: Path
) -> None:
    model = tiny_model(tied=tied)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # peft warns of tied layers
        adapted = add_adapters(model, LoraConfig(rank=2, target_modules=targets), base="")
    draw_adapters(adapted, 0, 0.3)
    expected = adapted(IDS).logits.detach()
    assert (expected - tiny_model(tied=tied)(IDS).logits).abs().max() > 0.01
    merged, lost = merge_adapters(adapted)
    assert lost < 1e-3
    export_model(merged, tmp_path, load_model(settings(start_model))[1])
    torch.testing.assert_close(load_model(settings(tmp_path))[0](IDS).logits, expected, rtol=1e-4, atol=1e-4)


def test_the_share_that_is_lost_by_hand() -> None:
    """One weight of 1 and a change of 2^-9: bfloat16 has no number between 1 and 1 + 2^-7, so all of it is lost."""
    model = tiny_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    adapted = add_adapters(model, LoraConfig(rank=1, alpha=1.0, target_modules=("q_proj",)), base="")
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.fill_(2**-4 if "lora_A" in name else 2**-5)
    assert merge_adapters(adapted, torch.bfloat16)[1] == 1.0


def test_damaged_and_foreign_adapters_are_refused(saved: Path) -> None:
    tensors = load_file(saved / "adapter_model.safetensors")
    tensors.pop(min(tensors))
    save_file(tensors, saved / "adapter_model.safetensors")
    with pytest.raises(PolicyError, match=r"model\.path"):
        load_model(settings(saved))
    own = json.loads((saved / "adapter_config.json").read_text())
    about = {"peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 2}
    about["base_model_name_or_path"] = own["base_model_name_or_path"]
    (saved / "adapter_config.json").write_text(json.dumps(about))
    with pytest.raises(ConfigError, match="PROMPT_TUNING"):
        load_model(settings(saved))


# --- folded into a copy of the weights


def test_a_folded_model_acts_as_the_adapted_one(start_model: Path) -> None:
    """After each change of the weights too, which may go on behind `reset_cache` until the next completion."""
    model, tokenizer = with_adapters(start_model, size=0.1)
    policies = [HFPolicy(model, tokenizer, engine=EngineConfig(fold_adapters=folded)) for folded in (True, False)]
    assert not any("lora" in name for name, _ in policies[0].engine.decoder.network.model.named_parameters())
    seen = []
    for _ in range(2):
        ((mine,), (theirs,)) = (ask(policy, Sampling(max_tokens=9, seed=3)) for policy in policies)
        assert mine.token_ids == theirs.token_ids
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
        seen.append(mine.logprobs)
        for policy in policies:
            policy.bump_version()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.neg_()
    assert seen[0] != seen[1]


def test_a_folded_model_shares_what_adapters_leave_alone(start_model: Path) -> None:
    model, _ = with_adapters(start_model)
    folded = FoldedModel(model).model
    base, own = dict(model.get_base_model().named_parameters()), dict(folded.named_parameters())
    assert own["model.embed_tokens.weight"] is base["model.embed_tokens.weight"]
    assert own["model.layers.0.mlp.up_proj.weight"] is not base["model.layers.0.mlp.up_proj.base_layer.weight"]
    assert all(not parameter.requires_grad for parameter in own.values())


def test_folding_in_bfloat16_keeps_changes_below_the_last_bit() -> None:
    """To the nearest number most of them would be lost; along what the adapters read, most of them are kept."""
    generator = torch.Generator().manual_seed(0)
    base, read, write = (torch.randn(*shape, generator=generator) for shape in ((256, 1024), (8, 1024), (256, 8)))
    base, change = (0.02 * base).bfloat16().float(), 4e-6 * write @ read
    nearest, folded = (
        (each - base - change) @ read.T for each in ((base + change).bfloat16(), _round_spread(base + change))
    )
    size = (change @ read.T).norm()
    assert nearest.norm() > 0.6 * size
    assert folded.norm() < 0.25 * size
    assert torch.equal(_round_spread(base), base), "what needs no rounding stays"


def test_adapters_that_cannot_be_added_are_refused(start_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    HFPolicy(*load_model(settings(start_model)), engine=EngineConfig(fold_adapters=True))
    assert "engine.fold_adapters (needs a model with adapters)" in caplog.text
    model, tokenizer = with_adapters(start_model)
    layer = model.get_base_model().model.layers[0].mlp.up_proj
    layer.base_layer.weight = torch.nn.Parameter(layer.base_layer.weight.to(torch.uint8), requires_grad=False)
    with pytest.raises(ConfigError, match=r"engine\.fold_adapters"):
        HFPolicy(model, tokenizer, engine=EngineConfig(fold_adapters=True))
