"""Settings of something that is off: they are named, with the switch, and nothing else is."""

from __future__ import annotations

import re

import pytest

from trailnotes.config.schema import full_config_type
from trailnotes.config.toml import collect_fields, load_config
from trailnotes.config.unused import list_requirements, warn_unused


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--model.lora.rank 8", "model.lora.rank (needs model.lora.enabled or learner.name = tinker)"),
        ("--model.lora.rank 8 --model.lora.enabled true", ""),
        ("--model.lora.rank 16", ""),  # the default
        ("--memory.ucb 2", "memory.ucb (needs memory.order = ucb)"),
        ('--memory.ucb 2 --memory.order ["ucb"]', ""),
        ("--loss.observations 0.1 --optim.rows step", "loss.observations (needs optim.rows = auto)"),
        ("--learner.offload true", "learner.offload (needs learner.world_size > 1)"),
        ("--learner.offload true --learner.world_size 2", ""),
        ("--rehearsal.rows 3", "rehearsal.rows (needs rehearsal.split or rehearsal.path)"),
        ("--rehearsal.path x.jsonl --algorithm.name grpo",
         "rehearsal.path (needs algorithm.name = empo2 or lamer or opid or opsd or ucob)"),
        ("--endpoint.concurrency 2 --memory.embedder openai:m", ""),
        ("--empo2.author_age 2", "empo2.author_age (needs empo2.author_credit)"),
        ("--algorithm.anchor_reading 0.2 --algorithm.name ucob",
         "algorithm.anchor_reading (needs algorithm.name = empo2)"),
        ("--algorithm.author extract --algorithm.name ace",
         "algorithm.author (needs algorithm.name = empo2-tips)"),
        ("--algorithm.author extract --algorithm.name empo2-tips", ""),
        ("--algorithm.normalize_mean true --algorithm.normalize_std false --algorithm.name rloo",
         ("algorithm.normalize_std (needs algorithm.name = empo2 or grpo or lamer or opid or opsd or ucob); "
          "algorithm.normalize_mean (needs algorithm.name = empo2 or grpo or opid or opsd)")),
        ("--algorithm.anchor_tips 0.3 --algorithm.author extract",
         "algorithm.anchor_tips (needs algorithm.author = policy or start)"),
        ("--gigpo.omega 0.5", "gigpo.omega (needs algorithm.name = gigpo or ucob)"),
        ("--gigpo.omega 0.5 --algorithm.name mine:METHOD", ""),
        ("--gigpo.omega 0.5 --gigpo.hierarchical true --algorithm.name gigpo",
         "gigpo.omega (needs gigpo.hierarchical = false)"),
        ("--gigpo.omega 0.5 --empo2.p_memory 0.5 --algorithm.normalize_mean true --algorithm.name naive", ""),
        ("--preset paper-webshop --algorithm.name grpo", ""),  # its own values
        ("--loss.shaping luffy --loss.drop_negative_off_policy true --algorithm.name grpo",
         "loss.shaping, loss.drop_negative_off_policy (needs algorithm.name = empo2)"),
        ("--algorithm.anchor_reading 0.2 --empo2.q_off_policy 0",
         "algorithm.anchor_reading (needs empo2.q_off_policy)"),
        ("--loss.dual_clip 3 --loss.objective cispo", "loss.dual_clip (needs loss.objective = ppo or gspo or dppo)"),
        ("--loss.shaping luffy --loss.mask_kl false", "loss.mask_kl (needs loss.kl)"),
        ("--memory.threshold 0.3 --memory.retrieval sparse",
         "memory.threshold (needs memory.retrieval = dense or hybrid)"),
        ("--env.timeout 5 --env.num_workers 0", "env.timeout (needs env.num_workers or env.name = gateway)"),
        ("--rollout.system_prompt x --rollout.num_examples 1 --rollout.stop [] --env.name gateway",
         "rollout.num_examples, rollout.system_prompt (needs env.name != gateway)"),
        ("--engine.burst 4 --learner.name tinker", "engine.burst (needs learner.name = torch)"),
        ("--engine.replicas 2 --model.path openai:m", "engine.replicas (needs model.path != openai:NAME or random)"),
        ("--rehearsal.num_tasks 1 --engine.replicas 2",
         "engine.replicas (needs engine.name = vllm); rehearsal.num_tasks (needs rehearsal.split)"),
    ],
)  # fmt: skip
def test_one_line_names_settings_without_effect(words: str, line: str, caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(None, words.split())
    warn_unused(config)
    assert caplog.messages == ([f"settings without effect: {line}"] if line else [])
    caplog.clear()
    warn_unused(config, warned=config)  # a run that was warned already
    assert not caplog.messages


def test_every_name_in_the_table_is_a_setting() -> None:
    names = [*collect_fields(full_config_type())]
    for key, need in list_requirements(full_config_type()).items():
        assert any(name == key or name.startswith(f"{key}.") for name in names), key
        assert {*re.findall(r"[a-z_]+(?:\.[a-z_]+)+", need.replace("*:*", ""))} <= {*names}, need
