"""Whole commands in small: settings for simulated Waymarks, and a start model that knows its words and nothing else."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from typing import Any

from trailnotes.config.methods_schema import Empo2Config
from trailnotes.config.schema import Config
from trailnotes.storage.files import read_jsonl
from trailnotes.warmstart.demonstrations.waymarks import WaymarksDemonstrator

FAMILIES = ["route/amber", "keys/granite"]
SETTINGS: dict[str, dict[str, Any]] = {
    "run": {"threads": 1},
    "model": {"device": "cpu"},
    "env": {"name": "waymarks-simulator", "num_workers": 0, "options": {"families": FAMILIES, "max_steps": 2}},
    "rollout": {
        "style": "terse", "num_tasks": 2, "group_size": 4, "max_steps": 2, "max_action_tokens": 4,
        "max_context_tokens": 256, "max_observation_tokens": 64,
    },
    "memory": {"top_k": 4, "threshold": -1.0, "max_tip_tokens": 24, "max_write_tokens": 6},
    "algorithm": {"name": "empo2"},
    "empo2": {"p_memory": 0.25, "q_off_policy": 1.0, "mode_unit": "trajectory"},
    "optim": {"lr": 1e-3, "minibatch": 0},
    "train": {"iterations": 100, "max_env_steps": 24, "save_every": 1},
    "eval": {"num_tasks": 4},
    "warmstart": {
        "hidden_size": 16, "num_layers": 1, "num_heads": 2, "steps": 8, "batch_size": 8, "lr": 1e-2, "vocab_size": 420,
    },
}  # fmt: skip


def merge_sections(own: dict[str, dict[str, Any]], sections: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Lay `sections` over `own`, key by key."""
    return {name: own.get(name, {}) | sections.get(name, {}) for name in own | sections}


def small_config(**sections: dict[str, Any]) -> Config:
    """`SETTINGS` with other values here and there: ``small_config(eval={"num_samples": 2})``.

    Keys of `empo2` may be among those of `algorithm`.
    """
    tree = merge_sections(SETTINGS, sections)
    of_empo2 = Empo2Config.model_fields.keys() & tree["algorithm"].keys()
    tree["empo2"] |= {name: tree["algorithm"].pop(name) for name in of_empo2}
    return Config(**tree)


def count_words(text: str) -> int:
    """In the place of a tokenizer."""
    return len(text.split())


def demonstration_texts(num: int, seed: int = 0) -> list[str]:
    """Every turn of `num` demonstrations."""
    demonstrator = WaymarksDemonstrator(small_config(), count_words, seed)
    return [message.content for demo in islice(demonstrator, num) for message in demo.messages]


def save_start_model(path: Path, max_tokens: int = SETTINGS["rollout"]["max_context_tokens"]) -> Path:
    """A tiny Qwen2 of random weights that prefers whole words, and its tokenizer."""
    import torch

    from trailnotes.learner.states import export_model
    from trailnotes.warmstart.small_model import build_model, train_tokenizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = small_config()
    texts = demonstration_texts(300)
    random.Random(0).shuffle(texts)
    tokenizer = train_tokenizer(texts, config.warmstart.vocab_size)
    export_model(build_model(tokenizer, config.warmstart, max_tokens), path, tokenizer)
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path))
