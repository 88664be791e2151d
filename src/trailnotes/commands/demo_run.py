"""`trailnotes demo`: EMPO2 against GRPO on games where notes matter, from nothing to a table and a picture.

Every stage leaves its result in the directory, so a demo that was interrupted goes on where it was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.adapt import adapt
from trailnotes.commands.demo_story import before_and_after, draw, last_line, print_table
from trailnotes.compare.processes import Job as Command
from trailnotes.compare.processes import compile_games, ended_by_signals, is_trained, run_jobs
from trailnotes.config.toml import diff, load_config
from trailnotes.errors import ConfigError, RunError
from trailnotes.reporting.intervals import bootstrap
from trailnotes.runs.console import Bar, clock
from trailnotes.runs.directory import run_config
from trailnotes.runs.panels import (
    COUNTS,
    PanelResult,
    family_of,
    play_subject,
    spending,
    value_of,
    write_episodes,
    write_table,
)
from trailnotes.storage.files import read_jsonl, write_text_atomic
from trailnotes.storage.records import trajectory_from_json

if TYPE_CHECKING:
    from trailnotes.config.schema import Config
    from trailnotes.types import Trajectory

CONFIG = Path("configs/demo.toml")
METHODS = ("grpo", "empo2")
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

    def command(self, config: Path, extra: Sequence[str]) -> Command:
        """What a person would type for this run."""
        words = ["train", str(config), "--run-dir", str(self.directory), *self.settings(extra)]
        return Command(self.name, self.directory, (sys.executable, "-m", "trailnotes", *words))


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
    compile_games([config])
    with ended_by_signals():
        _train_all(config, jobs, jobs_at_once, settings, config_path)
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


# -- training


def _train_all(config: Config, jobs: Sequence[Job], at_once: int, settings: Sequence[str], path: Path) -> None:
    """Train the jobs, a few side by side, those that are not done already."""
    waiting = [job for job in jobs if not is_trained(job.directory, config)]
    with Bar(config.train.max_env_steps * len(jobs), "training") as bar:
        commands = [job.command(path, settings) for job in waiting]
        run_jobs(commands, at_once, watch=lambda running: _show(bar, config, jobs, [job.name for job in running]))
        _show(bar, config, jobs, [])


def _show(bar: Bar, config: Config, jobs: Sequence[Job], running: Sequence[str]) -> None:
    lines = {job.name: last_line(job.directory) for job in jobs}
    facts = {name: lines[name].get("rollout/success/plain", 0.0) for name in running}
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
    adapt(_seeded(config, job), job.directory, method="empo2-tips", trials=trials, out=out)
    return [trajectory_from_json(record) for record in read_jsonl(out / "eval" / "episodes.jsonl")]


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
