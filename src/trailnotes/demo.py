"""`trailnotes demo`: EMPO2 against GRPO on games where notes matter, from nothing to a table and a picture.

Every stage leaves its result in the directory, so a demo that was interrupted goes on where it was.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes import checkpoint
from trailnotes.configio import load_config
from trailnotes.console import Bar, clock
from trailnotes.errors import RunError
from trailnotes.evaluation import PanelResult, write_table
from trailnotes.files import write_text_atomic
from trailnotes.jsonl import read_jsonl
from trailnotes.stats import bootstrap
from trailnotes.story import Job, before_and_after, draw, print_table
from trailnotes.tasks import tasks_of

if TYPE_CHECKING:
    from trailnotes.config import Config

CONFIG = Path("configs/demo.toml")
METHODS = ("grpo", "empo2")
INTERVAL = "bootstrap over seeds, then families, then games, 95 %"


def train_command(job: Job, config: Path, extra: Sequence[str]) -> list[str]:
    """What a person would type for this run."""
    settings = ["--algorithm.name", job.method, "--run.seed", str(job.seed), "--run.name", job.name, *extra]
    return [sys.executable, "-m", "trailnotes", "train", str(config), "--run-dir", str(job.directory), *settings]


def demo(
    out: Path,
    *,
    config_path: Path = CONFIG,
    seeds: int = 2,
    trials: int = 3,
    jobs_at_once: int = 2,
    settings: Sequence[str] = (),
) -> list[PanelResult]:
    """Compile, train both methods, examine them on unseen games, and write table, picture and story to `out`.

    Args:
        out: directory of everything.
        config_path: the common config; the method and the seed are all that differs between runs.
        seeds: training runs of each method.
        trials: k, trials with memory of the last row.
        jobs_at_once: training processes side by side.
        settings: further ``--section.key value`` overrides for every run.
    """
    started = time.monotonic()
    config = load_config(config_path, settings)
    jobs = [Job(method, seed, out / f"{method}-{seed}") for seed in range(seeds) for method in METHODS]
    print(f"{len(jobs)} runs of {config.train.max_env_steps:,} environment steps each, in {out}", flush=True)
    _compile(config)
    _train_all(config, config_path, jobs, jobs_at_once, settings)
    rows = _examine(config, jobs, out, trials)
    write_table(rows, out)
    draw(config, jobs, rows, out / "curves.png")
    story = before_and_after(jobs, out)
    write_text_atomic(out / "story.txt", story)
    print(story)
    print_table(rows, jobs)
    print(f"\n{out / 'curves.png'}  {out / 'table.json'}  {out / 'story.txt'}   ({clock(time.monotonic() - started)})")
    return rows


def _compile(config: Config) -> None:
    """All games of the panels, on every core; those in the cache cost nothing."""
    if config.env.name != "waymarks":
        return
    from trailnotes.envs.waymarks import compile_all

    splits = {config.train.split, config.eval.split, *([config.train.validation_split] * bool(config.train.eval_every))}
    tasks = [task for split in sorted(splits) for task in tasks_of(config, split)]
    with Bar(len(tasks), "compiling games") as bar:
        compile_all(tasks, num_workers=2, progress=lambda done, _: bar.update(done))


def _train_all(config: Config, path: Path, jobs: Sequence[Job], at_once: int, settings: Sequence[str]) -> None:
    """Train the jobs, a few side by side; a run that is done already ends at once."""
    waiting = [job for job in jobs if not finished(job, config)]
    running: dict[Job, subprocess.Popen[bytes]] = {}
    total = config.train.max_env_steps * len(jobs)
    try:
        with Bar(total, "training") as bar:
            while waiting or running:
                while waiting and len(running) < at_once:
                    job = waiting.pop(0)
                    running[job] = _start(job, path, settings)
                for job, process in list(running.items()):
                    if process.poll() is not None:
                        del running[job]
                        _check(job, process.returncode)
                _show(bar, jobs, list(running))
                time.sleep(0.5)
            _show(bar, jobs, [])
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def finished(job: Job, config: Config) -> bool:
    """Whether a run's last checkpoint has all its environment steps."""
    saved = checkpoint.latest(job.directory / "checkpoints")
    return saved is not None and int(checkpoint.load_meta(saved)["env_steps"]) >= config.train.max_env_steps


def _start(job: Job, path: Path, settings: Sequence[str]) -> subprocess.Popen[bytes]:
    job.directory.mkdir(parents=True, exist_ok=True)
    with (job.directory / "console.log").open("ab") as log:
        return subprocess.Popen(train_command(job, path, settings), stdout=log, stderr=log, stdin=subprocess.DEVNULL)  # noqa: S603


def _check(job: Job, status: int) -> None:
    if status:
        log = job.directory / "console.log"
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no output"]
        raise RunError(f"run {job.name} ended with status {status}: {last[0]} (all of it: {log}); "
                       "the same command goes on from its last checkpoint")  # fmt: skip


def last_line(job: Job) -> dict[str, Any]:
    """The newest line of a run's metrics, {} before the first."""
    line: dict[str, Any] = {}
    for line in read_jsonl(job.directory / "metrics.jsonl"):  # noqa: B007 - the last one is wanted
        pass
    return line


def _show(bar: Bar, jobs: Sequence[Job], running: Sequence[Job]) -> None:
    lines = {job: last_line(job) for job in jobs}
    facts = {job.name: lines[job].get("rollout/success/plain", 0.0) for job in running}
    bar.update(sum(line.get("env_steps", 0) for line in lines.values()), facts)


# -- the panels


def _examine(config: Config, jobs: Sequence[Job], out: Path, trials: int) -> list[PanelResult]:
    """The rows of the table: start, GRPO, EMPO2 without notes; EMPO2 with notes after `trials` trials."""
    steps = {m: int(sum(last_line(j)["env_steps"] for j in jobs if j.method == m) / _count(jobs, m)) for m in METHODS}
    seeds = _count(jobs, METHODS[0])
    with Bar(seeds + len(jobs) + seeds, "unseen games") as bar:
        done = iter(range(1, 1000))

        def played(name: str, subject: Path | str, seed: int, with_trials: int = 0) -> list[dict[str, Any]]:
            episodes = _play_once(config, subject, seed, out / "panels" / name, with_trials)
            bar.update(next(done))
            return episodes

        start = [played(f"start-{seed}", config.model.path, seed) for seed in range(seeds)]
        plain = {m: [played(j.name, j.directory, j.seed) for j in jobs if j.method == m] for m in METHODS}
        noted = [played(f"{j.name}-notes", j.directory, j.seed, trials) for j in jobs if j.method == "empo2"]
    return [
        row_of(start, config, "start", memory=False, env_steps=0),
        row_of(plain["grpo"], config, "grpo", memory=False, env_steps=steps["grpo"]),
        row_of(plain["empo2"], config, "empo2", memory=False, env_steps=steps["empo2"]),
        row_of(noted, config, "empo2", memory=True, env_steps=steps["empo2"]),
    ]


def _count(jobs: Sequence[Job], method: str) -> int:
    return sum(job.method == method for job in jobs)


def _play_once(config: Config, subject: Path | str, seed: int, out: Path, trials: int) -> list[dict[str, Any]]:
    """Play the panel, or take what an earlier start of the demo has played: one small record an episode."""
    from trailnotes.evaluation import adapt, evaluate

    config = config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})
    if trials:
        adapt(config, subject, trials=trials, out=out)
        episodes = out / f"trial-{trials:02d}.jsonl"
    else:
        episodes = out / "episodes.jsonl"
        if not episodes.exists():
            evaluate(config, subject, memory=False, out=out)
    return [{"task": r["task"]["id"], "success": r["success"]} for r in read_jsonl(episodes)]


def row_of(
    runs: Sequence[Sequence[dict[str, Any]]], config: Config, algorithm: str, *, memory: bool, env_steps: int
) -> PanelResult:
    """Mean and interval over seeds, families and games of the episodes of each seed."""
    values = [float(record["success"]) for run in runs for record in run]
    seeds = [seed for seed, run in enumerate(runs) for _ in run]
    games = [record["task"] for run in runs for record in run]
    families = [game.rpartition("/")[0] for game in games]
    interval = bootstrap(values, [seeds, families, games])
    return PanelResult(
        algorithm, memory, config.eval.split, "success", interval.mean, interval.low, interval.high, env_steps,
        len(runs), len(set(games)), len(values), INTERVAL,
    )  # fmt: skip
