"""Whole runs that vLLM plays, on a CPU: what it sampled, given to a learner alone, makes the same weights."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from small import SETTINGS
from tinyrun import distance, metrics, record, tiny_config, train_in_process
from trailnotes.learner.states import export_model
from trailnotes.policies.vllm.engine import EngineClient
from trailnotes.runs.training import TrainingRun, save_checkpoint
from trailnotes.warmstart.small_model import build_model

pytestmark = pytest.mark.vllm

ENGINE = {"name": "vllm", "python": os.environ.get("TRAILNOTES_TEST_VLLM", ""), "max_concurrent": 32}
LORA = {"lora": {"enabled": True, "rank": 4}}


@pytest.fixture(scope="module")
def wide_model(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The start model with heads of 32 channels, which vLLM's attention on a CPU knows."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(start_model)
    config = tiny_config(start_model, warmstart=SETTINGS["warmstart"] | {"hidden_size": 64}).warmstart
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("wide") / "model"
    export_model(build_model(tokenizer, config, SETTINGS["rollout"]["max_context_tokens"]), path, tokenizer)
    return path


@pytest.mark.parametrize(
    ("model", "sections"),
    [
        ({}, {"algorithm": {"name": "grpo"}, "learner": {"world_size": 2}}),
        ({}, {"algorithm": {"name": "grpo"}, "engine": {"shared_card": True}, "train": {"iterations": 2}}),
        (LORA, {"rollout": {"num_tasks": 5, "max_async_iterations": 1}}),
        ({}, {"algorithm": {"author": "start"}}),
        (LORA, {"algorithm": {"author": "start"}, "learner": {"world_size": 2}}),
    ],
    ids=["grpo-full-two", "grpo-full-shared", "empo2-lora-ahead", "empo2-full-start-author", "empo2-lora-two"],
)
def test_vllm_samples_train_the_same_weights(
    wide_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], sections: dict[str, Any]
) -> None:
    calls: list[str] = []
    learn, call = TrainingRun.learn, EngineClient.call

    def note(client: EngineClient, path: str, body: Any = None) -> Any:
        calls.append((body or {}).get("method", path))
        return call(client, path, body)

    learned = record(monkeypatch, TrainingRun, "learn")
    monkeypatch.setattr(EngineClient, "call", note)
    settings: dict[str, Any] = {"model": {"path": str(wide_model), **model}, "optim": {"lr": 1e-4, "epochs": 2}}
    settings |= {"run": {"deterministic": False}, "train": {"iterations": 3}} | sections
    settings["engine"] = ENGINE | settings.get("engine", {})
    train_in_process(tiny_config(wide_model, **settings), tmp_path / "played")
    monkeypatch.setattr(TrainingRun, "learn", learn)
    lines = metrics(tmp_path / "played")
    print([{name: line.get(f"engine/{name}") for name in ("sync", "difference", "ratio", "cached")} for line in lines])
    assert all(line["engine/sync"] < 2e-5 for line in lines)
    fresh = [line for line in lines if not line.get("stale/versions")]
    assert all(line["engine/difference"] < 2e-5 for line in fresh)
    assert all(line["engine/ratio"] == pytest.approx(1, abs=1e-4) for line in fresh)
    assert any(line["engine/cached"] > 0.2 for line in lines)

    if settings["engine"].get("shared_card"):  # a worker on a CPU keeps its memory, but no request is served asleep
        load = ["/pause", "replace_weights", "/resume", "/v1/completions"]
        order = ["/wake_up", *load, "/sleep?level=2"]
        assert [name for name, _ in groupby(calls)] == ["/v1/completions", *order, *order]

    async def again(run: TrainingRun) -> None:
        for (_, samples, seed, *_), _ in learned[: len(lines)]:
            await run.learn(samples, seed)
            run.count.iteration += 1
        save_checkpoint(run)

    alone = {name: section for name, section in settings.items() if name not in {"learner", "rollout", "engine"}}
    monkeypatch.setattr("tinyrun.run_method", lambda _, run: again(run))
    train_in_process(tiny_config(wide_model, **alone), tmp_path / "alone")
    apart = distance(tmp_path / "played", tmp_path / "alone")
    print(f"largest difference of a weight: {apart:.2g}")
    assert 0 <= apart < 1e-5
