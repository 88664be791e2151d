"""Learners from the config of a run: of a whole model in this process, or of one that several processes share."""

from __future__ import annotations

import atexit
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trailnotes.config.schema import Config
from trailnotes.config.seeds import derive_seed
from trailnotes.errors import ConfigError, LearnerError
from trailnotes.learner.learner import Learner
from trailnotes.learner.logprobs import TokenScorer, is_packing_supported, is_padding_free
from trailnotes.learner.ranks import (
    SHARED_ERRORS,
    LearnerGroup,
    RankMonitor,
    get_torchrun_rank,
    init_process_group,
    resolve_device_type,
    start_ranks,
)
from trailnotes.learner.samples import PackingMode, Ranks
from trailnotes.learner.sharding import ShardedRank
from trailnotes.policies.hf.adapters import get_trained_parameters
from trailnotes.policies.hf.policy import load_model
from trailnotes.types import Sample

RankStarter = Callable[[], RankMonitor]
"""Starts the other ranks of a run."""


def make_learner(
    config: Config, model: Any, reference: Any, dump_dir: Path | None, start: RankStarter | None = None
) -> Learner | ShardedLearner:
    """Make what updates the model of a run: this process alone, or `learner.world_size` of them.

    `reference` is the reference model, of which several processes load their own; the rest is as in `ShardedLearner`.
    """
    if config.learner.world_size == 1:
        return build_single(config, model, reference, dump_dir)
    return ShardedLearner(config, model, dump_dir, start)


class ShardedLearner:
    """A `Learner` whose model is split over `learner.world_size` processes, of which this is rank 0.

    It announces each call to the other ranks, does the same itself, and copies new weights to the model that acts. A
    failure of any rank ends all: the call under way raises `LearnerError` with the reason.

    Args:
        config: of the run.
        model: the one that acts here. None: it acts elsewhere.
        dump_dir: for batches whose loss or gradient is not finite; beside the checkpoints.
        start: starts the other ranks on other machines; None: on this one, unless torchrun has started them.
    """

    def __init__(
        self, config: Config, model: Any = None, dump_dir: Path | None = None, start: RankStarter | None = None
    ) -> None:
        if start and get_torchrun_rank():
            raise ConfigError("torchrun started the processes of the learner: leave cluster.address empty, or torchrun")
        self.model = model
        self._names: dict[str, Any] = get_trained_parameters(model) if model is not None else {}
        own = model is not None and hasattr(model, "disable_adapter")
        self._start = {p: p.detach().clone() for p in model.parameters() if p.requires_grad} if own else {}
        self._group: LearnerGroup | None = None
        self._monitor = (start or partial(start_ranks, config))()
        atexit.register(self.close)
        try:
            self._monitor.wait_until_ready()
            with self._abort_on_error():
                self._group = init_process_group(
                    0, config.learner.world_size, resolve_device_type(config), config.learner.timeout,
                    self._monitor.store, interface=self._monitor.interface, local_rank=self._monitor.local_rank,
                )  # fmt: skip
                dumps = dump_dir and dump_dir.absolute()  # a rank may work in another directory
                self._group.broadcast_call(("build", (config, dumps), {}))
                self._learner = build_rank(self._group, config, dumps)
        except BaseException:
            self._abort()
            raise

    @property
    def steps(self) -> int:
        return self._learner.steps

    def logprobs(self, samples: Sequence[Sample], *, of_start: bool = False) -> list[tuple[float, ...]]:
        return self._call("logprobs", list(samples), of_start=of_start)  # type: ignore[no-any-return]

    def update(self, samples: Sequence[Sample], seed: int = 0, lr_scale: float = 1.0) -> dict[str, float]:
        metrics: dict[str, float] = self._call("update", list(samples), seed, lr_scale)
        self._copy_to_policy()
        return metrics

    def weights(self) -> dict[str, Tensor]:
        return self._call("weights")  # type: ignore[no-any-return]

    def export(self, path: Path, tokenizer: Any = None) -> None:
        self._call("export", path.absolute(), tokenizer)

    def save(self, path: Path) -> None:
        self._call("save", path.absolute())  # all ranks must see it

    def load(self, path: Path) -> None:
        self._call("load", path.absolute())
        self._copy_to_policy()

    @contextmanager
    def use_initial_adapters(self) -> Iterator[None]:
        with Ranks().swap_weights(self.model, self._start):
            yield

    def close(self) -> None:
        atexit.unregister(self.close)
        group, self._group = self._group, None
        if group is not None:
            with suppress(RuntimeError):
                group.broadcast_call(None)
                dist.destroy_process_group()
        self._monitor.end(at_once=group is None)

    def _call(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        if self._group is None:
            raise LearnerError("the processes of the learner have ended: start the run again, and it resumes")
        with self._abort_on_error():
            self._group.broadcast_call((name, arguments, keywords))
            return getattr(self._learner, name)(*arguments, **keywords)

    @contextmanager
    def _abort_on_error(self) -> Iterator[None]:
        """Kill all ranks on an error of the block that is not shared by all, and raise it with its cause."""
        try:
            yield
        except SHARED_ERRORS:
            raise
        except RuntimeError as error:
            reason = self._monitor.explain(error)
            self._abort()
            raise LearnerError(reason) from error
        except BaseException:  # such as a second Ctrl-C: the others are in the middle of the call
            self._abort()
            raise

    def _abort(self) -> None:
        self._group = None
        self._monitor.end(at_once=True)
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()

    @torch.no_grad()
    def _copy_to_policy(self) -> None:
        if self.model is not None:
            for name, tensor in self.weights().items():
                self._names[name].copy_(tensor)


def build_single(config: Config, model: Any, reference: Any, dump_dir: Path | None) -> Learner:
    """Build a learner of `model`, in this process. Raises `ConfigError` for settings that do not fit the model."""
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
        base.set_attn_implementation(attention)
    return learner


def _choose_packing(config: Config, model: Any) -> PackingMode:
    attention, packed = config.model.attn_implementation, config.learner.packed
    skips = attention.startswith(("flash", "flex")) or (not attention and is_padding_free(model))
    if packed == "never" or (packed == "auto" and not skips):
        return "padded"
    how: PackingMode = "shared" if packed == "shared" else "joined"
    if how == "shared" and skips:
        raise ConfigError('learner.packed = "shared" needs an attention that takes any mask: set '
                          'model.attn_implementation = "sdpa", or learner.packed = "auto"')  # fmt: skip
    if is_packing_supported(TokenScorer(model), how, config.rollout.max_context_tokens):
        return how
    if packed == "auto":
        return "padded"
    raise ConfigError(f'learner.packed = {packed!r} changes what this model computes: set it to "auto" or "never"')


def _require_plain_head(config: Config, model: Any) -> None:
    """Refuse a head that would be needed with its adapters and without them while it is gathered once."""
    head = model.get_output_embeddings() if config.model.lora.enabled and config.has_anchor_rows else None
    if head is not None and any(parameter.requires_grad for parameter in head.parameters()):
        raise ConfigError("several processes cannot anchor rows where the output embedding has adapters: leave it out "
                          "of model.lora.target_modules, or set learner.world_size = 1")  # fmt: skip


def _require_same_weights(ranks: ShardedRank, model: torch.nn.Module) -> None:
    """Refuse ranks whose models differ, by a few numbers of each weight."""
    sums = [(name, p.shape, p.detach().flatten()[:64].double().sum().item()) for name, p in model.named_parameters()]
    first, *others = ranks.gather(sums)
    for rank, theirs in enumerate(others, start=1):
        if theirs != first:
            raise LearnerError(f"rank {rank} of the learner loaded other weights than rank 0: model.path must be the "
                               "same model on every machine")  # fmt: skip


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
        raise ConfigError(f"rank {seen.index(False)} of the learner does not see {directory}, where each rank saves "
                          "its part of the model: put --run-dir on a file system that all machines share")  # fmt: skip
