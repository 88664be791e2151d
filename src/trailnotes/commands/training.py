"""`trailnotes train`: open or resume a run directory, train, and leave it in order however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from typing import TYPE_CHECKING

from trailnotes.config.methods import method_of
from trailnotes.envs.tasks import tasks_of
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.errors import ConfigError
from trailnotes.memory.exchange import rewind
from trailnotes.policies.hf.policy import context_length_of
from trailnotes.runs.directory import Progress, RunDir
from trailnotes.runs.training import Run
from trailnotes.storage import checkpoint
from trailnotes.storage.files import free_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trailnotes.config.schema import Config


def train(
    config: Config,
    run_dir: Path,
    *,
    allow_change: Sequence[str] = (),
) -> Path:
    """Train `config.algorithm` until it is done, and return the directory of the last model.

    A directory that holds a run is resumed exactly where its last checkpoint stands. Ctrl-C finishes the iteration,
    saves, and says how to go on; a second one stops at once.

    Args:
        config: the whole configuration.
        run_dir: directory of the run; made if it does not exist.
        allow_change: keys that may differ from those of the run that is resumed.

    Raises:
        ConfigError: a setting that cannot work, before anything is built or written.
        RunError: the directory is in use, damaged, or belongs to another config; or it cannot be written.
        KeyboardInterrupt: interrupted twice; what the last checkpoint holds is safe.
    """
    _refuse_early(config)
    with RunDir.open(run_dir, config, allow_change=allow_change) as directory:
        return asyncio.run(_train(config, directory))


async def _train(config: Config, directory: RunDir) -> Path:
    with EnvPool(config.env) as pool, Progress(config, directory) as progress:
        run = open_run(config, directory, pool, progress)
        try:
            with _stop_on_signal(run):
                await method_of(config.algorithm.name).load()(run)
                if run.saved is None or checkpoint.load_meta(run.saved)["iteration"] != run.count.iteration:
                    run.save()
        except BaseException:
            safe = f"{run.saved} is saved, and the same command goes on from there" if run.saved else "nothing is saved"
            progress.note(f"stopped: {safe}")
            raise
        finally:
            run.close()
        if run.stop_requested:
            progress.note(f"stopped after iteration {run.count.iteration}; go on with the same command")
        assert run.saved is not None
        return run.saved / "model"


def _refuse_early(config: Config) -> None:
    """Refuse all that can be refused without loading weights, so that a bad setting leaves no directory behind."""
    config.refuse_training()
    tasks_of(config, config.train.split)
    if config.train.eval_every:
        tasks_of(config, config.train.validation_split)
    room, wanted = context_length_of(config.model), config.rollout.max_context_tokens
    if wanted > room:
        raise ConfigError(
            f"rollout.max_context_tokens = {wanted}, but the model at model.path holds {room} tokens: "
            f"set rollout.max_context_tokens to {room} or less"
        )


def open_run(config: Config, directory: RunDir, pool: EnvPool, progress: Progress) -> Run:
    """A run at its last whole checkpoint, or at its start.

    Lines and tips that came after it are set aside in files of their own: not lost, and not counted.
    """
    saved = checkpoint.latest(directory.checkpoints)
    done = int(checkpoint.load_meta(saved)["iteration"]) if saved else 0
    resumed = directory.has_history
    run = Run(config, directory, pool, progress)
    if saved is not None:
        run.load(saved)
    kept = directory.set_aside_after(done) if resumed else []
    if resumed and run.memory is not None:
        aside = free_name(directory.path / f"tips.after-{done:06d}.jsonl")
        if rewind(run.memory, saved / "memory.db" if saved else None, aside):
            kept.append(aside)
    if resumed:
        progress.note(f"going on after iteration {done}" + "".join(f"; set aside {path.name}" for path in kept))
    return run


@contextlib.contextmanager
def _stop_on_signal(run: Run) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks the run to stop after its iteration; the second one stops it at once.

    Plain handlers, not those of the event loop, which does not come round while the learner computes.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM)

    def ask(_number: int, _frame: object) -> None:
        run.stop_requested = True
        for number in signals:
            signal.signal(number, signal.default_int_handler)
        with contextlib.suppress(RuntimeError):  # it came in the middle of a line that is being printed
            run.progress.note("stopping after this iteration; once more to stop at once")

    before = {number: signal.signal(number, ask) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
