"""Players without a model, and the lists that they draw from."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinyrun import tiny_config, train_in_process
from trailnotes.config.schema import Config, MemoryConfig, RolloutConfig
from trailnotes.errors import RunError
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.rollout.conversation import Conversation, parse_listed_actions
from trailnotes.runs.load_policy import EvaluatedModel, RandomPolicy, load_policy, open_evaluated_model
from trailnotes.runs.usage import TABLE_FIELDS
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Message, Observation, Sampling

ACTIONS = st.lists(st.text("abc xyz", min_size=1, max_size=8).map(str.strip).filter(bool), min_size=1, max_size=9)


@given(ACTIONS, st.sampled_from(["full", "terse"]))
def test_what_a_turn_lists_can_be_read_back(actions: list[str], style: str) -> None:
    conversation = Conversation(RolloutConfig(style=style, show_actions=True), MemoryConfig(), len)
    turn = conversation.format_turn(Observation("a room\nwith a line", actions=tuple(actions)))
    assert parse_listed_actions(turn, style) == actions


def sample_action(config: Config, *turns: str, seed: int = 0) -> str:
    policy = RandomPolicy(config)
    policy.open_episode("e")
    messages = [Message("user", turn) for turn in turns]
    return asyncio.run(policy.generate(messages, Sampling(max_tokens=99, seed=seed), "e")).text


def test_random_policy_is_uniform_and_repeatable() -> None:
    config = Config()
    draws = Counter(sample_action(config, f"room {n}\nAdmissible actions: a; b; c; d") for n in range(400))
    assert set(draws) == {"a", "b", "c", "d"}
    assert min(draws.values()) > 60  # 100 each are expected
    turn = "room\nAdmissible actions: a; b; c; d"
    assert sample_action(config, turn) == sample_action(config, turn)
    assert {sample_action(config, turn, seed=seed) for seed in range(30)} == {"a", "b", "c", "d"}, "of each sample"
    other = config.model_copy(update={"run": config.run.model_copy(update={"seed": 1})})
    assert len({sample_action(other, f"{n}{turn}") == sample_action(config, f"{n}{turn}") for n in range(30)}) == 2


# -- who is examined


def resolve(model_or_run: Path | str) -> EvaluatedModel:
    with open_evaluated_model(model_or_run) as subject:
        return subject


def test_run_is_evaluated_at_its_last_checkpoint(run_dir: Path) -> None:
    last = run_dir / "checkpoints" / "step-000002"
    of_run = resolve(run_dir)
    assert of_run == resolve(last)
    assert (of_run.model, of_run.memory, of_run.name) == (str(last / "model"), last / "memory.db", "empo2")
    last_line = list(read_jsonl(run_dir / "metrics.jsonl"))[-1]
    assert of_run.spent["env_steps"] == last_line["env_steps"] > 0
    assert {name: of_run.spent[name] for name in TABLE_FIELDS} == {name: last_line[name] for name in TABLE_FIELDS}
    earlier = resolve(str(run_dir / "checkpoints" / "step-000001"))
    assert 0 < earlier.spent["env_steps"] < of_run.spent["env_steps"]
    assert resolve(last / "model").name == "start"
    assert resolve("some/hub-name").model == "some/hub-name"


def test_run_without_whole_checkpoint_is_refused(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(RunError, match="holds no finished checkpoint yet"):
        resolve(tmp_path)
    (tmp_path / "checkpoints").rmdir()
    step = tmp_path / "step-000001"
    (step / "model").mkdir(parents=True)
    (step / "meta.json").write_text("{}")
    with pytest.raises(RunError, match="step-000001 is damaged"):
        resolve(step)


def test_adapters_are_evaluated_unmerged(start_model: Path, tmp_path: Path) -> None:
    """A step of 1e-6 is below the last bit of a bfloat16 weight: merged, most of it would be lost."""
    model = {"dtype": "bfloat16", "lora": {"enabled": True, "rank": 2, "alpha": 4.0}}
    config = tiny_config(start_model, model=model, optim={"lr": 1e-6}, train={"iterations": 2}, loss={"kl": 0.0})
    run = train_in_process(config, tmp_path)
    trained = dict(run.policy.model.named_parameters())
    policy = load_policy(config, resolve(tmp_path))
    assert isinstance(policy, HFPolicy)
    played = dict(policy.model.named_parameters())
    assert played.keys() == trained.keys()
    assert all(torch.equal(played[name], trained[name]) for name in trained)
    assert any(bool(p.any()) for name, p in trained.items() if "lora_B" in name), "it has learned something"
    assert not any(p.requires_grad for p in played.values())
