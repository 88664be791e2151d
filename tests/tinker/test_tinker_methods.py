"""Every method that trains, trains at a server, and its checkpoint is a directory of peft."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from peft import PeftConfig
from safetensors.torch import load_file

import trailnotes
from tinker_servers import Server
from trailnotes.config.methods import list_methods

SETTINGS = (
    "--env.name test_docs:Verbosity --env.num_workers 0 --rollout.style terse --rollout.num_tasks 2 "
    "--rollout.group_size 4 --rollout.max_steps 3 --rollout.max_action_tokens 6 --rollout.max_context_tokens 512 "
    "--memory.max_write_tokens 6 --memory.max_tip_tokens 12 --memory.threshold -1"
    " --empo2.p_memory 0.5 --optim.grad_clip 0 --optim.lr 1e-3 --model.lora.rank 4 --learner.name tinker "
    "--train.iterations 1 --run.seed 1"
)
OF_METHODS = {
    "empo2": "--algorithm.anchor_tips 1 --algorithm.anchor_reading 1 --learner.anchor_by samples --loss.kl 0.05 "
    "--empo2.author_credit 1 --empo2.mode_unit trajectory",
    "lamer": "--loss.kl 0.05 --learner.anchor_by samples",
}


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("method", list_methods(trains=True))
def test_a_method_trains_and_exports(method: str, server: Server, tmp_path: Path) -> None:
    words = f"{SETTINGS} --learner.url {server.url} --model.path {server.model} {OF_METHODS.get(method, '')}"
    config = trailnotes.load_config(None, [*words.split(), "--algorithm.name", method])
    model = trailnotes.train(config, tmp_path / "run")
    (line,) = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert line["update/optimizer_steps"] > 0
    assert line["tinker/tokens_trained"] > 0 < line["tinker/tokens_sampled"]
    settings = PeftConfig.from_pretrained(str(model))
    assert (settings.r, settings.lora_alpha) == (4, 32)
    assert settings.base_model_name_or_path == str(server.model)
    assert any(
        tensor.any() for name, tensor in load_file(model / "adapter_model.safetensors").items() if "lora_B" in name
    )
