"""Training: `trailnotes.train`, and the loops that carry out its iterations."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.config.methods import resolve_method
from trailnotes.config.schema import Config
from trailnotes.errors import Interrupted, RunError
from trailnotes.memory.tipfile import read_tips
from trailnotes.runs.directory import RunDir
from trailnotes.runs.loop import run_to_end
from trailnotes.runs.preflight import run_preflight
from trailnotes.runs.rehearsal import prepare_rehearsal
from trailnotes.runs.signals import interrupt_on_signals, request_stop_on_signals
from trailnotes.storage import checkpoint
from trailnotes.types import StrPath, Tip

if TYPE_CHECKING:  # these take the extra `train`
    from trailnotes.runs.cluster.cluster import Cluster
    from trailnotes.runs.iteration import Iteration
    from trailnotes.runs.training import TrainingRun

FIXED_TRAIN_KEYS = ("algorithm.name", "run.seed")
"""Tables name a run by these, so one that has begun keeps both."""


def train(config: Config, run_dir: StrPath, *, allow_change: Sequence[str] = (), memory: StrPath | None = None) -> Path:
    """Train `config.algorithm` until it is done, and return the directory of the last model.

    The same call on an existing run resumes at its last checkpoint: exactly, unless iterations overlap
    (`rollout.max_async_iterations`), since newer weights then play the next one. Ctrl-C finishes the iteration, saves,
    and raises; a second one raises at once; so do SIGTERM, and SIGHUP of a closed terminal. A finished run is not
    opened again where `train.keep_optimizer` is off, unless a server trained it.

    Args:
        config: the whole configuration.
        run_dir: directory of the run; made if it does not exist.
        allow_change: keys besides those of [endpoint] that may differ from the resumed run, except `FIXED_TRAIN_KEYS`.
        memory: tips to begin with: a file of `trailnotes memory export`, a memory file, or a run directory. A run that
            has begun keeps its own.

    Raises:
        ConfigError: a setting that cannot work; this and the next three before anything is built or written.
        MissingExtraError: a package that the settings need is not installed.
        ClusterError: `cluster.address` does not lead to a Ray cluster with the required resources.
        MemoryStoreError: `memory` cannot be read.
        RunError: the directory is in use, damaged, not writable, or of another config; or the run has ended for good.
        Interrupted: a `KeyboardInterrupt`: asked to stop before the end; the last checkpoint is safe.
    """
    tips = None if memory is None else read_tips(memory)
    run_preflight(config, tips)
    from trailnotes.learner.ranks import release_torchrun
    from trailnotes.runs.training import find_final_model

    final_model = find_final_model(config, Path(run_dir))
    with ExitStack() as opened:
        cluster = None
        if config.cluster.address:
            from trailnotes.runs.cluster.connection import connect_cluster

            cluster = opened.enter_context(connect_cluster(config))
        directory = opened.enter_context(
            RunDir.open(run_dir, config, allow_change=["endpoint", *allow_change], fixed=FIXED_TRAIN_KEYS)
        )
        if final_model is not None:
            release_torchrun(config)
            directory.write_config()
            return final_model
        prepare_rehearsal(config, directory.path)
        return run_to_end(_train(config, directory, tips or (), cluster))


async def _train(config: Config, directory: RunDir, tips: Sequence[Tip], cluster: Cluster | None) -> Path:
    from trailnotes.runs.training import delete_optimizer_state, open_run, save_checkpoint

    with ExitStack() as opened:
        with interrupt_on_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):  # at once: nothing has begun
            run = opened.enter_context(open_run(config, directory, tips, cluster))
        try:
            with request_stop_on_signals(partial(_request_stop, run)) as received:
                await run_method(resolve_method(config.algorithm.name).load(), run)
                if run.saved is None or checkpoint.load_meta(run.saved)["iteration"] != run.count.iteration:
                    save_checkpoint(run)
        except BaseException:
            safe = f"{run.saved} is saved, and the same command resumes there" if run.saved else "nothing is saved"
            run.progress.note(f"stopped: {safe}")
            raise
        ended = config.train.compute_progress(asdict(run.count)) >= 1.0
        if run.ledger is not None:
            total, cost = run.ledger.count.total, run.ledger.count.compute_cost(config.learner)
            run.progress.note(f"{total:,} tokens at the server so far" + (f", {cost:,.2f}" if cost else ""))
        if run.is_spent and not ended:
            run.progress.note(f"stopped after iteration {run.count.iteration}: another could pass "
                              "learner.max_tokens_total; raise it with --allow-change to continue")  # fmt: skip
        elif received and not ended:
            stopped = f"stopped after iteration {run.count.iteration}; the same command resumes there"
            raise Interrupted(received[0], stopped)
        is_kept = config.train.keep_optimizer or config.is_hosted  # there learner.json names the weights to play
        if ended and not is_kept and not delete_optimizer_state(directory.checkpoints):
            run.progress.note("a checkpoint is being read, so its optimizer's state stays: the same command deletes it")
        assert run.saved is not None
        return run.saved / "model"


def _request_stop(run: TrainingRun) -> None:
    run.stop_requested = True
    with suppress(RuntimeError):  # the signal came in the middle of a line that is being printed
        activities = run.progress.describe_activities()
        now = f" ({activities})" if activities else ""
        run.progress.note(f"stopping after this iteration{now}; a second signal stops at once")


# -- loops

Method = Callable[["Iteration"], Awaitable[None]]


async def run_method(method: Method, run: TrainingRun) -> None:
    """Carry out iterations until the run is finished; `RunError` if the method does not end one."""
    from trailnotes.runs.iteration import Iteration

    if ahead := run.config.rollout.max_async_iterations:
        await run_overlapped(method, run, ahead)
        return
    while not run.is_finished:
        iteration = Iteration(run, run.count.iteration)
        await iteration.begin()
        await _carry_out(method, iteration)


async def run_overlapped(method: Method, run: TrainingRun, ahead: int) -> None:
    """Start iteration i as soon as i - 1 has been played and i - 1 - `ahead` has ended.

    So at most `ahead` updates lie between the weights that play an iteration and those that learn from it. Iterations
    that a limit of steps or tokens, or a stop, leaves beyond the last one are dropped: a resumed run plays them again.
    """
    from trailnotes.runs.iteration import Iteration

    finished = asyncio.Event()  # or failed
    tasks: list[asyncio.Task[None]] = []

    def start(coroutine: Coroutine[Any, Any, None], iteration: Iteration | None = None) -> None:
        def check(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (task.exception() or (iteration and iteration.is_last)):
                finished.set()

        tasks.append(asyncio.create_task(coroutine))
        tasks[-1].add_done_callback(check)

    async def schedule() -> None:
        under_way: deque[Iteration] = deque()
        newest, number = None, run.count.iteration
        while not run.is_finished:
            if len(under_way) > ahead or number == run.config.train.iterations:
                await under_way.popleft().ended.wait()
                continue
            newest = Iteration(run, number, before=newest)
            await newest.begin()
            start(_carry_out(method, newest), newest)
            under_way.append(newest)
            await newest.played.wait()
            number += 1
        # The one whose turn it is changes the run already: it comes to its end.
        await asyncio.gather(*(iteration.ended.wait() for iteration in under_way))
        finished.set()

    start(schedule())
    try:
        await finished.wait()
        for task in tasks:
            if task.done():
                task.result()  # raises what it raised
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _carry_out(method: Method, iteration: Iteration) -> None:
    await method(iteration)
    if not iteration.ended.is_set():
        raise RunError("the method returned before its iteration had ended: finish with `await iteration.end(...)`")
