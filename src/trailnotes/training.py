"""`trailnotes train`: open or resume a run directory, train, and leave it in order however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING

from trailnotes import checkpoint
from trailnotes.algorithms import ALGORITHMS
from trailnotes.envs.workers import EnvPool
from trailnotes.files import free_name
from trailnotes.logs import Progress, RunDir
from trailnotes.memory.portable import rewind
from trailnotes.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trailnotes.config import Config

logger = logging.getLogger(__name__)


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
        ConfigError: a setting that cannot work, before anything is built.
        RunError: the directory is in use, damaged, or belongs to another config.
    """
    config.refuse_training()
    with RunDir.open(run_dir, config, allow_change=allow_change) as directory:
        return asyncio.run(_train(config, directory))


async def _train(config: Config, directory: RunDir) -> Path:
    with EnvPool(config.env) as pool, Progress(config, directory) as progress:
        run = open_run(config, directory, pool, progress)
        try:
            with _stop_on_signal(run):
                await ALGORITHMS[config.algorithm.name](run)
            if run.saved is None or checkpoint.load_meta(run.saved)["iteration"] != run.count.iteration:
                run.save()
        finally:
            run.close()
        if run.stop_requested:
            progress.note(f"stopped after iteration {run.count.iteration}; go on with the same command")
        assert run.saved is not None
        return run.saved / "model"


def open_run(config: Config, directory: RunDir, pool: EnvPool, progress: Progress) -> Run:
    """A run at its last whole checkpoint, or at its start.

    Lines and tips that came after it are set aside in files of their own: not lost, and not counted.
    """
    saved = checkpoint.latest(directory.checkpoints)
    done = int(checkpoint.load_meta(saved)["iteration"]) if saved else 0
    resumed = directory.has_history
    kept = directory.set_aside_after(done) if resumed else []
    run = Run(config, directory, pool, progress)
    if resumed and run.memory is not None:
        aside = free_name(directory.path / f"tips.after-{done:06d}.jsonl")
        if rewind(run.memory, saved / "memory.db" if saved else None, aside):
            kept.append(aside)
    if saved is not None:
        run.load(saved)
    if resumed:
        progress.note(f"going on after iteration {done}" + "".join(f"; set aside {path.name}" for path in kept))
    return run


@contextlib.contextmanager
def _stop_on_signal(run: Run) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks the run to stop after its iteration; the second one acts as usual."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def ask() -> None:
        run.stop_requested = True
        run.progress.note("stopping after this iteration; once more to stop at once")
        for number in signals:
            loop.remove_signal_handler(number)

    try:
        for number in signals:
            loop.add_signal_handler(number, ask)
    except (NotImplementedError, RuntimeError, ValueError):  # not the main thread, or not a Unix: no handler then
        logger.debug("no signal handlers here; interrupting stops at once")
    try:
        yield
    finally:
        for number in signals:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.remove_signal_handler(number)
