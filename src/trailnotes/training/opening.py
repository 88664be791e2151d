"""Opening of a training run at its last whole checkpoint, or at its start."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from trailnotes.gateway.pool import open_pool
from trailnotes.memory import TipMemory
from trailnotes.memory.owner import discard_empty_start, reconcile
from trailnotes.runs.console import TrainingProgress
from trailnotes.runs.directory import has_begun
from trailnotes.storage import checkpoint
from trailnotes.storage.files import find_free_path
from trailnotes.training.authors import check_author_age
from trailnotes.training.rehearsal import REHEARSAL_DIR, read_recording_usage
from trailnotes.training.run import TrainingRun, load_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trailnotes.cluster.cluster import Cluster
    from trailnotes.config.schema import Config
    from trailnotes.rollout.episode import Pool
    from trailnotes.runs.directory import RunDir
    from trailnotes.types import Tip


@contextlib.contextmanager
def open_run_with_pool(
    config: Config, directory: RunDir, tips: Sequence[Tip] = (), cluster: Cluster | None = None
) -> Iterator[TrainingRun]:
    """Open a run with environments and a progress bar of its own, inside the event loop that trains.

    A run that has begun keeps its own tips in place of `tips`. `cluster` is that of `connect_cluster`.
    """
    with (
        open_pool(config.env, make_host=cluster.make_env_host if cluster else None) as pool,
        TrainingProgress(config, directory) as progress,
        contextlib.closing(open_run(config, directory, pool, progress, tips, cluster)) as run,
    ):
        yield run


def open_run(
    config: Config,
    directory: RunDir,
    pool: Pool,
    progress: TrainingProgress,
    tips: Sequence[Tip] = (),
    cluster: Cluster | None = None,
) -> TrainingRun:
    """Open a run at its last whole checkpoint, or at its start.

    Later lines and tips go to files of their own, and are not counted. Changes by the memory's owner stay.
    """
    saved = checkpoint.find_latest(directory.checkpoints)
    done = int(checkpoint.load_meta(saved)["iteration"]) if saved else 0
    start = directory.path / "memory.start.db"
    if not has_begun(directory.path):
        discard_empty_start(directory.memory_path, start)
    run = TrainingRun(config, directory, pool, progress, cluster)
    with contextlib.ExitStack() as undone:
        undone.callback(run.close)
        if saved is not None:
            load_checkpoint(run, saved)
        elif run.rehearsal:
            run.add_prior_usage(read_recording_usage(directory.path / REHEARSAL_DIR))
        kept = directory.move_lines_after(done)
        begins = saved is None
        if run.memory is not None:
            aside = find_free_path(directory.path / f"tips.after-{done:06d}.jsonl")
            held = saved / "memory.db" if saved else None
            if isinstance(run.memory, TipMemory):
                begins = reconcile(run.memory, held, start, aside, tips)
            else:
                begins = run.memory.reconcile(held, start, aside, tips)
            kept += [aside] if aside.exists() else []
            run.memory.register_tasks(run.tasks)  # once: later ones would make another version of the memory
        if saved is not None or kept:
            progress.note(f"resuming after iteration {done}" + "".join(f"; set aside {path.name}" for path in kept))
        if run.authors is not None and (said := check_author_age(config, len(run.tasks))):
            progress.note(said)
        if tips:
            progress.note(
                f"began with {len(tips)} tips" if begins else "this run has begun, and keeps its own tips: "
                f"`trailnotes memory import {directory.path} FILE` adds others"
            )  # fmt: skip
        undone.pop_all()
    return run
