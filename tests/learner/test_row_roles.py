"""Rows that are no episodes: what each role adds to the update, by hand, and what it leaves alone."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from tiny import draw_adapters, episode, gradients, group, make_row, tiny_model, with_logprobs
from tiny import learner as make_learner
from trailnotes.config.methods_schema import AlgorithmConfig
from trailnotes.config.schema import LossConfig, OptimConfig
from trailnotes.learner.learner import Learner
from trailnotes.learner.logprobs import TokenScorer
from trailnotes.learner.losses import compute_token_weights
from trailnotes.learner.samples import build_anchor_samples, build_samples, iter_minibatches
from trailnotes.types import Completion, Mode, Sample, Tip, TrajectoryGroup

Settings = dict[str, Any]


learner = functools.partial(make_learner, reference=tiny_model(1))


def acted(num: int = 4) -> list[Sample]:
    """Rows of episodes, some off policy."""
    episodes = [episode(random.Random(i), 1 + i % 3, ("plain", "off_policy")[i % 2]) for i in range(num)]
    return with_logprobs(build_samples([group(*episodes)], [[(-1) ** i * (1 + i / 4) for i in range(num)]]), 1)


OTHERS = [
    make_row("tip", 1, 2, hold=0.3), make_row("tip", 2, 5, hold=0.3), make_row("tip", 3, 3, advantage=1.5),
    make_row("reading", 4, 4, hold=0.7), make_row("rehearsal", 5, 2, imitate=0.2),
    make_row("rehearsal", 6, 6, imitate=0.2),
]  # fmt: skip


def by_hand(rows: Sequence[Sample], aggregation: str, held: str = "sequence") -> tuple[list[Tensor], float]:
    """Gradient and value of: for each role and term, the mean over its own tokens, or of its rows' means.

    `aggregation` is that of the surrogate, `held` that of the others.
    """
    model, start = tiny_model(), tiny_model(1)
    terms: dict[tuple[str, str], list[tuple[float, Tensor]]] = {}
    for row in rows:
        ids, trained = torch.tensor([row.token_ids]), torch.tensor(row.loss_mask[1:]).bool()
        now = model(input_ids=ids).logits[0, :-1].log_softmax(-1)[trained]
        then = start(input_ids=ids).logits[0, :-1].log_softmax(-1).detach()[trained]
        logprobs = now.gather(-1, ids[0, 1:][trained][:, None])[:, 0]
        if row.hold:
            terms.setdefault((row.role, "hold"), []).append((row.hold, (then.exp() * (then - now)).sum(-1)))
        if row.imitate:
            terms.setdefault((row.role, "imitate"), []).append((row.imitate, -logprobs))
        if advantage := max(row.advantages):
            ratio = (logprobs + 3.0).exp()
            surrogate = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.3) * advantage)
            terms.setdefault((row.role, "policy"), []).append((1.0, surrogate))
    total = torch.zeros(())
    for (_, term), parts in terms.items():
        by_token = (aggregation if term == "policy" else held) == "token"
        values = [weight * (part if by_token else part.mean()[None]) for weight, part in parts]
        total = total + torch.cat(values).mean()
    total.backward()
    return [p.grad for p in model.parameters() if p.grad is not None], float(total.detach())


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
@pytest.mark.parametrize("budget", [1, 16, 8192])
def test_each_term_of_a_role_is_a_mean_over_its_own_rows(aggregation: str, budget: int) -> None:
    subject = learner(aggregation=aggregation, microbatch_tokens=budget, logprob_chunk=3)
    metrics = subject.update(OTHERS)
    expected, value = by_hand(OTHERS, aggregation)
    for mine, theirs in zip(gradients(subject), expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-4)
    assert metrics["loss"] == pytest.approx(value, rel=1e-4)
    assert metrics["optimizer_steps"] == 1


def test_weights_of_tokens_by_hand() -> None:
    """Two tips are held, of 2 and 5 tokens: neither the one with credit nor another role thins out their KL."""
    weights = [
        [0, 0.3 / 2 / 2, 0], [0, 0.3 / 2 / 5, 0], [1 / 3, 0, 0], [0, 0.7 / 4, 0], [0, 0, 0.2 / 2 / 2],
        [0, 0, 0.2 / 2 / 6],
    ]  # fmt: skip
    np.testing.assert_allclose(compute_token_weights(OTHERS, "token"), weights)
    # Four tips held a little leave the one that is held firmly as it was: LaMer's, beside one that is anchored.
    rows = [make_row("tip", 1, 2, hold=0.4), *(make_row("tip", seed, 5, hold=0.02) for seed in range(2, 6))]
    np.testing.assert_allclose(compute_token_weights(rows, "token"), [[0, 0.4 / 2, 0], *[[0, 0.02 / 4 / 5, 0]] * 4])
    credited = [make_row("tip", 1, 2, advantage=1.0), make_row("tip", 2, 6, advantage=-1.0)]
    np.testing.assert_allclose(compute_token_weights(credited, "token"), [[1 / 8, 0, 0], [1 / 8, 0, 0]])
    np.testing.assert_allclose(compute_token_weights(credited, "sequence"), [[1 / 2 / 2, 0, 0], [1 / 2 / 6, 0, 0]])


@pytest.mark.parametrize("settings", [{}, {"kl": 0.1}, {"kl": 0.1, "mask_kl": False}])
@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_other_roles_leave_the_gradient_of_the_episodes_as_it_is(settings: Settings, aggregation: str) -> None:
    settings = {"mask_logprob": -4.0, "aggregation": aggregation} | settings
    alone, together, others = (learner(**settings) for _ in range(3))
    metrics = alone.update(acted())
    both = together.update([*acted(), *OTHERS])
    others.update(OTHERS)
    assert metrics["masked_fraction"] > 0
    for mine, theirs, added in zip(gradients(together), gradients(alone), gradients(others), strict=True):
        torch.testing.assert_close(mine, theirs + added, atol=1e-6, rtol=1e-4)
    changed = {"seconds", "seconds_reference", "tokens_trained", "tokens_forward", "loss", "grad_norm"}
    same = metrics.keys() - changed
    assert {name: both[name] for name in same} == pytest.approx({name: metrics[name] for name in same})


def test_mini_batches_share_out_each_role_evenly() -> None:
    num = {"tip": 6, "reading": 5, "rehearsal": 2}
    others = [make_row(role, i, 2, hold=0.1) for role, many in num.items() for i in range(many)]
    rows = [*acted(6), *others]
    for seed in range(5):
        batches = list(iter_minibatches(rows, 2, np.random.default_rng(seed), epochs=2))
        used = Counter(i for chosen in batches for i in chosen)
        assert used == {i: 2 if row.role == "episode" else 1 for i, row in enumerate(rows)}
        for role, many in num.items():
            dealt = [sum(rows[i].role == role for i in chosen) for chosen in batches]
            assert max(dealt) - min(dealt) <= 1, (role, dealt)
            assert sum(dealt) == many
            if many < len(batches):
                first, *_, last = [step for step, number in enumerate(dealt) if number]
                assert last - first >= len(batches) / 2 - 1, "spread over the whole update"


def test_metrics_are_of_the_rows_that_have_the_term() -> None:
    metrics = learner(epochs=2, lr=1e-8).update([*acted(), *OTHERS])
    tokens = [metrics[f"tokens_{name}"] for name in ("tip", "reading", "rehearsal")]
    assert tokens == [10, 4, 8], "used once an update, however often the episodes are"
    assert "kl_to_reference_rehearsal" not in metrics, "nothing of it is compared with the start model"
    assert "nll_tip" not in metrics
    (_, tip), (_, read) = (
        by_hand([row for row in OTHERS if row.role == role and row.hold], "token", "token")
        for role in ("tip", "reading")
    )
    assert metrics["kl_to_reference_tip"] == pytest.approx(tip / 0.3, rel=1e-3)
    assert metrics["kl_to_reference_reading"] == pytest.approx(read / 0.7, rel=1e-3)
    (_, likely) = by_hand(OTHERS[4:], "token", "token")
    assert metrics["nll_rehearsal"] == pytest.approx(likely / 0.2, rel=1e-3)
    trained = sum(sum(row.loss_mask) for row in acted())
    assert metrics["tokens_trained"] == 2 * trained + 10 + 4 + 8
    assert metrics["rows"] == len(acted()), "rows and advantages are those of the episodes"


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning", "ignore:.*tie_word_embeddings.*")
@pytest.mark.parametrize("targets", [["q_proj", "down_proj"], ["q_proj", "lm_head"]])
def test_adapters_are_held_to_what_they_were_at_the_start(targets: list[str]) -> None:
    """Also where they sit on the head, whose distributions are made of kept states long after the start."""
    model, start = (adapted(targets) for _ in range(2))
    subject = Learner(model, OptimConfig(lr=0.02, minibatch=0), LossConfig(mask_logprob=None))
    row = make_row("tip", 1, 6, hold=1.0)
    assert subject.update([row])["kl_to_reference_tip"] == pytest.approx(0.0, abs=1e-6)
    for _ in range(3):
        subject.update([make_row("rehearsal", 2, 6, imitate=1.0)])
    ids = torch.tensor([row.token_ids])
    with torch.no_grad():
        now, then = (m(input_ids=ids).logits[0, 2:-1].log_softmax(-1) for m in (model, start))
    expected = float((then.exp() * (then - now)).sum(-1).mean())
    assert expected > 0.01
    assert subject.update([row])["kl_to_reference_tip"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
def test_checkpointing_outlasts_a_pass_of_the_reference() -> None:
    """With adapters the reference model has the same modules, and is computed in evaluation mode."""
    model, training = adapted(["q_proj"]), list[bool]()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    layers = [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]
    layers[-1].register_forward_pre_hook(
        lambda it, _: training.append(it.training) if torch.is_grad_enabled() else None
    )
    Learner(model, OptimConfig(lr=0.02, minibatch=1), LossConfig(mask_logprob=None)).update([*acted(), *OTHERS])
    assert len(training) > 4
    assert all(training)


def adapted(targets: list[str]) -> nn.Module:
    """Adapters that have learned something before: the base alone is not the start model."""
    model = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=targets, lora_dropout=0.0))
    draw_adapters(model, 7, 0.1)
    return model


def test_the_divergence_by_hand() -> None:
    """KL(teacher || student) = 1/2 ln 2 + 1/2 ln 2/3 for (1/2, 1/2) and (1/4, 3/4); what both rule out counts 0."""
    scorer = TokenScorer.__new__(TokenScorer)
    scorer.parts, scorer.temperature, scorer.chunk = None, 1.0, 2
    never = -torch.inf
    teacher = torch.tensor([[0.5, 0.5, 0.0]] * 3).log()
    student = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.5, 0.0], [0.75, 0.25, 0.0]]).log()
    assert (teacher[:, 2] == never).all()
    student.requires_grad_()
    kl = scorer.compute_kl(student, lambda states: states, teacher)
    expected = 0.5 * np.log(2) + 0.5 * np.log(2 / 3)
    assert kl.tolist() == pytest.approx([expected, 0.0, expected], abs=1e-6)
    kl.sum().backward()
    assert student.grad[:, :2].tolist() == [pytest.approx(row) for row in [[-0.25, 0.25], [0, 0], [0.25, -0.25]]]
    assert scorer.compute_kl(student[:0], lambda states: states, teacher[:0]).shape == (0,)


# -- anchors


def played() -> list[TrajectoryGroup]:
    """Four episodes that were shown tips and are trained without, one without any tip, one trained with them."""
    modes: list[tuple[Mode, bool]] = [("off_policy", True)] * 4 + [("off_policy", False), ("on_policy_tips", True)]
    episodes = []
    for i, (mode, has_tips) in enumerate(modes):
        one = episode(random.Random(i), 2, mode, tips=has_tips)
        tips = (Tip("task", "left", "", 1.0),) if has_tips else ()
        episodes.append(replace(one, steps=tuple(replace(step, tips=tips) for step in one.steps), member=i))
    return [group(*episodes[:3]), group(*episodes[3:])]


def anchors(tips: float, reading: float) -> list[Sample]:
    written = [Completion((1, 2), (3, i), (-1.0, -0.5), str(i)) for i in range(7)] + [Completion((1,), (), (), "")]
    algorithm = AlgorithmConfig(anchor_tips=tips, anchor_reading=reading)
    return build_anchor_samples(written, played(), algorithm, "auto", 0)


def test_anchor_rows_keep_the_sampling_context() -> None:
    tip, *_ = anchors(1, 0)
    assert tip == Sample((1, 2, 3, 0), (0, 0, 1, 1), (0.0, 0.0, -1.0, -0.5), (0.0,) * 4, role="tip", hold=0.4)
    read = anchors(0, 1)
    readers = [t for g in played() for t in g.trajectories][:4]
    for row, one in zip(read, readers, strict=True):
        last = one.steps[-1].completion
        assert row.token_ids == last.prompt_ids + last.token_ids, "the context with the tips"
        assert not row.off_policy
    assert Counter(row.role for row in anchors(3 / 7, 0.5)) == {"tip": 3, "reading": 2}
    assert not anchors(0, 0)
