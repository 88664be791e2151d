"""Learners from the config of a run: of a whole model, or of a rank's part of one."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import torch

from trailnotes.config.schema import Config
from trailnotes.config.seeds import derive_seed
from trailnotes.errors import ConfigError, LearnerError
from trailnotes.learner.learner import Learner
from trailnotes.learner.logprobs import TokenScorer, is_packing_supported, is_padding_free
from trailnotes.learner.process_group import LearnerGroup
from trailnotes.learner.samples import PackingMode, Ranks
from trailnotes.learner.sharding import ShardedRank
from trailnotes.policies.hf.policy import load_model


def build_single(config: Config, model: Any, reference: Any, dump_dir: Path | None) -> Learner:
    """Build a learner of `model`, in this process.

    Raises:
        ConfigError: `learner.packed` does not fit the model.
    """
    return _make_learner(config, model, reference, dump_dir, _choose_packing(config, model))


def build_rank(group: LearnerGroup, config: Config, dump_dir: Path | None) -> Learner:
    """Build the learner of this rank's part of the model in `config`, with a reference model where one is needed.

    Every rank loads the whole model into its host's memory, and moves a block at a time to its device.
    """
    on_host = config.model.model_copy(update={"device": "cpu", "attn_implementation": ""})
    torch.manual_seed(derive_seed(config.run.seed, "weights"))  # adapters start at random
    model = load_model(on_host)[0]
    _require_plain_head(config, model)
    packing = _choose_packing(config, model)
    whole = not config.model.lora.enabled
    dtype = getattr(torch, config.model.dtype) if whole and config.model.dtype != "float32" else None
    ranks = ShardedRank(group.mesh, group.object_group, dtype, offload=config.learner.offload)
    _require_same_weights(ranks, model)
    if dump_dir is not None:
        _require_shared_directory(ranks, dump_dir.parent)
    reference = load_model(on_host)[0] if config.has_reference_model and whole else None
    return _make_learner(config, model, reference, dump_dir, packing, ranks)


def _make_learner(
    config: Config, model: Any, reference: Any, dump_dir: Path | None, packing: PackingMode, ranks: Ranks | None = None
) -> Learner:
    learner = Learner(
        model, config.optim, config.loss, temperature=config.rollout.temperature,
        reference=reference, dump_dir=dump_dir, ranks=ranks,
    )  # fmt: skip
    learner.packing = packing
    attention = config.model.attn_implementation if ranks else ""
    for each in learner.models if attention else ():  # last: models are checked on the host, without it
        base: Any = each
        base = base.get_base_model() if hasattr(base, "get_base_model") else base
        try:
            base.set_attn_implementation(attention)
        except (ImportError, ValueError) as error:
            line = " ".join(str(error).split())
            raise ConfigError(f"model.attn_implementation = {attention!r} does not work here: {line}") from error
    return learner


def _choose_packing(config: Config, model: Any) -> PackingMode:
    attention, packed = config.model.attn_implementation, config.learner.packed
    skips = attention.startswith(("flash", "flex")) or (not attention and is_padding_free(model))
    if packed == "never" or (packed == "auto" and not skips):
        return "padded"
    how: PackingMode = "shared" if packed == "shared" else "joined"
    if how == "shared" and skips:
        raise ConfigError(
            'learner.packed = "shared" needs an attention that takes any mask: set '
            'model.attn_implementation = "sdpa", or learner.packed = "auto"'
        )
    if is_packing_supported(TokenScorer(model), how, config.rollout.max_context_tokens):
        return how
    if packed == "auto":
        return "padded"
    raise ConfigError(
        f"learner.packed = {packed!r}, but this model makes something else of rows that are laid out so: set it "
        'to "auto" or "never"'
    )


def _require_plain_head(config: Config, model: Any) -> None:
    """Refuse a head that would be needed with its adapters and without them while it is gathered once."""
    head = model.get_output_embeddings() if config.model.lora.enabled and config.has_anchor_rows else None
    if head is not None and any(parameter.requires_grad for parameter in head.parameters()):
        raise ConfigError(
            "several processes cannot hold rows to the start model where the output embedding has adapters: leave it "
            "out of model.lora.target_modules, or set learner.world_size = 1"
        )


def _require_same_weights(ranks: ShardedRank, model: torch.nn.Module) -> None:
    """Refuse ranks whose models differ, by a few numbers of each weight."""
    sums = [(name, p.shape, p.detach().flatten()[:64].double().sum().item()) for name, p in model.named_parameters()]
    first, *others = ranks.gather(sums)
    for rank, theirs in enumerate(others, start=1):
        if theirs != first:
            raise LearnerError(
                f"rank {rank} of the learner loaded other weights than rank 0: model.path must hold the same model on "
                "every machine"
            )


def _require_shared_directory(ranks: ShardedRank, directory: Path) -> None:
    """Refuse ranks that do not see a file that rank 0 leaves in the directory of the run."""
    file = directory / f".seen-{ranks.gather(secrets.token_hex(8))[0]}"
    if ranks.rank == 0:
        directory.mkdir(parents=True, exist_ok=True)
        file.touch()
    ranks.gather(None)  # it is there now
    seen = ranks.gather(file.exists())
    if ranks.rank == 0:
        file.unlink()
    if not all(seen):
        raise ConfigError(
            f"rank {seen.index(False)} of the learner does not see the run directory {directory}, in which each rank "
            "saves its part of the model: put --run-dir on a file system that all machines share"
        )
