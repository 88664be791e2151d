"""What an engine's process is told, and the files of its weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError, PolicyError
from trailnotes.learner.samples import Ranks
from trailnotes.learner.states import gather_trained_weights
from trailnotes.policies.vllm import make_vllm_policy, server
from trailnotes.policies.vllm.policy import VLLMPolicy, write_weights
from trailnotes.policies.vllm.server import build_command, build_environment, compute_cache_bytes, is_sleeping

SHAPE = SimpleNamespace(num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, hidden_size=64)


def test_cache_holds_all_contexts_within_its_share() -> None:
    config = Config(engine={"max_concurrent": 5})
    token = 2 * 3 * 2 * 16 * 4  # a key and a value, layers, heads, channels, bytes
    assert compute_cache_bytes(SHAPE, config, 100) == 5 * 128 * token  # blocks of 32 tokens
    halved = Config(engine={"max_concurrent": 5}, model={"dtype": "bfloat16"})
    assert compute_cache_bytes(SHAPE, halved, 100) == 5 * 128 * token // 2
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    greedy = Config(engine={"max_concurrent": 10**9, "device_memory": 0.01, "replicas": 2})
    assert compute_cache_bytes(SHAPE, greedy, 100) == int(memory * 0.01 / 2)
    assert compute_cache_bytes(SHAPE, Config(engine={"max_concurrent": 1}), 33) == 2 * 64 * token


def option(command: list[str], name: str) -> str:
    return command[command.index(f"--{name}") + 1]


def test_room_is_reserved_for_adapters_of_a_rank_that_vllm_knows(config_of) -> None:
    command, _ = build_command(config_of(model={"lora": {"enabled": True, "rank": 5}}))
    assert option(command, "max-lora-rank") == "8"
    with pytest.raises(ConfigError, match="rank = 513"):
        build_command(config_of(model={"lora": {"enabled": True, "rank": 513}}))


@pytest.mark.parametrize(
    ("extra", "share", "sleeps"),
    [
        ({}, server.SHARED_GPU_FRACTION, True),
        ({"engine": {"replicas": 3}}, server.SHARED_GPU_FRACTION / 3, True),
        ({"engine": {"device_memory": 0.3}}, 0.3, True),
        ({"engine": {"device_memory": 0.3, "replicas": 2}}, 0.15, True),
        ({"rollout": {"max_async_iterations": 1}}, server.SHARED_GPU_FRACTION, False),
        ({"engine": {"devices": ["1"]}}, server.DEDICATED_GPU_FRACTION, False),
        ({"engine": {"urls": ["http://127.0.0.1:7465"]}}, server.DEDICATED_GPU_FRACTION, False),
        ({"cluster": {"address": "auto"}}, server.DEDICATED_GPU_FRACTION, False),
    ],
)
def test_engines_share_a_gpu_with_the_learner(
    config_of, monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], share: float, sleeps: bool
) -> None:
    monkeypatch.setattr(server, "resolve_device", lambda _: torch.device("cuda"))
    base = config_of().model_dump(include={"run", "model", "engine", "rollout", "cluster"})
    config = Config(**{name: section | extra.get(name, {}) for name, section in base.items()})
    command, _ = build_command(config)
    assert float(option(command, "gpu-memory-utilization")) == pytest.approx(share)
    assert is_sleeping(config) == ("--enable-sleep-mode" in command) == sleeps
    assert "--enable-sleep-mode" not in build_command(config, alone=True)[0]


def test_environment_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = "PYTHONPATH RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK ROLE_NAME MASTER_ADDR MASTER_PORT"
    for name in (*dropped.split(), "TORCHELASTIC_RUN_ID", "HTTPS_PROXY", "RANKING"):
        monkeypatch.setenv(name, "1")
    variables = build_environment(on_cpu=True, threads=2, offline=True, devices="2,3")
    assert not variables.keys() & {*dropped.split(), "TORCHELASTIC_RUN_ID"}
    assert variables.keys() >= {"HTTPS_PROXY", "RANKING"}
    assert (variables["OMP_NUM_THREADS"], variables["CUDA_VISIBLE_DEVICES"]) == ("2", "2,3")
    assert "VLLM_CPU_OMP_THREADS_BIND" not in build_environment(on_cpu=False, threads=0, offline=False)


def test_a_whole_model_is_written_as_the_library_reads_it(tmp_path: Path) -> None:
    embedding = torch.randn(5, 3)
    weights = {"embed": embedding, "norm": torch.randn(4).to(torch.bfloat16), "lm_head": embedding, "t": embedding.T}
    files = write_weights(weights, tmp_path / "w", 1, torch.float32, None)
    read = {name: tensor for path in files.folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    assert set(read) == {"embed", "norm", "t"}  # what is tied is written once; a transposed view is another tensor
    for name, tensor in read.items():
        torch.testing.assert_close(tensor, weights[name].float(), rtol=0, atol=0)
    (tmp_path / "file").touch()
    with pytest.raises(PolicyError, match=r"cannot be written: .*Not a directory"):
        write_weights({"w": torch.zeros(1)}, tmp_path / "file" / "w", 1, torch.float32, None)


def test_experts_are_written_by_the_names_of_the_files(config_of, model_of, tokenizer, tmp_path: Path) -> None:
    model = model_of("qwen3_moe", num_experts=3, moe_intermediate_size=16, num_experts_per_tok=2)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    config = config_of(model={"path": str(tmp_path / "model")}, shared_card=True)
    policy = VLLMPolicy(config, (), tmp_path / "engine", sleeps=True)
    assert not policy.reads_learner_memory
    policy.map_replicas = lambda _: [0.0]
    policy.load_blocking(gather_trained_weights(model, Ranks()), 1)
    saved = load_file(tmp_path / "model" / "model.safetensors")
    read = {name: each for path in policy._folder.rglob("*.safetensors") for name, each in load_file(path).items()}
    assert saved.keys() == read.keys() >= {"model.layers.0.mlp.experts.0.gate_proj.weight"}
    assert all(tensor.equal(read[name]) for name, tensor in saved.items())


def test_adapters_have_one_rank_and_one_alpha(config_of, tmp_path: Path) -> None:
    adapters = {"m.q.lora_A.weight": torch.zeros(2, 8), "m.q.lora_B.weight": torch.zeros(8, 2)}
    files = write_weights(adapters, tmp_path / "a", 1, torch.float32, {"lora_alpha": 4.0})
    config = json.loads((files.folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 4.0, ["q"])
    adapters["m.v.lora_A.weight"] = torch.zeros(4, 8)
    with pytest.raises(PolicyError, match=r"ranks \[2, 4\]"):
        write_weights(adapters, tmp_path / "b", 1, torch.float32, {})
    config |= {"alpha_pattern": {"q": 8}, "base_model_name_or_path": config_of().model.path}
    (files.folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="vLLM cannot run: merge them"):
        make_vllm_policy(config_of(model={"path": str(files.folder)}))
