"""Advantages and losses against TRL's own, on the same numbers, with settings alike."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tiny import VOCABULARY, group, step, tiny_model, trajectory, with_logprobs
from trailnotes.config.schema import LossConfig, OptimConfig
from trailnotes.learner.credit import episodes
from trailnotes.learner.learner import Learner
from trailnotes.learner.samples import build_samples
from trailnotes.types import Sample

trl = pytest.importorskip("trl", reason="TRL is installed for comparisons alone")

pytestmark = pytest.mark.filterwarnings("ignore")  # those of TRL and its dependencies


def words() -> Any:
    """A tokenizer with a word for each id."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", eos_token="w1")


def make_trainer(directory: Path, **settings: Any) -> Any:
    from datasets import Dataset

    config = trl.GRPOConfig(
        output_dir=str(directory), per_device_train_batch_size=8, num_generations=4, max_completion_length=5,
        max_steps=1, epsilon=0.2, epsilon_high=0.3, delta=10.0, use_cpu=True, bf16=False, gradient_checkpointing=False,
        use_bias_correction_kl=False,  # the plain k3 of the GRPO paper
        report_to=[], save_strategy="no", disable_tqdm=True, **settings,
    )  # fmt: skip
    return trl.GRPOTrainer(
        model=tiny_model(),
        reward_funcs=lambda completion_ids, **_: [float(sum(ids) % 7) for ids in completion_ids],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "w3 w4 w5"}, {"prompt": "w6 w7"}]),
        processing_class=words(),
    )


def some_rows() -> list[Sample]:
    """Prompts of 4 tokens and completions of 5 tokens, so that neither side pads; ratios far from 1."""
    rng = random.Random(0)
    episodes = [trajectory([step(rng.choices(range(2, 40), k=4), rng.choices(range(2, 40), k=5))]) for _ in range(8)]
    samples = build_samples([group(*episodes)], [[1.5, -0.5, 0.25, -2.0, 0.75, -1.0, 0.5, -0.25]])
    return with_logprobs(samples, 3, spread=1.5)


@pytest.mark.parametrize("normalize_std", [True, False])
def test_advantages_are_trls(normalize_std: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, scale_rewards="group" if normalize_std else "none")
    trainer.train()
    monkeypatch.setattr(episodes, "EPSILON", 1e-4)  # TRL's
    (rewards,) = trainer._logs["rewards"].values()
    expected = [episodes.group_relative(list(rewards)[i : i + 4], normalize_std) for i in (0, 4)]
    assert np.ptp(expected) > 0
    np.testing.assert_allclose(list(trainer._logs["advantages"]), np.concatenate(expected), atol=1e-5)


@pytest.mark.parametrize(("theirs", "aggregation"), [("bnpo", "token"), ("grpo", "sequence")])
@pytest.mark.parametrize(("kl", "max_negative_kl"), [(0.0, None), (0.1, None), (0.0, 0.2)])
def test_loss_and_gradient_are_trls(
    theirs: str, aggregation: Any, kl: float, max_negative_kl: float | None, tmp_path: Path
) -> None:
    samples = some_rows()
    reference = tiny_model(1)
    settings = OptimConfig(lr=1e-9, minibatch=0, grad_clip=0)
    loss = LossConfig(kl=kl, aggregation=aggregation, max_negative_kl=max_negative_kl)
    learner = Learner(tiny_model(), settings, loss, reference=reference)
    metrics = learner.update(samples)

    trainer = make_trainer(tmp_path, loss_type=theirs, off_policy_mask_threshold=max_negative_kl)
    trainer.beta = kl  # set late, or TRL would look for the reference in a hub
    trainer.current_gradient_accumulation_steps = 1
    ids = torch.tensor([s.token_ids for s in samples])
    with torch.no_grad():
        table = reference(ids).logits[:, 3:-1].log_softmax(-1)
    inputs = {
        "prompt_ids": ids[:, :4],
        "prompt_mask": torch.ones(8, 4, dtype=torch.long),
        "completion_ids": ids[:, 4:],
        "completion_mask": torch.ones(8, 5, dtype=torch.long),
        "old_per_token_logps": torch.tensor([s.behavior_logprobs[4:] for s in samples]),
        "ref_per_token_logps": table.gather(-1, ids[:, 4:, None]).squeeze(-1),
        "advantages": torch.tensor([s.advantages[4] for s in samples]),
    }
    trainer.model.zero_grad()
    expected = trainer._compute_loss(trainer.model, inputs)
    expected.backward()
    assert (metrics["dropped_fraction"] > 0) == (max_negative_kl is not None)
    assert metrics["clip_fraction_low"] > 0
    assert metrics["clip_fraction_high"] > 0
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-5)
    for mine, other in zip(learner.model.parameters(), trainer.model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-4)
