"""bfloat16: what was sampled over a cache is what the learner scores, within what 8 bits of mantissa allow."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from puppet import play
from tiny import draw_adapters, tiny_model, with_logprobs
from trailnotes.config.model_schema import LoraConfig, ModelConfig
from trailnotes.config.schema import LossConfig, OptimConfig
from trailnotes.learner.learner import Learner
from trailnotes.learner.samples import build_samples, replace_behavior_logprobs
from trailnotes.policies.hf import policy
from trailnotes.policies.hf.adapters import add_adapters
from trailnotes.policies.hf.attention import ATTENTION_NAME, attend
from trailnotes.policies.hf.decoder import SlotDecoder, make_decoder
from trailnotes.policies.hf.policy import HFPolicy, load_model
from trailnotes.types import Sample, TrajectoryGroup

pytestmark = pytest.mark.usefixtures("fast_bfloat16")
HALF = torch.bfloat16
NATS = 0.01  # by which a log-probability may differ on average, and the mean ratio from 1


def make_adapted_model(dtype: torch.dtype = HALF, size: float = 0.1) -> Any:
    """A tiny model with adapters that change something."""
    model = add_adapters(tiny_model(dtype=dtype), LoraConfig(rank=4), base="")
    draw_adapters(model, 1, size, "lora_B")
    return model.eval()


def draw_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(HALF)


# --- the attention of one token


@pytest.mark.parametrize("num_new", [1, 4])
def test_attention_over_a_cache_is_that_of_torch(num_new: int) -> None:
    """Six heads of which three share keys, 2 rows, 40 columns; the second row sees 25 of them."""
    query, key, value = draw_tensor(2, 6, num_new, 8), draw_tensor(2, 2, 40, 8), draw_tensor(2, 2, 40, 8)
    hidden = torch.arange(40) >= torch.tensor([40, 25])[:, None, None, None]
    mask = torch.zeros(2, 1, num_new, 40, dtype=HALF).masked_fill(hidden, torch.finfo(HALF).min)
    mixed = attend(SimpleNamespace(num_key_value_groups=3), query, key, value, mask, scaling=0.5)[0]
    wide = [states.double() for states in (query, key.repeat_interleave(3, 1), value.repeat_interleave(3, 1))]
    wanted = scaled_dot_product_attention(*wide, attn_mask=~hidden, scale=0.5).transpose(1, 2)
    assert mixed.shape == (2, num_new, 6, 8)
    torch.testing.assert_close(mixed.double(), wanted, rtol=2e-2, atol=2e-2)


def test_passes_without_a_cache_are_those_of_transformers() -> None:
    """Bit for bit."""
    ids, model = torch.tensor([[5, 6, 7, 8]]), tiny_model(dtype=HALF)
    before = model(ids).logits
    make_decoder(model, 64)
    assert model.config._attn_implementation == ATTENTION_NAME
    assert model(ids).logits.equal(before)


@pytest.mark.parametrize(("dtype", "tolerance"), [(HALF, 0.05), (torch.float32, 1e-4)])
def test_episodes_that_share_tokens_get_the_logits_of_each_alone(dtype: torch.dtype, tolerance: float) -> None:
    """Twelve episodes of two prompts, which take three actions and see three observations of other lengths."""
    model, logits = make_adapted_model(dtype), []
    for shared_prompts in (True, False):
        decoder = make_decoder(model, 256, shared_prompts=shared_prompts)
        assert isinstance(decoder, SlotDecoder)
        assert decoder.shares_tokens == shared_prompts
        rng, slots = random.Random(0), [decoder.acquire() for _ in range(12)]
        common, *prompts = (rng.choices(range(48), k=size) for size in (20, 9, 5))
        seen = [rng.choices(range(48), k=size) for size in (2, 17, 40)]
        turns = [
            [[*common, *prompts[i % 2]] for i in range(12)],
            [[5 + i % 3] for i in range(12)],
            [[*seen[i % 3], *[7] * (i == 4)] for i in range(12)],
            [[9, 10 + i] for i in range(5)],  # the others are over
        ]
        logits.append([decoder.extend(list(zip(slots, new, strict=False))) for new in turns])
    for shared, alone in zip(*logits, strict=True):
        torch.testing.assert_close(shared.float(), alone.float(), rtol=0, atol=tolerance * float(alone.float().std()))


def test_adapters_in_one_sum_are_those_of_peft() -> None:
    x, ours = draw_tensor(2, 5, 32), make_adapted_model(size=0.5).base_model.model.model.layers[0].self_attn.q_proj
    peft_layer = copy.copy(ours)
    peft_layer.__class__ = type(ours).__mro__[1]
    torch.testing.assert_close(ours(x), peft_layer(x), rtol=2e-2, atol=2e-2)
    assert not ours(x).equal(ours.base_layer(x))
    ours.enable_adapters(False)
    assert ours(x).equal(ours.base_layer(x))


# --- ratio, resume, adapters


def load_sharpened_model(start_model: Path, *, lora: bool) -> tuple[Any, Any]:
    """The start model in bfloat16, its weights tripled, so that its distributions are not flat; and its tokenizer."""
    settings = ModelConfig(path=str(start_model), device="cpu", dtype="bfloat16", lora=LoraConfig(enabled=lora, rank=4))
    torch.manual_seed(0)
    model, tokenizer = load_model(settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
            elif parameter.ndim == 2 and "lora_" not in name:
                parameter.mul_(3)
    return model, tokenizer


@pytest.mark.parametrize("lora", [False, True])
def test_the_first_step_has_a_ratio_of_one(start_model: Path, lora: bool) -> None:
    """Sampled one by one over a cache, scored in one pass: apart by rounding, and by no more than that on average."""
    model, tokenizer = load_sharpened_model(start_model, lora=lora)
    words = ["", " key", " door north", " key and door" * 4, " a", " north" * 9]
    settings = {"max_action_tokens": 8, "stop": ()}
    episodes = tuple(play(HFPolicy(model, tokenizer), more=more, **settings)[0] for more in words)
    samples = build_samples([TrajectoryGroup(episodes[0].task, episodes)], [[(-1.0) ** member for member in range(6)]])
    learner = Learner(model, OptimConfig(minibatch=0, lr=1e-6), LossConfig())
    apart = [
        abs(mine - theirs)
        for row, scored in zip(samples, learner.logprobs(samples), strict=True)
        for mine, theirs, trained in zip(scored, row.behavior_logprobs, row.loss_mask, strict=True)
        if trained
    ]
    assert sum(apart) / len(apart) < NATS
    assert learner.update(samples)["ratio_mean"] == pytest.approx(1, abs=NATS)


@pytest.mark.parametrize("lora", [False, True])
def test_denominators_of_the_learner_make_a_ratio_of_exactly_one(lora: bool) -> None:
    model = make_adapted_model() if lora else tiny_model(dtype=HALF)
    learner = Learner(model, OptimConfig(minibatch=0), LossConfig())
    rows = with_logprobs(make_rows(), 1)
    metrics = learner.update(replace_behavior_logprobs(rows, learner.logprobs(rows)))
    assert (metrics["ratio_min"], metrics["ratio_mean"], metrics["ratio_max"]) == (1, 1, 1)


def make_rows(num: int = 4) -> list[Sample]:
    rng, rows = random.Random(0), []
    for row in range(num):
        ids = tuple(rng.randrange(48) for _ in range(rng.randint(12, 30)))
        mask = tuple(int(i % 4 > 1) for i in range(len(ids)))
        signed = tuple((-1.0) ** row * m for m in mask)
        rows.append(Sample(ids, mask, tuple(-3.0 * m for m in mask), signed, trajectory=row))
    return rows


def test_adapters_stay_in_float32_and_compute_in_bfloat16() -> None:
    model = make_adapted_model()
    kinds = {parameter.dtype for name, parameter in model.named_parameters() if "lora_" in name}
    assert kinds == {torch.float32}
    seen: set[torch.dtype] = set()
    for name, module in model.named_modules():
        if name.endswith(("lora_A.default", "lora_B.default")):
            module.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
    model(torch.tensor([[5, 6, 7]])).logits.float().sum().backward()
    assert seen == {HALF}
    grads = [p.grad for name, p in model.named_parameters() if "lora_" in name]
    assert all(grad is not None and grad.dtype == torch.float32 for grad in grads)


# --- processors without instructions for it


@pytest.mark.parametrize("lora", [False, True])
def test_a_cpu_without_them_computes_in_float32(start_model: Path, lora: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below adapters lie the rounded weights, which other machines have, too; a whole model learns on its own."""
    monkeypatch.setattr(policy, "multiplies_bfloat16", lambda: False)
    settings = {"path": str(start_model), "device": "cpu", "lora": LoraConfig(enabled=lora, rank=4)}
    exact, ours = (load_model(ModelConfig(dtype=dtype, **settings))[0] for dtype in ("float32", "bfloat16"))
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    for (name, weight), mine in zip(exact.named_parameters(), ours.parameters(), strict=True):
        if "lora_" not in name:
            assert mine.equal(weight.bfloat16().float() if lora else weight)


def test_a_gpu_without_them_warns_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for is_supported, warnings in ((True, 0), (False, 1), (False, 1)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, known=is_supported: known)
        assert policy.choose_dtype(ModelConfig(device="cuda", dtype="bfloat16")) == HALF
        policy.choose_dtype(ModelConfig(device="cuda", dtype="float32"))
        assert caplog.text.count('set model.dtype = "float32"') == warnings
