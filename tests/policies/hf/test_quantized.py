"""Adapters on a base in 4 bits, by bitsandbytes on the CPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tinyrun import equal_weights, tiny_config, train_in_process
from trailnotes.commands.export import export
from trailnotes.config.model_schema import ModelConfig
from trailnotes.policies.hf.policy import load_model

pytest.importorskip("bitsandbytes", reason="the extra quantize is not installed")
IDS = torch.tensor([[5, 6, 7, 8]])
LORA = {"enabled": True, "rank": 4}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_base_in_4_bits_trains_resumes_and_gives_its_adapters_away(
    dtype: str, start_model: Path, tmp_path: Path
) -> None:
    model = {"path": str(start_model), "load_in_4bit": True, "dtype": dtype, "lora": LORA}
    once = train_in_process(tiny_config(start_model, model=model), tmp_path / "once")
    shutil.copytree(tmp_path / "once", tmp_path / "twice")
    shutil.rmtree(max((tmp_path / "twice" / "checkpoints").glob("step-*")))
    train_in_process(tiny_config(start_model, model=model), tmp_path / "twice")
    assert equal_weights(tmp_path / "once", tmp_path / "twice")
    layer = once.policy.model.base_model.model.model.layers[0].self_attn.q_proj
    assert layer.get_base_layer().weight.dtype == torch.uint8

    export(tmp_path / "once", tmp_path / "adapters")
    config = ModelConfig(path=str(tmp_path / "adapters"), device="cpu", dtype=dtype)
    quantized, whole = (load_model(config.model_copy(update={"load_in_4bit": bits}))[0] for bits in (True, False))
    with torch.inference_mode():
        acted, again, unrounded = (each.eval()(IDS).logits for each in (once.policy.model, quantized, whole))
    assert torch.equal(again, acted)
    assert 0 < (unrounded - acted).abs().max() < acted.abs().max() / 4, "4 bits round the base, and nothing else"
