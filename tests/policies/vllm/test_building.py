"""What an engine's process is told: sizes one can count, and an environment that does not lead into ours."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.policies.vllm import building, server
from trailnotes.policies.vllm.building import build_command, compute_cache_bytes, is_sleeping
from trailnotes.policies.vllm.replica import ProbeRecord
from trailnotes.policies.vllm.server import build_environment

SHAPE = SimpleNamespace(num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, hidden_size=64)


def test_the_cache_has_room_for_all_contexts_and_no_more_than_its_share() -> None:
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


def test_the_command_has_the_settings_of_the_base_and_of_the_rollout(config_of, model_path: Path) -> None:
    command, variables = build_command(config_of(model={"lora": {"enabled": True, "rank": 5}}))
    assert command[1:4] == [str(server.PROGRAM), "serve", str(model_path)]
    assert (option(command, "max-model-len"), option(command, "max-lora-rank")) == ("200", "8")
    assert {"--enable-lora", "--enable-prefix-caching", "--enforce-eager"} <= {*command}
    assert variables["VLLM_SERVER_DEV_MODE"] == "1"
    with pytest.raises(ConfigError, match=r"model.lora.rank = 513: vLLM has adapters of rank 512 at most"):
        build_command(config_of(model={"lora": {"enabled": True, "rank": 513}}))


@pytest.mark.parametrize(
    ("extra", "share", "sleeps"),
    [
        ({}, building.SHARED_GPU_FRACTION, True),
        ({"engine": {"replicas": 3}}, building.SHARED_GPU_FRACTION / 3, True),
        ({"engine": {"device_memory": 0.3}}, 0.3, True),
        ({"rollout": {"max_async_iterations": 1}}, building.SHARED_GPU_FRACTION, False),
        ({"engine": {"devices": ["1"]}}, building.DEDICATED_GPU_FRACTION, False),
        ({"engine": {"urls": ["http://127.0.0.1:7465"]}}, building.DEDICATED_GPU_FRACTION, False),
        ({"cluster": {"address": "auto"}}, building.DEDICATED_GPU_FRACTION, False),
    ],
)
def test_engines_leave_room_and_sleep_where_the_learner_has_the_same_gpu(
    config_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], share: float, sleeps: bool
) -> None:
    monkeypatch.setattr(building, "resolve_device", lambda _: torch.device("cuda"))
    base = config_of().model_dump(include={"run", "model", "engine", "rollout", "cluster"})
    config = Config(**{name: section | extra.get(name, {}) for name, section in base.items()})
    command, _ = build_command(config)
    assert float(option(command, "gpu-memory-utilization")) == pytest.approx(share)
    assert is_sleeping(config) == ("--enable-sleep-mode" in command) == sleeps
    assert "--enable-sleep-mode" not in build_command(config, alone=True)[0]


def test_an_engine_does_not_find_our_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("HTTPS_PROXY", "kept")
    variables = build_environment(on_cpu=True, threads=2, offline=True, devices="2,3")
    assert "PYTHONPATH" not in variables
    assert variables["HTTPS_PROXY"] == "kept"
    assert (variables["OMP_NUM_THREADS"], variables["CUDA_VISIBLE_DEVICES"]) == ("2", "2,3")
    assert "VLLM_CPU_OMP_THREADS_BIND" not in build_environment(on_cpu=False, threads=0, offline=False)


def test_an_engine_is_no_rank_of_torchrun_s(monkeypatch: pytest.MonkeyPatch) -> None:
    given = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"
    given += "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"
    for name in (*given, "RANKING"):
        monkeypatch.setenv(name, "1")
    variables = build_environment(on_cpu=True, threads=0, offline=True)
    assert not variables.keys() & set(given)
    assert "RANKING" in variables


def test_a_workplace_is_cleared_away_once_nobody_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"{server.WORK_DIR_PREFIX}killed"
    left.mkdir()
    (left / "engine.log").touch()
    first = server.make_work_dir()
    assert first.parent == tmp_path
    assert not left.exists()
    server.make_work_dir()
    assert first.exists()  # in use
    server._remove_stale_dir(tmp_path / f"{server.WORK_DIR_PREFIX}gone")  # by another start, meanwhile


def test_devices_are_for_as_many_engines() -> None:
    assert Config(engine={"devices": ["0", "1,2"], "replicas": 2}).engine.devices == ("0", "1,2")
    for engine in ({"devices": ["0"], "replicas": 2}, {"devices": ["0"], "urls": ["http://a:1"]}):
        with pytest.raises((ConfigError, ValueError), match=r"engine.devices names the GPUs of 1 engines"):
            Config(engine=engine)


def test_the_distance_of_an_engine_is_a_mean_over_tokens() -> None:
    record = ProbeRecord([((1, 2, 3), 1), ((4, 5), 1)], [[-1.0, -2.0], [-3.0]], 1.0)
    assert record.distance([[-1.0, -2.3], [-2.4]]) == pytest.approx((0.0 + 0.3 + 0.6) / 3)
    assert not record.distance([[-1.0, float("nan")], [-3.0]]) <= 1e9
