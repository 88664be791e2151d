"""The estimate of an update against every byte that its tensors hold, counted as they come and go."""

from __future__ import annotations

import random
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, Gemma2Config, Qwen2Config

from trailnotes.config.schema import Config
from trailnotes.learner.sharded import make_learner
from trailnotes.policies.hf.adapters import add_adapters
from trailnotes.runs.estimate.footprint import estimate_footprint, estimate_weight_copies
from trailnotes.runs.estimate.model_shape import infer_model_shape
from trailnotes.types import Sample

pytestmark = pytest.mark.usefixtures("fast_bfloat16")
LORA, AGAIN, HALF = {"lora": {"enabled": True, "rank": 2}}, {"gradient_checkpointing": True}, {"dtype": "bfloat16"}
TOKENS = 256
WIDE = Qwen2Config(
    vocab_size=512, hidden_size=64, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512,
)  # fmt: skip
WORDY = Qwen2Config(
    vocab_size=8192, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
)  # fmt: skip

CAPPED = Gemma2Config(
    vocab_size=8192, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
)  # fmt: skip


class Peak(TorchDispatchMode):
    """The most bytes that tensors have held at a time, of those that any operation has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.most = self._now = 0
        self._seen: dict[int, tuple[weakref.ref[Any], int]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf.untyped_storage())
        self.most = max(self.most, self._now)
        return result

    def _see(self, storage: Any) -> None:
        place, size = storage._cdata, storage.nbytes()
        if place not in self._seen:
            self._seen[place] = weakref.ref(storage, lambda _: self._forget(place)), size
            self._now += size

    def _forget(self, place: int) -> None:
        self._now -= self._seen.pop(place)[1]


def rows(vocabulary: int, kept: bool) -> list[Sample]:
    rng, result = random.Random(0), []
    mask = (0, *(1 - i % 2 for i in range(1, TOKENS)))
    for row in range(3):
        ids = tuple(rng.randrange(vocabulary) for _ in range(TOKENS))
        behavior, advantages = (tuple(m * value for m in mask) for value in (-7.0, (-1.0) ** row))
        result.append(Sample(ids, mask, behavior, advantages, trajectory=row))
        if kept:
            result.append(Sample(ids, mask, behavior, (0.0,) * TOKENS, role="rehearsal", hold=1.0))
    return result


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning", "ignore:.*does more to its logits")
@pytest.mark.parametrize(
    ("architecture", "sections"),
    [
        (WIDE, {}), *((WIDE, {"model": model}) for model in (AGAIN, LORA, HALF, HALF | LORA | AGAIN)),
        (WIDE, {"loss": {"kl": 0.1}}), (WIDE, {"learner": {"packed": "always"}}),
        (WORDY, {}), (WORDY, {"model": HALF | AGAIN}), (WORDY, {"model": LORA}),
        (WORDY, {"model": AGAIN, "rehearsal": {"split": "spare"}, "optim": {"logprob_chunk": 128}}),
        (CAPPED, {"model": LORA | AGAIN}), (CAPPED, {"model": LORA | AGAIN | HALF}),
        (WORDY, {"model": LORA | HALF, "rehearsal": {"split": "spare"}, "optim": {"logprob_chunk": 128}}),
    ],
)  # fmt: skip
def test_an_update_holds_what_was_foretold(architecture: Any, sections: dict[str, Any], tmp_path: Path) -> None:
    architecture.save_pretrained(tmp_path)
    config = Config(
        model={"path": str(tmp_path), "device": "cpu", **sections.get("model", {})},
        optim={"microbatch_tokens": TOKENS, "minibatch": 0, "logprob_chunk": 64, **sections.get("optim", {})},
        rollout={"max_context_tokens": TOKENS},
        engine={"name": "vllm", "urls": ["http://elsewhere:1"]},
        **{name: values for name, values in sections.items() if name not in ("model", "optim")},
    )

    def model() -> Any:
        made: Any = AutoModelForCausalLM.from_config(architecture).to(getattr(torch, config.model.dtype))
        if config.model.gradient_checkpointing:
            made.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return add_adapters(made, config.model.lora, "") if config.model.lora.enabled else made

    with Peak() as counted:
        reference = model() if config.has_reference_model and not config.model.lora.enabled else None
        learner = make_learner(config, model(), reference, None)
        learner.update(rows(architecture.vocab_size, config.has_anchor_rows))
        counted.most = 0
        learner.update(rows(architecture.vocab_size, config.has_anchor_rows))
    shape = infer_model_shape(config.model)
    (device,) = estimate_footprint(config).devices
    for_acting = sum(estimate_weight_copies(config, shape).values())  # nobody acts here
    assert device.peak_without_overhead - for_acting == pytest.approx(counted.most, rel=0.15)
