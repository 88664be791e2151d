"""Whole runs on a GPU: every tensor is moved to it, by each method of novelty, way of rows, and initial author."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from small import small_config
from tinyrun import distance, tiny_config
from trailnotes.runs.evaluate import evaluate
from trailnotes.runs.train import train
from trailnotes.warmstart.training import warmstart

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
RUNS: dict[str, dict[str, Any]] = {
    "anchored and credited": {
        "algorithm": {"anchor_tips": 1.0, "anchor_reading": 1.0, "author_credit": 0.5, "intrinsic": "counts"},
        "learner": {"packed": "shared"},
    },
    "ahead": {
        "rollout": {"max_async_iterations": 1},
        "algorithm": {"intrinsic": "states"},
        "loss": {"shaping": "luffy"},
    },
    "random network distillation": {"algorithm": {"intrinsic": "rnd"}, "optim": {"rows": "step"}},
    "adapters in bfloat16": {
        "model": {"lora": {"enabled": True, "rank": 4}, "dtype": "bfloat16", "gradient_checkpointing": True},
        "algorithm": {"author": "start"},
    },
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_trains_resumes_and_is_evaluated(name: str, start_model: Path, tmp_path: Path) -> None:
    sections = RUNS[name] | {"model": {"path": str(start_model), "device": "cuda"} | RUNS[name].get("model", {})}
    for iterations in (1, 2):
        config = tiny_config(start_model, **sections | {"train": {"iterations": iterations}})
        train(config, tmp_path, allow_change=["train.iterations"])
    assert "model" in RUNS[name] or distance(tmp_path, start_model) > 0  # adapters are saved alone
    assert evaluate(config, tmp_path).num_episodes > 0


def test_a_warm_start(tmp_path: Path) -> None:
    config = small_config(model={"device": "cuda"}, warmstart={"steps": 2, "num_layers": 2, "copying": True})
    assert (warmstart(config, tmp_path / "model") / "model.safetensors").is_file()
