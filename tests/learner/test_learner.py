"""The update: what it equals, what it does not depend on, and what stops it."""

from __future__ import annotations

import asyncio
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from tiny import VOCABULARY, episode, gradients, group, learner, tiny_model, with_logprobs
from tinyrun import in_a_run, tiny_config
from trailnotes.errors import NonFiniteError
from trailnotes.learner.learner import Learner
from trailnotes.learner.samples import build_samples
from trailnotes.runs.iteration import Iteration
from trailnotes.types import Mode, Sample

# peft and older releases of transformers ask by a name that newer transformers deprecate
renamed = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def rows(num: int = 6, unit: Any = "auto", modes: tuple[Mode, ...] = ("plain", "off_policy")) -> list[Sample]:
    episodes = [episode(random.Random(i), 1 + i % 3, modes[i % len(modes)]) for i in range(num)]
    return build_samples([group(*episodes)], [[(-1) ** i * (1 + i / 4) for i in range(num)]], unit)


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in learner.model.named_parameters()}


def assert_equal_weights(one: Learner, other: Learner, **tolerance: float) -> None:
    for (name, mine), theirs in zip(weights(one).items(), weights(other).values(), strict=True):
        torch.testing.assert_close(mine, theirs, **(tolerance or {"atol": 0.0, "rtol": 0.0}), msg=name)


def on_policy(learner: Learner, samples: list[Sample]) -> list[Sample]:
    """The rows as the learner's own weights would have sampled them: every ratio is 1."""
    return [replace(s, behavior_logprobs=p) for s, p in zip(samples, learner.logprobs(samples), strict=True)]


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_ratio_one_gives_the_reinforce_gradient(aggregation: str) -> None:
    subject = learner(aggregation=aggregation)
    samples = on_policy(subject, rows())
    metrics = subject.update(samples)
    model = tiny_model()
    terms = []
    for sample in samples:
        ids = torch.tensor([sample.token_ids])
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1).gather(-1, ids[0, 1:, None])[:, 0]
        trained, advantages = torch.tensor(sample.loss_mask[1:]).bool(), torch.tensor(sample.advantages[1:])
        terms.append((-advantages * logprobs)[trained])
    (torch.cat(terms).mean() if aggregation == "token" else torch.stack([t.mean() for t in terms]).mean()).backward()
    for mine, parameter in zip(gradients(subject), model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, atol=1e-5, rtol=1e-4)
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["kl_to_behavior"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("drop", [True, False])
def test_equal_returns_give_a_zero_update(drop: bool) -> None:
    subject = learner(drop_zero_advantage=drop, epochs=2)
    subject.update(rows())  # moments that would go on moving the weights
    before = weights(subject)
    metrics = subject.update([replace(s, advantages=(0.0,) * len(s.advantages)) for s in rows()])
    assert all(torch.equal(before[name], now) for name, now in weights(subject).items())
    assert metrics["optimizer_steps"] == subject.update([])["optimizer_steps"] == 0
    assert metrics["zero_advantage_rows"] == metrics["rows"] == 6
    assert metrics["tokens_trained"] == (0 if drop else 2 * sum(sum(s.loss_mask) for s in rows()))


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
@pytest.mark.parametrize("budget", [1, 30])
def test_microbatches_do_not_change_the_update(aggregation: str, budget: int) -> None:
    settings: dict[str, Any] = {"aggregation": aggregation, "kl": 0.1, "mask_logprob": -4.0, "epochs": 2}
    samples = with_logprobs(rows(9), 1)
    whole = learner(reference=tiny_model(1), **settings)
    parts = learner(reference=tiny_model(1), microbatch_tokens=budget, **settings)
    expected, metrics = whole.update(samples), parts.update(samples)
    assert_equal_weights(parts, whole, atol=1e-5, rtol=0)  # AdamW turns a gradient near 0 into up to lr = 1e-3
    for name in set(expected) - {"seconds", "seconds_reference", "tokens_forward"}:
        assert metrics[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    assert expected["masked_fraction"] > 0
    assert metrics["tokens_forward"] < expected["tokens_forward"]  # less padding


@pytest.mark.parametrize(
    "settings", [{}, {"kl": 0.1}, {"mask_logprob": -4.0}, {"mask_logprob": -4.0, "mask_unit": "response"}]
)
def test_one_row_an_episode_equals_one_row_a_step(settings: dict[str, Any]) -> None:
    reference = tiny_model(1) if "kl" in settings else None
    results = []
    for unit in ("auto", "step"):
        subject, samples = learner(reference=reference, **settings), []
        for s in rows(6, unit):  # behaviour depends on the token alone, so that it is the same however rows are cut
            behavior = tuple(m * (-2 - i % 5 / 4) for i, m in zip(s.token_ids, s.loss_mask, strict=True))
            samples.append(replace(s, behavior_logprobs=behavior))
        metrics = subject.update(samples)
        results.append((gradients(subject), metrics))
    (auto, few), (step, many) = results
    for mine, theirs in zip(auto, step, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
    assert few["tokens_trained"] == many["tokens_trained"]
    assert few["tokens_forward"] < many["tokens_forward"]


def test_rows_of_zero_advantage_are_left_out_of_kl_too() -> None:
    samples = with_logprobs(rows(4), 1)
    silent = replace(samples[0], advantages=(0.0,) * len(samples[0].advantages), trajectory=9)
    with_row, without = (learner(reference=tiny_model(1), kl=0.5) for _ in range(2))
    with_row.update([*samples, silent])
    without.update(samples)
    assert_equal_weights(with_row, without)
    kept = learner(reference=tiny_model(1), kl=0.5, drop_zero_advantage=False)
    kept.update([*samples, silent])
    assert any(not torch.equal(w, weights(without)[name]) for name, w in weights(kept).items())


@pytest.mark.parametrize("threshold", [None, -3.5])
def test_the_shaped_loss_by_hand_with_mask_and_kl(threshold: float | None) -> None:
    """The mask, where there is one, and the KL hold shaped rows as they hold clipped ones."""
    samples = with_logprobs(rows(), 1, spread=2.0)
    subject = learner(shaping="luffy", mask_logprob=threshold, kl=0.05, reference=tiny_model(1))
    frozen, before = learner(tiny_model(1)), subject.logprobs(samples)
    terms, penalties, off = [], [], []
    for sample, now, start in zip(samples, before, frozen.logprobs(samples), strict=True):
        for t, trained in enumerate(sample.loss_mask):
            if not trained or (sample.off_policy and threshold is not None and now[t] < threshold):
                continue
            ratio, advantage = math.exp(now[t] - sample.behavior_logprobs[t]), sample.advantages[t]
            clipped = -min(ratio * advantage, min(max(ratio, 0.8), 1.3) * advantage)
            bounded = min(clipped, -10 * advantage) if advantage < 0 else clipped
            terms.append(-ratio / (ratio + 0.1) * advantage if sample.off_policy else bounded)
            penalties.append(math.exp(start[t] - now[t]) - (start[t] - now[t]) - 1)
            off.append(sample.off_policy)
    metrics = subject.update(samples)
    assert {True, False} == set(off)
    assert metrics["policy_loss"] == pytest.approx(sum(terms) / len(terms), rel=1e-4)
    assert metrics["kl_to_reference"] == pytest.approx(sum(penalties) / len(penalties), rel=1e-4)
    off_policy_tokens = sum(sum(sample.loss_mask) for sample in samples if sample.off_policy)
    assert metrics["masked_fraction"] == pytest.approx(1 - sum(off) / off_policy_tokens)


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
@pytest.mark.parametrize("budget", [1, 10_000])
def test_kl_and_masked_policy_loss_have_their_own_means(aggregation: str, budget: int) -> None:
    """The gradient is that of the two means: policy loss over what is kept, KL over all."""
    samples = with_logprobs(rows(modes=("plain", "off_policy", "off_policy")), 1)
    settings: dict[str, Any] = {
        "aggregation": aggregation, "mask_logprob": -3.5, "drop_zero_advantage": False, "microbatch_tokens": budget,
    }  # fmt: skip
    still = [replace(s, advantages=(0.0,) * len(s.advantages)) for s in samples]
    subject = learner(kl=0.5, mask_kl=False, reference=tiny_model(1), **settings)
    policy = learner(**settings)
    kl = learner(kl=0.5, reference=tiny_model(1), **(settings | {"mask_logprob": None}))
    assert 0 < subject.update(samples)["masked_fraction"] < 1
    policy.update(samples)
    kl.update(still)
    for mine, one, other in zip(gradients(subject), gradients(policy), gradients(kl), strict=True):
        torch.testing.assert_close(mine, one + other, atol=1e-5, rtol=1e-4)


def test_clipping_bounds_the_gradient_and_reports_the_norm_before() -> None:
    samples = with_logprobs(rows(), 1)
    free, held = learner(), learner(grad_clip=1e-3)
    assert free.update(samples)["grad_norm"] == pytest.approx(held.update(samples)["grad_norm"], rel=1e-5)
    total = torch.cat([g.flatten() for g in gradients(held)]).norm().item()
    assert total == pytest.approx(1e-3, rel=1e-3)


def test_metrics_by_hand() -> None:
    """Every ratio of the first row is e, with A > 0: clipped high."""
    subject, e = learner(lr=1e-9, clip_low=0.2, clip_high=0.3, dual_clip=10.0), math.e
    plain, off = on_policy(subject, rows(2))
    behavior = tuple(p - m for p, m in zip(plain.behavior_logprobs, plain.loss_mask, strict=True))
    metrics = subject.update([replace(plain, behavior_logprobs=behavior), off])
    tokens = sum(plain.loss_mask), sum(off.loss_mask)
    assert metrics["tokens_trained"] == sum(tokens)
    assert metrics["tokens_off_policy"] == tokens[1]
    assert metrics["clip_fraction_high"] == pytest.approx(tokens[0] / sum(tokens))
    assert metrics["clip_fraction_low"] == metrics["dual_clip_fraction"] == metrics["masked_fraction"] == 0
    assert metrics["ratio_max"] == pytest.approx(e, rel=1e-4)
    assert metrics["ratio_min"] == pytest.approx(1, rel=1e-4)
    assert metrics["ratio_mean_off_policy"] == pytest.approx(1, rel=1e-4)
    assert metrics["kl_to_behavior"] == pytest.approx(e - 2, rel=1e-4)
    assert metrics["kl_to_behavior_off_policy"] == pytest.approx(0, abs=1e-6)
    # the mean over tokens of -min(e * 1, 1.3 * 1) and of -1 * -1.25
    expected = (tokens[0] * -1.3 + tokens[1] * 1.25) / sum(tokens)
    assert metrics["loss"] == metrics["policy_loss"] == pytest.approx(expected, rel=1e-4)
    assert metrics["advantage_mean"] == pytest.approx(-0.125)
    assert metrics["advantage_std"] == pytest.approx(2.25 / 2**0.5)
    assert metrics["lr"] == 1e-9
    assert 0 < metrics["entropy"] < torch.log(torch.tensor(VOCABULARY)).item()


@pytest.mark.parametrize("what", ["advantage", "weight"])
def test_a_number_that_is_not_finite_stops_before_the_step(what: str, tmp_path: Path) -> None:
    subject, samples = learner(dump_dir=tmp_path / "dumps"), rows()
    if what == "advantage":
        samples[1] = replace(samples[1], advantages=tuple(m * float("nan") for m in samples[1].loss_mask))
    else:
        with torch.no_grad():
            next(subject.model.parameters()).view(-1)[5 * 32] = float("inf")
    before = weights(subject)
    with pytest.raises(NonFiniteError, match=r"nonfinite-000001\.json") as raised:
        subject.update(samples)
    assert raised.value.trajectories == tuple(range(6))
    assert all(torch.equal(before[name], now) for name, now in weights(subject).items())
    assert not gradients(subject)
    dump = json.loads((tmp_path / "dumps" / "nonfinite-000001.json").read_text())
    assert [tuple(row["token_ids"]) for row in dump["rows"]] == [sample.token_ids for sample in samples]
    assert any(isinstance(value, float) and math.isnan(value) for value in dump.values())


def test_the_tasks_of_a_batch_that_is_not_finite_are_named(start_model: Path, tmp_path: Path) -> None:
    async def body(iteration: Iteration) -> None:
        await iteration.begin()
        groups = await iteration.rollout(iteration.tasks())
        samples = iteration.samples(groups, [[1.0] * len(group.trajectories) for group in groups])
        broken = [replace(row, advantages=(math.inf,) * len(row.advantages)) for row in samples]
        async with iteration.learning():
            with pytest.raises(NonFiniteError) as raised:
                await iteration.update(broken)
            assert all(group.task.id in str(raised.value) for group in groups)
            raise asyncio.CancelledError  # the iteration does not end

    with pytest.raises(asyncio.CancelledError):
        in_a_run(tiny_config(start_model, algorithm={"name": "grpo"}), tmp_path, body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_state_goes_on_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    samples = with_logprobs(rows(), 1)
    alone, first = learner(tiny_model(dtype=dtype)), learner(tiny_model(dtype=dtype))
    for subject in (alone, first):
        subject.update(samples, seed=1)
    first.save(tmp_path)
    resumed = learner(tiny_model(7, dtype))
    resumed.load(tmp_path)
    assert resumed.steps == first.steps == 1
    for subject in (alone, resumed):
        subject.update(samples, seed=2)
    assert_equal_weights(alone, resumed)


def test_bfloat16_learns_at_a_rate_that_its_own_weights_would_lose() -> None:
    subject = learner(tiny_model(dtype=torch.bfloat16), lr=1e-6, epochs=40)
    masters = subject._optimizer.masters.values()
    before = [master.detach().clone() for master in masters]
    subject.update(with_logprobs(rows(), 1))
    moved = torch.cat([(new - old).flatten().abs() for new, old in zip(masters, before, strict=True)])
    assert 1e-5 < moved.max() < 1e-4  # 40 steps of about 1e-6, kept in the float32 masters
    assert all(p.dtype == torch.bfloat16 for p in subject.model.parameters())


def with_adapters() -> nn.Module:
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model: nn.Module = get_peft_model(tiny_model(), config).eval()
    return model


@renamed
def test_adapters_learn_while_the_base_stays(tmp_path: Path) -> None:
    subject = learner(with_adapters(), kl=0.05, lr=1e-2)
    samples = on_policy(subject, rows())
    assert subject.update(samples)["kl_to_reference"] == pytest.approx(0, abs=1e-6)
    assert subject.update(samples)["kl_to_reference"] > 0  # the reference is the model without adapters
    with subject.model.disable_adapter():
        assert torch.equal(subject.model(IDS).logits, tiny_model()(IDS).logits)
    assert not torch.allclose(subject.model(IDS).logits, tiny_model()(IDS).logits, atol=1e-3)


DROPPING = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "embd_pdrop": 0.5, "attn_pdrop": 0.5, "resid_pdrop": 0.5},
    "opt": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48, "word_embed_proj_dim": 32,
        "dropout": 0.5, "attention_dropout": 0.5, "layerdrop": 0.5,
    },
    "seed_oss": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
        "num_key_value_heads": 2, "residual_dropout": 0.5, "attention_dropout": 0.5,
    },
    "falcon": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_dropout": 0.5,
        "attention_dropout": 0.5,
    },
}  # fmt: skip


@renamed
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("architecture", DROPPING)
def test_dropout_of_the_model_never_acts_in_an_update(architecture: str, checkpointing: bool) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, vocab_size=tiny_model().config.vocab_size, **DROPPING[architecture])
    model = AutoModelForCausalLM.from_config(config).eval()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    subject = learner(model)
    metrics = subject.update(on_policy(subject, rows()))
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["ratio_min"] == pytest.approx(1.0, abs=1e-5)


@renamed
def test_gradient_checkpointing_changes_memory_alone() -> None:
    model = tiny_model()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    recomputed, plain = learner(model), learner()
    for subject in (recomputed, plain):
        subject.update(with_logprobs(rows(), 1))
    assert_equal_weights(recomputed, plain, atol=1e-6, rtol=0)
