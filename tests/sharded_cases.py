"""Updates that one process and two must agree on, and the two processes that make them."""

from __future__ import annotations

import os
import random
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from small import small_config
from tiny import episode, group, make_row, tiny_model, with_logprobs
from trailnotes.config.schema import Config, LossConfig, OptimConfig
from trailnotes.learner.learner import Learner
from trailnotes.learner.samples import PackingMode, Ranks, build_samples
from trailnotes.learner.sharded import make_learner
from trailnotes.policies.hf.policy import load_model
from trailnotes.types import Sample

UPDATES = 3
LIMIT = 300.0  # seconds; no test waits for it, however busy the machine is


@dataclass(frozen=True)
class Case:
    """What is learned from, and how."""

    episodes: int = 7
    others: bool = False  # rows of other roles, held and imitated
    lora: bool = False
    reference: bool = False
    checkpointing: bool = False
    packing: PackingMode = "padded"
    untied: bool = False
    capped: bool = False  # more than the head makes the logits
    offload: bool = False
    dtype: torch.dtype = torch.float32
    settings: dict[str, Any] = field(default_factory=dict)


CASES = {
    "grpo": Case(),
    "grpo, one row a mini-batch": Case(3, settings={"minibatch": 1}),
    "grpo, KL, two passes, mini-batches of three": Case(
        reference=True, settings={"kl": 0.1, "epochs": 2, "minibatch": 3}
    ),
    "empo2, the mask and a KL of its own": Case(reference=True, settings={"kl": 0.1, "mask_kl": False}),
    "empo2, means over rows": Case(reference=True, settings={"kl": 0.1, "aggregation": "sequence", "mask_kl": False}),
    "empo2, held rows": Case(others=True, reference=True, settings={"minibatch": 4}),
    "one row of an episode among held ones": Case(1, others=True, reference=True),
    "lora, held rows": Case(others=True, lora=True, settings={"minibatch": 3}),
    "lora, KL": Case(lora=True, settings={"kl": 0.1, "epochs": 2}),
    "recomputed activations": Case(others=True, reference=True, checkpointing=True),
    "joined rows": Case(others=True, reference=True, packing="joined"),
    "shared beginnings": Case(others=True, reference=True, packing="shared"),
    "untied embeddings": Case(untied=True, others=True, reference=True),
    "capped logits": Case(capped=True, others=True, reference=True),
    "states in the host's memory": Case(offload=True),
}


def rows_of(case: Case) -> list[Sample]:
    """Rows of very different lengths, half of them off policy."""
    episodes = [
        episode(random.Random(i), 1 + 2 * (i % 3), ("plain", "off_policy")[i % 2]) for i in range(case.episodes)
    ]
    advantages = [(-1) ** i * (1 + i / 4) for i in range(case.episodes)]
    others = [
        make_row("tip", 1, 2, hold=0.3),
        make_row("tip", 2, 9, hold=0.3, advantage=0.7),
        make_row("rehearsal", 3, 4, hold=1.0, imitate=0.5),
        make_row("reading", 4, 6, hold=0.1),
    ]
    return with_logprobs(build_samples([group(*episodes)], [advantages]) + others * case.others, 1)


def model_of(case: Case, seed: int = 0) -> Any:
    """A tiny model, as the case has it."""
    model: Any = tiny_model(seed, case.dtype)
    if case.untied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone() * 1.1)
        model.config.tie_word_embeddings = False
    if case.capped:
        forward = model.forward

        def capped(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            output.logits = 5.0 * torch.tanh(output.logits / 5.0)
            return output

        model.forward = capped
    if case.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if case.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear"))
    return model


def learn(case: Case, ranks: Ranks | None = None) -> dict[str, Any]:
    """Some updates: the weights, the last metrics, and what the model says afterwards."""
    torch.manual_seed(3)
    # A gradient that is 0 but for rounding moves a weight by up to lr, since AdamW looks at its sign alone.
    settings: dict[str, Any] = {"lr": 1e-4, "minibatch": 0, "microbatch_tokens": 30, "logprob_chunk": 4}
    settings |= {"mask_logprob": -4.0} | case.settings
    optim = OptimConfig(**{name: value for name, value in settings.items() if name in OptimConfig.model_fields})
    loss = LossConfig(**{name: value for name, value in settings.items() if name in LossConfig.model_fields})
    reference = model_of(case, 1) if case.reference else None
    learner = Learner(model_of(case), optim, loss, reference=reference, ranks=ranks)
    learner.packing = case.packing
    rows = rows_of(case)
    metrics = [learner.update(rows, seed=seed) for seed in range(UPDATES)][-1]
    said = [
        learner.logprobs(rows, initial=start) for start in (False, *([True] if case.reference or case.lora else []))
    ]
    return {"weights": learner.weights(), "metrics": metrics, "said": said}


def alone(path: Path) -> None:
    """All cases in this process."""
    found = {name: learn(case) for name, case in CASES.items()}
    torch.save(found, path)


def among(rank: int, world: int, store: str, path: str) -> None:
    """All cases as one of `world` processes; rank 0 writes what it found."""
    from trailnotes.learner.sharding import ShardedRank

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    limit = timedelta(seconds=600)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world, timeout=limit)
    mesh, object_group = init_device_mesh("cpu", (world,)), dist.new_group(backend="gloo", timeout=limit)
    found = {name: learn(case, ShardedRank(mesh, object_group, offload=case.offload)) for name, case in CASES.items()}
    if rank == 0:
        torch.save(found, path)
    dist.destroy_process_group()


def config_of(model: Path, world: int = 2, *, sections: dict[str, Any] | None = None, **learner: Any) -> Config:
    section = {"world_size": world, "timeout": LIMIT} | learner
    own = {"model": {"path": str(model), "device": "cpu"}, "learner": section}
    return small_config(**own | (sections or {}))


def one_process(config: Config) -> Any:
    """The same by one process."""
    model = load_model(config.model)[0]
    return make_learner(config, model, None, None)


def difference(one: Any, other: Any) -> float:
    mine, theirs = one.weights(), other.weights()
    assert list(mine) == list(theirs)
    return max(float((tensor - theirs[name]).abs().max()) for name, tensor in mine.items())
