"""Learners from the config of a run: of a whole model in this process, or of one that several processes share.

Ranks above 0 repeat the calls of rank 0; those of this machine are `python -m trailnotes.learner.sharded`.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError, LearnerError, format_error
from trailnotes.learner import ranks
from trailnotes.learner.learner import Learner
from trailnotes.learner.logprobs import choose_packing
from trailnotes.learner.samples import PackingMode, Ranks
from trailnotes.learner.sharding import ShardedRank
from trailnotes.policies.hf.policy import choose_dtype, load_model
from trailnotes.types import Sample, derive_seed


def make_learner(
    config: Config, model: Any, reference: Any, dump_dir: Path | None, monitor: ranks.RankMonitor | None = None
) -> Learner | ShardedLearner:
    """Make what updates the model of a run: this process alone, or `learner.world_size` of them.

    Several processes load `model` and `reference`, the reference model, by themselves; `monitor` is as in
    `ShardedLearner`. Raises `ConfigError` for settings that do not fit the model.
    """
    if config.learner.world_size > 1:
        return ShardedLearner(config, dump_dir, monitor)
    return _build_learner(config, model, reference, dump_dir, choose_packing(config, model))


class ShardedLearner:
    """A `Learner` whose model is split over `learner.world_size` processes, of which this is rank 0.

    It announces each call to the other ranks, and does the same itself. A failure of any rank ends all: the call under
    way raises `LearnerError` with the reason.

    Args:
        config: of the run.
        dump_dir: for batches whose loss or gradient is not finite; beside the checkpoints.
        monitor: of ranks on other machines; None starts them on this one, unless torchrun has.
    """

    def __init__(self, config: Config, dump_dir: Path | None = None, monitor: ranks.RankMonitor | None = None) -> None:
        self._group: ranks.LearnerGroup | None = None
        self._monitor = monitor = monitor or ranks.start_ranks(config)
        atexit.register(self.close)
        with self._abort_on_error():
            dumps = dump_dir and dump_dir.absolute()  # a rank may work in another directory
            build = {"config": config.model_dump(mode="json"), "dump_dir": dumps and str(dumps)}
            monitor.store.set(ranks.BUILD_KEY, json.dumps(build))
            monitor.wait_until_ready()
            where: dict[str, Any] = {"interface": monitor.interface, "local_rank": monitor.local_rank}
            group = ranks.init_process_group(0, config, monitor.store, **where)
            self._learner = build_rank(group, config, dumps)
            self._group = group

    @property
    def steps(self) -> int:
        return self._learner.steps

    def logprobs(self, samples: Sequence[Sample], *, initial: bool = False) -> list[tuple[float, ...]]:
        return self._call("logprobs", list(samples), initial=initial)  # type: ignore[no-any-return]

    def update(self, samples: Sequence[Sample], seed: int = 0, lr_scale: float = 1.0) -> dict[str, float]:
        return self._call("update", list(samples), seed, lr_scale)  # type: ignore[no-any-return]

    def weights(self) -> dict[str, Tensor]:
        return self._call("weights")  # type: ignore[no-any-return]

    def export(self, path: Path, tokenizer: Any = None) -> None:
        self._call("export", path.absolute(), tokenizer)

    def save(self, path: Path) -> None:
        self._call("save", path.absolute())  # all ranks must see it

    def load(self, path: Path) -> None:
        self._call("load", path.absolute())

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
        """Kill all ranks on an error of the start, or one that not all share, and raise it with its cause."""
        try:
            yield
        except ranks.SHARED_ERRORS:
            if self._group is None:
                self._abort()
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


# -- ranks above 0


def main(rank: int, directory: Path) -> None:
    """Be a rank that `start_ranks` started, until the pipe from rank 0 ends."""
    _handle_stop_signals(signal.SIG_IGN)

    def exit_with_rank_0() -> None:
        while os.read(0, 1):
            pass
        shutil.rmtree(directory, ignore_errors=True)  # rank 0 may not have had the time
        os._exit(1)

    watch = threading.Thread(target=exit_with_rank_0, daemon=True)
    watch.start()
    try:
        follow_rank_0(rank, FileStore(str(directory / ranks.STORE_FILE)), interface=ranks.LOOPBACK, local_rank=rank)
    except BaseException as error:  # noqa: BLE001 - the boundary: rank 0 reads the store and the log
        traceback.print_exc()
        watch.join(1.0)  # if rank 0 is gone, the watch removes the directory
        os._exit(0 if ranks.is_communication_error(error) else 1)
    os._exit(0)  # without the second that the interpreter takes to free torch


def run_torchrun_rank(config: Config) -> None:
    """Run a rank that torchrun started. Raises `LearnerError` where it failed, or another is gone."""
    _handle_stop_signals(signal.SIG_DFL)  # while it waits for rank 0, in torch's own code, no handler of Python runs
    ranks.validate_world_size(config)
    rank = int(os.environ["RANK"])
    try:
        store, local_rank = ranks.join_torchrun(config)
        follow_rank_0(rank, store, local_rank=local_rank)
    except RuntimeError as error:
        raise LearnerError(f"rank {rank} of the learner failed: {format_error(error)}") from error


def _handle_stop_signals(handler: signal.Handlers) -> None:
    """Set the handler of signals that ask the run to stop: rank 0 saves before it ends the ranks that ignore them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)


def follow_rank_0(rank: int, store: Store, **where: Any) -> None:
    """Join the process group, and repeat the calls of rank 0 until it ends this rank; return where it has no learner.

    Arguments are those of `init_process_group`. A failure of this rank's own is in the store when this raises it.
    """
    try:
        build = json.loads(store.get(ranks.BUILD_KEY))
        if build is None:
            return
        _handle_stop_signals(signal.SIG_IGN)
        config, dump_dir = Config(**build["config"]), build["dump_dir"] and Path(build["dump_dir"])
        store.set_timeout(timedelta(seconds=config.learner.timeout))
        torch.set_num_threads(config.run.threads or max(1, torch.get_num_threads() // config.learner.world_size))
        store.set(ranks.READY_KEY.format(rank), "")
        group = ranks.init_process_group(rank, config, store, **where)
        learner = build_rank(group, config, dump_dir)
        while call := group.broadcast_call():
            name, arguments, keywords = call
            with suppress(*ranks.SHARED_ERRORS):
                getattr(learner, name)(*arguments, **keywords)
        dist.destroy_process_group()
    except BaseException as error:
        if not ranks.is_communication_error(error):
            store.set(ranks.FAILURE_KEY.format(rank), f"failed: {format_error(error)}")
        raise


def build_rank(group: ranks.LearnerGroup, config: Config, dump_dir: Path | None) -> Learner:
    """Build the learner of this rank's part of the model in `config`, with a reference model where one is needed.

    Every rank loads the whole model into its host's memory, and moves a block at a time to its device.
    """
    without_kernel = config.model.model_copy(update={"attn_implementation": ""})
    torch.manual_seed(derive_seed(config.run.seed, "weights"))  # adapters start at random
    model = load_model(without_kernel, "cpu")[0]
    # While it is gathered once, a head cannot be needed with its adapters and without them.
    head = model.get_output_embeddings() if config.model.lora.enabled and config.has_anchor_rows else None
    if head is not None and any(parameter.requires_grad for parameter in head.parameters()):
        raise ConfigError("several processes cannot anchor rows where the output embedding has adapters: leave it out "
                          "of model.lora.target_modules, or set learner.world_size = 1")  # fmt: skip
    packing = choose_packing(config, model)
    whole = not config.model.lora.enabled
    dtype = choose_dtype(config.model)
    lower = dtype if whole and dtype != torch.float32 else None
    shares = ShardedRank(group.mesh, group.object_group, lower, offload=config.learner.offload)
    shares.require_same_files(model, dump_dir and dump_dir.parent)
    reference = load_model(without_kernel, "cpu")[0] if config.has_reference_model and whole else None
    return _build_learner(config, model, reference, dump_dir, packing, shares)


# -- either


def _build_learner(
    config: Config, model: Any, reference: Any, dump_dir: Path | None, packing: PackingMode, shares: Ranks | None = None
) -> Learner:
    learner = Learner(
        model, config.optim, config.loss, temperature=config.rollout.temperature,
        reference=reference, dump_dir=dump_dir, ranks=shares,
    )  # fmt: skip
    learner.packing = packing
    attention = config.model.attn_implementation if shares else ""
    for each in learner.models if attention else ():  # last: models are checked on the host, without it
        base: Any = each
        base = base.get_base_model() if hasattr(base, "get_base_model") else base
        base.set_attn_implementation(attention)
    return learner


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
