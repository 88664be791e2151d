"""`trailnotes demo`: EMPO2 against GRPO on games where notes matter, from nothing to a table and a picture.

Every stage leaves its result in the directory, so a demo that was interrupted goes on where it was.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes import checkpoint
from trailnotes.configio import diff, load_config
from trailnotes.console import Bar, clock
from trailnotes.errors import ConfigError, RunError
from trailnotes.evaluation import (
    COUNTS,
    PanelResult,
    adapt,
    family_of,
    play_subject,
    spending,
    value_of,
    write_episodes,
    write_table,
)
from trailnotes.files import write_text_atomic
from trailnotes.jsonl import read_jsonl
from trailnotes.logs import run_config
from trailnotes.records import trajectory_from_json
from trailnotes.stats import bootstrap
from trailnotes.story import before_and_after, draw, last_line, print_table
from trailnotes.tasks import tasks_of

if TYPE_CHECKING:
    from trailnotes.config import Config
    from trailnotes.types import Trajectory

CONFIG = Path("configs/demo.toml")
METHODS = ("grpo", "empo2")
POLL = 0.5  # seconds between two looks at the running processes
PATIENCE = 120.0  # seconds that a process asked to stop may take for its iteration
TOLERANCE = 0.02  # share by which the environment steps of the methods may differ without a word about it


@dataclass(frozen=True, slots=True)
class Job:
    """One training run of the demo."""

    method: str
    seed: int
    directory: Path

    @property
    def name(self) -> str:
        """Method and seed: also the name of the run's directory."""
        return f"{self.method}-{self.seed}"

    def settings(self, extra: Sequence[str]) -> list[str]:
        """All that differs between the runs, and what every run was given."""
        return ["--algorithm.name", self.method, "--run.seed", str(self.seed), "--run.name", self.name, *extra]

    def command(self, config: Path, extra: Sequence[str]) -> list[str]:
        """What a person would type for this run."""
        words = ["train", str(config), "--run-dir", str(self.directory), *self.settings(extra)]
        return [sys.executable, "-m", "trailnotes", *words]


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

    Raises:
        ConfigError: a setting that cannot work.
        RunError: a training process failed, or `out` holds a demo of other settings.
    """
    started = time.monotonic()
    config = load_config(config_path, settings)
    if not config.train.max_env_steps:
        raise ConfigError("the methods of a demo get the same number of environment steps: set train.max_env_steps")
    jobs = [Job(method, seed, out / f"{method}-{seed}") for seed in range(seeds) for method in METHODS]
    _refuse_other_settings(out, jobs, config_path, settings)
    print(f"{len(jobs)} runs of {config.train.max_env_steps:,} environment steps each, in {out}", flush=True)
    _compile(config)
    with _ended_by_signals():
        _train_all(config, jobs, jobs_at_once, lambda job: job.command(config_path, settings))
    rows = _examine(config, jobs, out, trials)
    write_table(rows, out)
    draw(config, jobs, rows, out / "curves.png")
    story = before_and_after(jobs, out)
    write_text_atomic(out / "story.txt", story)
    print(story)
    print_table(rows)
    for line in unequal_steps(rows):
        print(line)
    print(f"\n{out / 'curves.png'}  {out / 'table.json'}  {out / 'story.txt'}   ({clock(time.monotonic() - started)})")
    return rows


def _refuse_other_settings(out: Path, jobs: Sequence[Job], path: Path, settings: Sequence[str]) -> None:
    """Results of two kinds of demo must not meet in one table."""
    for job in jobs:
        if (job.directory / "config.toml").is_file():
            changed = diff(run_config(job.directory), load_config(path, job.settings(settings)))
            if changed:
                raise RunError(f"{out} holds a demo with another {', '.join(changed)}: remove it, or choose another "
                               "--out")  # fmt: skip


def unequal_steps(rows: Sequence[PanelResult]) -> list[str]:
    """A warning where the methods did not train for the same number of environment steps."""
    steps = {row.algorithm: row.env_steps for row in rows if row.env_steps}
    if not steps or max(steps.values()) - min(steps.values()) <= TOLERANCE * max(steps.values()):
        return []
    counts = ", ".join(f"{name} {count:,}" for name, count in steps.items())
    return [f"Note: environment steps differ by more than {TOLERANCE:.0%} ({counts}); the comparison is not even."]


def _compile(config: Config) -> None:
    """All games of the panels, on every core; those in the cache cost nothing."""
    if config.env.name != "waymarks":
        return
    from trailnotes.envs.waymarks import compile_all

    splits = {config.train.split, config.eval.split, *([config.train.validation_split] * bool(config.train.eval_every))}
    tasks = [task for split in sorted(splits) for task in tasks_of(config, split)]
    with Bar(len(tasks), "compiling games") as bar:
        compile_all(tasks, num_workers=2, progress=lambda done, _: bar.update(done))


# -- training processes


def _train_all(config: Config, jobs: Sequence[Job], at_once: int, command: Callable[[Job], Sequence[str]]) -> None:
    """Train the jobs, a few side by side, those that are not done already. However this ends, no process is left."""
    waiting = [job for job in jobs if not finished(job, config)]
    running: dict[Job, subprocess.Popen[bytes]] = {}
    try:
        with Bar(config.train.max_env_steps * len(jobs), "training") as bar:
            while waiting or running:
                while waiting and len(running) < at_once:
                    job = waiting.pop(0)
                    running[job] = _start(job, command(job))
                for job, process in list(running.items()):
                    if process.poll() is not None:
                        del running[job]
                        _check(job, process.returncode)
                _show(bar, config, jobs, list(running))
                time.sleep(POLL)
            _show(bar, config, jobs, [])
    finally:
        _end(list(running.values()))


def finished(job: Job, config: Config) -> bool:
    """Whether a run's last checkpoint has all its environment steps."""
    saved = checkpoint.latest(job.directory / "checkpoints")
    return saved is not None and int(checkpoint.load_meta(saved)["env_steps"]) >= config.train.max_env_steps


def _start(job: Job, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """In a process group of its own: Ctrl-C reaches the demo alone, which then asks each run once to stop."""
    job.directory.mkdir(parents=True, exist_ok=True)
    with (job.directory / "console.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask to stop, which finishes the iteration and saves; whoever interrupts again, or waits too long, kills."""
    alive = [process for process in processes if process.poll() is None]
    if alive:
        print("stopping after the iterations under way; interrupt again to stop at once", flush=True)
    for process in alive:
        process.terminate()
    try:
        deadline = time.monotonic() + PATIENCE
        for process in alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for process in alive:
            process.kill()  # does nothing to one that has ended
            process.wait()
    if alive:
        print("stopped; the same command goes on from here", flush=True)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Termination and a closed terminal end the demo as Ctrl-C does, so that its processes are ended, too."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check(job: Job, status: int) -> None:
    if status:
        log = job.directory / "console.log"
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no output"]
        raise RunError(f"run {job.name} ended with status {status}: {last[0]} (all of it: {log}); "
                       "the same command goes on from its last checkpoint")  # fmt: skip


def _show(bar: Bar, config: Config, jobs: Sequence[Job], running: Sequence[Job]) -> None:
    lines = {job: last_line(job.directory) for job in jobs}
    facts = {job.name: lines[job].get("rollout/success/plain", 0.0) for job in running}
    most = config.train.max_env_steps  # the last iteration of a run goes beyond
    bar.update(sum(min(line.get("env_steps", 0), most) for line in lines.values()), facts)


# -- the panels


def _examine(config: Config, jobs: Sequence[Job], out: Path, trials: int) -> list[PanelResult]:
    """The rows of the table: start, GRPO, EMPO2 without notes; EMPO2 with notes after `trials` trials."""
    grpo, empo2 = ([job for job in jobs if job.method == method] for method in METHODS)
    start = [Job("start", job.seed, Path(config.model.path)) for job in empo2]
    with Bar(len(start) + len(jobs) + len(empo2), "unseen games") as bar:
        plain = {}
        for done, job in enumerate([*start, *jobs], 1):
            plain[job] = _play(config, job, out / "panels" / job.name)
            bar.update(done)
        noted = {}
        for done, job in enumerate(empo2, len(plain) + 1):
            noted[job] = _play_with_notes(config, job, out / "panels" / f"{job.name}-notes", trials)
            bar.update(done)
    return [
        row_of(start, plain, config, memory=False),
        row_of(grpo, plain, config, memory=False),
        row_of(empo2, plain, config, memory=False),
        row_of(empo2, noted, config, memory=True),
    ]


def _play(config: Config, job: Job, out: Path) -> list[Trajectory]:
    """The panel as the last checkpoint plays it without notes, or what an earlier start of the demo has played."""
    file = out / "episodes.jsonl"
    if not file.exists():
        write_episodes(play_subject(_seeded(config, job), job.directory)[1], file)
    return [trajectory_from_json(record) for record in read_jsonl(file)]


def _play_with_notes(config: Config, job: Job, out: Path, trials: int) -> list[Trajectory]:
    """The last of `trials` trials with notes that the agent took on the panel's own games."""
    adapt(_seeded(config, job), job.directory, trials=trials, out=out)
    return [trajectory_from_json(record) for record in read_jsonl(out / f"trial-{trials:02d}.jsonl")]


def _seeded(config: Config, job: Job) -> Config:
    return config.model_copy(update={"run": config.run.model_copy(update={"seed": job.seed})})


def row_of(jobs: Sequence[Job], played: dict[Job, list[Trajectory]], config: Config, *, memory: bool) -> PanelResult:
    """Mean and interval over seeds, families and games of the episodes of each job, and the mean cost of a run."""
    episodes = [(job.seed, episode) for job in jobs for episode in played[job]]
    values = [value_of(episode, config.eval.metric) for _, episode in episodes]
    games = [episode.task.id for _, episode in episodes]
    families = [family_of(episode.task) for _, episode in episodes]
    seeds = [seed for seed, _ in episodes]
    interval = bootstrap(values, [seeds, families, games], confidence=config.eval.confidence)
    costs = [last_line(job.directory) for job in jobs]
    return PanelResult(
        algorithm=jobs[0].method,
        memory=memory,
        panel=config.eval.split,
        metric=config.eval.metric,
        mean=interval.mean,
        ci_low=interval.low,
        ci_high=interval.high,
        seeds=len(jobs),
        num_tasks=len(set(games)),
        num_episodes=len(values),
        interval=f"bootstrap over seeds, then families, then games, {config.eval.confidence:.0%}",
        **spending({key: sum(cost.get(key, 0) for cost in costs) / len(costs) for key in (*COUNTS, "seconds")}),
    )
