"""The settings of start models and of the trainings that begin with them."""

from __future__ import annotations

import pytest

from trailnotes.config.builtin import BUILTIN
from trailnotes.config.toml import diff_configs, load_config

CONFIGS = BUILTIN / "configs"


@pytest.mark.parametrize(
    ("start", "training"),
    [
        ("textworld-express/small-warmstart", "textworld-express/small"),
        ("webshop/small-warmstart", "webshop/small"),
        ("webshop/warmstart", "webshop/smollm2"),
        ("wikihow/small-warmstart", "wikihow/small"),
    ],
)
def test_a_start_reads_and_sees_what_training_shows(start: str, training: str) -> None:
    taught, trained = (load_config(CONFIGS / f"{name}.toml") for name in (start, training))
    shared = ("env.name", "env.options", "rollout.style", "rollout.system_prompt", "rollout.max_observation_tokens",
              "rollout.max_action_tokens", "rollout.max_steps", "memory.max_tip_tokens", "memory.top_k")  # fmt: skip
    assert not {*diff_configs(taught, trained)} & {*shared}
    assert taught.rollout.max_context_tokens <= trained.rollout.max_context_tokens
    trained.validate_training()
