"""Weights as files: what the library reads in them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trailnotes.errors import PolicyError
from trailnotes.policies.vllm.weights import write_weights


def test_a_whole_model_is_written_as_the_library_reads_it(tmp_path: Path) -> None:
    embedding = torch.randn(5, 3)
    weights = {"embed": embedding, "norm": torch.randn(4).to(torch.bfloat16), "lm_head": embedding, "t": embedding.T}
    files = write_weights(weights, tmp_path / "w", 1, torch.float32, None)
    read = load_file(files.folder / "model.safetensors")
    assert set(read) == {"embed", "norm", "t"}  # what is tied is written once; a transposed view is another tensor
    for name, tensor in read.items():
        torch.testing.assert_close(tensor, weights[name].float(), rtol=0, atol=0)
    files = write_weights({"w": embedding}, tmp_path / "b", 1, torch.bfloat16, None)
    assert load_file(files.folder / "model.safetensors")["w"].equal(embedding.to(torch.bfloat16))


def test_adapters_have_one_rank(tmp_path: Path) -> None:
    adapters = {"m.q.lora_A.weight": torch.zeros(2, 8), "m.q.lora_B.weight": torch.zeros(8, 2)}
    files = write_weights(adapters, tmp_path / "a", 1, torch.float32, {"lora_alpha": 4.0})
    config = json.loads((files.folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 4.0, ["q"])
    adapters["m.v.lora_A.weight"] = torch.zeros(4, 8)
    with pytest.raises(PolicyError, match=r"ranks \[2, 4\]"):
        write_weights(adapters, tmp_path / "b", 1, torch.float32, {})


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PolicyError, match=r"cannot be written to .*: Not a directory"):
        write_weights({"w": torch.zeros(1)}, tmp_path / "file" / "w", 1, torch.float32, None)
