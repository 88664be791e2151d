"""Compiled games of a comparison, which are made before any of its runs has to wait for one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from trailnotes.config.schema import Config
from trailnotes.envs.tasks import load_recorded_tasks, load_tasks, panel
from trailnotes.envs.waymarks.env import compile_game, parse_spec
from trailnotes.reporting.terminal import ProgressBar
from trailnotes.types import Task
from trailnotes_lab.compare.expand import PlannedRun


def compile_games(runs: Iterable[PlannedRun]) -> None:
    """Compile all games before any run has to wait for one; games in the cache cost nothing."""
    configs = [config for run in runs for config in (run.config, *(each.config for each in run.panels))]
    for folder, games in collect_games(configs).items():
        with ProgressBar(len(games), "compiling games") as bar:
            compile_all(games, bar.update, folder)


def compile_all(tasks: Sequence[Task], progress: Callable[[int], object], folder: Path | None) -> list[Path]:
    """Compile the games of `tasks` on two processes, with `progress(done)` after each."""
    specs = [parse_spec(task) for task in tasks]
    # A worker that inherits this process's handlers would take SIGTERM for an error of one game, and go on.
    pool = ProcessPoolExecutor(2, initializer=signal.signal, initargs=(signal.SIGTERM, signal.SIG_DFL))
    try:
        futures = [pool.submit(compile_game, spec, folder) for spec in specs]
        for done, _ in enumerate(as_completed(futures), start=1):
            progress(done)
        return [future.result() for future in futures]
    finally:
        pool.shutdown(cancel_futures=True)  # after an interrupt: not all games first


def collect_games(configs: Iterable[Config]) -> dict[Path | None, list[Task]]:
    """Collect the compiled games that runs play, by the folder that keeps them (None: the usual cache)."""
    games: dict[Path | None, dict[str, Task]] = {}
    for config in configs:
        if config.env.name != "waymarks":
            continue
        folder = config.env.options.get("cache_dir")
        kept = games.setdefault(Path(folder) if folder else None, {})
        validation = [config.train.validation_split] if config.train.eval_every else []
        for split in sorted({config.train.split, config.eval.split, *validation}):
            num = 0 if split == config.train.split else config.eval.num_tasks
            kept |= {task.id: task for task in panel(load_tasks(config, split), num)}
        kept |= {task.id: task for task in load_recorded_tasks(config)}
    return {folder: list(kept.values()) for folder, kept in games.items()}
