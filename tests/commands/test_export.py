"""A model taken out of its run: as it is, or merged on request."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tinyrun import tiny_config, train_in_process
from trailnotes.commands import main
from trailnotes.commands.export import export
from trailnotes.errors import ConfigError

IDS = torch.tensor([[5, 6, 7, 8]])


@pytest.fixture(scope="module")
def run(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "lora"
    model = {"lora": {"enabled": True, "rank": 2}}
    config = tiny_config(start_model, model=model, optim={"lr": 1e-5}, train={"iterations": 1}, loss={"kl": 0.0})
    trained = train_in_process(config, path).policy.model.eval()
    with torch.no_grad():
        torch.save(trained(IDS).logits, path / "logits.pt")
    return path


def test_as_it_is_the_adapters_stay_adapters(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / "model")]) == 0
    places = tmp_path / "model", run / "checkpoints" / "step-000001" / "model"
    copied, saved = ({file.name: file.read_bytes() for file in place.iterdir()} for place in places)
    assert copied == saved
    assert (tmp_path / "model" / "adapter_model.safetensors").is_file()
    with pytest.raises(ConfigError, match="dtype = bfloat16 rounds merged weights"):
        export(run, tmp_path / "rounded", dtype="bfloat16")


def test_merged_it_is_one_model_in_float32(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--merge", "--out", str(tmp_path / "model")]) == 0
    assert capsys.readouterr().out == f"model: {tmp_path / 'model'}\n"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.dtype == torch.float32
    assert not list((tmp_path / "model").glob("adapter*"))
    torch.testing.assert_close(model(IDS).logits, torch.load(run / "logits.pt"), rtol=1e-4, atol=1e-6)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template


def test_a_base_is_merged_as_it_acted(start_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Adapters that were trained on weights rounded to bfloat16 are added to those, in float32."""
    model = {"dtype": "bfloat16", "lora": {"enabled": True, "rank": 2}}
    config = tiny_config(start_model, model=model, optim={"lr": 1e-6}, train={"iterations": 1}, loss={"kl": 0.0})
    adapted = train_in_process(config, tmp_path / "run").policy.model.eval()
    assert export(tmp_path / "run", tmp_path / "whole", merge=True) == pytest.approx(0, abs=0.01)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    adapted.float().merge_and_unload()
    torch.testing.assert_close(whole(IDS).logits, adapted.get_base_model()(IDS).logits, rtol=0, atol=1e-6)
    words = ["export", str(tmp_path / "run"), "--merge", "--dtype", "bfloat16", "--out", str(tmp_path / "rounded")]
    assert main(words) == 0
    line = capsys.readouterr().out.splitlines()[0]
    lost = re.fullmatch(r"rounding to bfloat16 has lost (\d+)% of the adapters' change", line)
    assert 50 < int(lost[1]) < 120
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "rounded").dtype == torch.bfloat16
