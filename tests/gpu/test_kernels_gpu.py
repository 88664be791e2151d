"""What only a GPU can show: kernels that skip padding, nccl, the memory that was foretold, an engine that sleeps."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import FileStore
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from trailnotes.config.schema import Config
from trailnotes.learner.learner import Learner
from trailnotes.learner.ranks import LOOPBACK, LearnerGroup, init_process_group
from trailnotes.learner.sharded import make_learner
from trailnotes.learner.sharding import ShardedRank
from trailnotes.policies.hf.adapters import add_adapters
from trailnotes.runs.estimate.footprint import estimate_footprint
from trailnotes.types import Message, Sample, Sampling

VLLM = os.environ.get("TRAILNOTES_TEST_VLLM", "")  # a Python that has it

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),
]


def shape(size: int = 64, layers: int = 2, vocabulary: int = 256) -> Qwen2Config:
    """Heads of 16 channels and more, which is the least that flex attention takes."""
    return Qwen2Config(
        vocab_size=vocabulary, hidden_size=size, intermediate_size=4 * size, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.05,
    )  # fmt: skip


def model_of(config: Config, architecture: Qwen2Config) -> Any:
    torch.manual_seed(0)
    model: Any = Qwen2ForCausalLM(architecture).to("cuda", getattr(torch, config.model.dtype))
    if config.model.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return add_adapters(model, config.model.lora, "").to("cuda") if config.model.lora.enabled else model


def settings(model: dict[str, Any], learner: dict[str, Any] | None = None, tokens: int = 512) -> Config:
    return Config(
        model={"path": "somewhere", "device": "cuda", **model},
        learner=learner or {},
        optim={"lr": 1e-4, "minibatch": 0, "microbatch_tokens": tokens},
        rollout={"max_context_tokens": tokens},
        engine={"name": "vllm", "urls": ["http://elsewhere:1"]},
    )


def rows(num: int, longest: int, vocabulary: int = 256) -> list[Sample]:
    rng, found = random.Random(0), []
    for row in range(num):
        length = longest - 7 * row
        mask = tuple(i // 8 % 2 for i in range(length))
        behavior, advantages = (tuple(m * value for m in mask) for value in (-5.5, (-1.0) ** row))
        ids = tuple(rng.randrange(vocabulary) for _ in range(length))
        found.append(Sample(ids, mask, behavior, advantages, trajectory=row))
    return found


# -- attention that skips what lies between joined rows


@pytest.mark.filterwarnings("ignore")  # compilers and kernels have much to say that is not ours
@pytest.mark.parametrize("attention", ["flash_attention_2", "flex_attention", "sdpa"])
def test_joined_rows_are_what_padded_ones_are(attention: str) -> None:
    if attention == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        pytest.skip("flash-attn is not installed")
    found = []
    for learner in ({"attention": attention, "packed": "always"}, {"attention": "sdpa", "packed": "never"}):
        config = settings({"dtype": "bfloat16"}, learner)
        subject = make_learner(config, model_of(config, shape()), None, None)
        scored = subject.logprobs(rows(6, 96))
        found.append((scored, subject.update(rows(6, 96))))
    (joined, one), (padded, other) = found
    for mine, theirs in zip(joined, padded, strict=True):
        assert mine == pytest.approx(theirs, abs=0.05)  # bfloat16 has 8 bits of mantissa
    assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=0.05)
    assert one["tokens_forward"] < other["tokens_forward"]


# -- nccl


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LearnerGroup]:
    yield init_process_group(0, settings({}), FileStore(str(tmp_path / "store"), 1), interface=LOOPBACK)
    dist.destroy_process_group()


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("offload", [False, True])
def test_one_rank_over_nccl_is_one_process(group: LearnerGroup, lora: bool, offload: bool) -> None:
    config = settings({"lora": {"enabled": lora}})
    found = []
    for ranks in (None, ShardedRank(group.mesh, group.object_group, offload=offload)):
        subject = Learner(model_of(config, shape()), config.optim, config.loss, ranks=ranks)
        for seed in range(3):
            subject.update(rows(6, 96), seed=seed)
        found.append(subject.weights())
    alone, sharded = found
    assert sharded.keys() == alone.keys()
    for name, tensor in alone.items():
        torch.testing.assert_close(sharded[name], tensor, atol=1e-5, rtol=0.0)


# -- memory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_an_update_takes_the_memory_that_was_foretold(dtype: str, lora: bool, again: bool, tmp_path: Path) -> None:
    architecture = shape(1024, 12, 32768)
    architecture.save_pretrained(tmp_path)
    config = settings(
        {"path": str(tmp_path), "dtype": dtype, "gradient_checkpointing": again, "lora": {"enabled": lora}},
        {"packed": "never", "attention": "sdpa"},
        tokens=2048,
    )
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    subject = make_learner(config, model_of(config, architecture), None, None)
    subject.update(rows(4, 2048, 32768))
    torch.cuda.reset_peak_memory_stats()
    subject.update(rows(4, 2048, 32768))
    peak = torch.cuda.max_memory_allocated() - before
    (device,) = estimate_footprint(config).devices
    assert device.peak_without_overhead == pytest.approx(peak, rel=0.15)


# -- an engine beside the learner


@pytest.mark.vllm
@pytest.mark.skipif(not VLLM, reason="TRAILNOTES_TEST_VLLM names no Python with vLLM")
@pytest.mark.parametrize("shared", [False, True], ids=["files", "ipc"])
def test_an_engine_that_sleeps_leaves_the_card_and_wakes_as_it_was(
    start_model: Path, tmp_path: Path, shared: bool
) -> None:
    from trailnotes.policies.vllm import make_vllm_policy

    tokenizer = AutoTokenizer.from_pretrained(start_model)
    model = Qwen2ForCausalLM(shape(256, 2, len(tokenizer) + 64)).to("cuda")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    engine = {"name": "vllm", "python": VLLM, "device_memory": 0.3, "shared_card": shared}
    config = Config(model={"path": str(tmp_path), "device": "cuda"}, engine=engine)

    async def said(policy: Any) -> tuple[int, ...]:
        policy.open_episode("one")
        found = await policy.generate([Message("user", "go north")], Sampling(max_tokens=8, temperature=0.0), "one")
        policy.close_episode("one")
        return tuple(found.token_ids)

    async def play(policy: Any) -> None:
        before = await said(policy)
        awake, whole = torch.cuda.mem_get_info()
        await policy.sleep()
        asleep, _ = torch.cuda.mem_get_info()
        assert asleep - awake > 0.15 * whole, "most of its share"
        if await policy.wake():
            await policy.load(dict(model.named_parameters()), 1)
        assert await said(policy) == before

    policy = make_vllm_policy(config, trains=True)
    try:
        asyncio.run(play(policy))
    finally:
        policy.close()
