"""Fixed panels of tasks: played, measured and written down. No torch here: any player will do."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trailnotes.config.schema import Config
from trailnotes.config.toml import to_toml
from trailnotes.envs.tasks import panel_of, seen_by_authors, seen_in_training
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.errors import ConfigError
from trailnotes.memory import TipMemory, open_memory
from trailnotes.reporting.intervals import Interval, bootstrap, wilson
from trailnotes.rollout import Pool, run_groups
from trailnotes.runs.players import Subject, load_policy, resolve
from trailnotes.runs.spent import row_costs
from trailnotes.seeds import derive_seed
from trailnotes.storage.files import encode_line, write_bytes_atomic, write_text_atomic
from trailnotes.storage.records import trajectory_to_json
from trailnotes.types import Mode, Task, Trajectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PanelResult:
    """One row of a table: a policy on a panel."""

    algorithm: str
    memory: bool
    panel: str  # name of the split
    metric: str  # success | return
    mean: float
    ci_low: float
    ci_high: float
    env_steps: int  # trained for, 0 for a start model
    seeds: int
    num_tasks: int
    num_episodes: int
    interval: str  # how it was made
    tokens_generated: int = 0  # by the training: actions and tips
    tokens_trained: int = 0  # trained positions, times passes
    seconds: float = 0.0  # of the training

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.ci_low:.2f}, {self.ci_high:.2f}]"


def family_of(task: Task) -> str:
    """The cluster in which successes move together: the task id up to its last part."""
    return task.id.rpartition("/")[0] or task.env


def value_of(trajectory: Trajectory, metric: str) -> float:
    """What tables and curves show of an episode."""
    return float(trajectory.success) if metric == "success" else trajectory.episode_return


def interval_of(episodes: Sequence[Trajectory], config: Config) -> tuple[Interval, str]:
    """Mean and interval of one policy on one panel, and the name of the method.

    Wilson's where every episode is a success or not, of a task of its own, and all are of one family; else a
    bootstrap over families, then games.
    """
    metric, confidence = config.eval.metric, config.eval.confidence
    values = [value_of(t, metric) for t in episodes]
    families = [family_of(t.task) for t in episodes]
    games = [t.task.id for t in episodes]
    if metric == "success" and len(set(families)) == 1 and len(set(games)) == len(games):
        return wilson(int(sum(values)), len(values), confidence), f"Wilson {confidence:.0%}"
    interval = bootstrap(values, [families, games], confidence=confidence)
    return interval, f"bootstrap over families, then games, {confidence:.0%}"


def panel_result(episodes: Sequence[Trajectory], config: Config, subject: Subject, *, memory: bool) -> PanelResult:
    """The row of a table for the `episodes` of `subject`."""
    if not episodes:
        raise ConfigError(f"no episode of split {config.eval.split!r} could be played; see the log for the reason")
    interval, method = interval_of(episodes, config)
    return PanelResult(
        algorithm=subject.name,
        memory=memory,
        panel=config.eval.split,
        metric=config.eval.metric,
        mean=interval.mean,
        ci_low=interval.low,
        ci_high=interval.high,
        seeds=1,
        num_tasks=len({t.task.id for t in episodes}),
        num_episodes=len(episodes),
        interval=method,
        **row_costs(subject.spent),
    )


# -- playing


def acting_config(config: Config) -> Config:
    """The settings with which a panel is played: those of the rollouts, at the evaluation temperature."""
    rollout = config.rollout.model_copy(update={"temperature": config.eval.temperature})
    return config.model_copy(update={"rollout": rollout})


async def play_panel(
    policy: Any, pool: Pool, tasks: Sequence[Task], config: Config, *, memory: Any = None, seed: int = 0
) -> list[Trajectory]:
    """Play each task `eval.num_samples` times at the evaluation temperature, with or without memory.

    Returns the episodes in task order. Episodes that failed for good are left out (and were logged).
    """
    mode: Mode = "plain" if memory is None else "on_policy_tips"
    groups = await run_groups(
        policy,
        pool,
        tasks,
        [[mode] * config.eval.num_samples for _ in tasks],
        memory,
        acting_config(config),
        seed=derive_seed(seed, "panel"),
    )
    return [trajectory for group in groups for trajectory in group.trajectories]


def play_subject(
    config: Config, model_or_run: Path | str, *, use_memory: bool = False, directory: Path | None = None
) -> tuple[Subject, list[Trajectory]]:
    """Who was examined, and the episodes of the panel in the order of its tasks; `directory` as in `load_policy`."""
    subject = resolve(model_or_run)
    if use_memory and subject.memory is None:
        raise ConfigError(
            f"{model_or_run} has no memory to act with: give the run of a method with a memory, or drop --memory"
        )
    if said := seen_in_training(subject.trained, config):
        logger.warning("%s", said)
    policy = load_policy(config, subject, directory)

    async def play(memory: TipMemory | None) -> list[Trajectory]:
        with EnvPool(config.env) as pool:
            return await play_panel(policy, pool, panel_of(config), config, memory=memory, seed=config.run.seed)

    if not use_memory or subject.memory is None:
        return subject, asyncio.run(play(None))
    with closing(open_memory(None, config.memory)) as memory:
        memory.restore(subject.memory)
        if said := seen_by_authors({tip.namespace for tip in memory.store.tips()}, config):
            logger.warning("%s", said)
        return subject, asyncio.run(play(memory))


def panel_record(config: Config, model: str) -> dict[str, Any]:
    """What a panel's numbers depend on, for the record: who plays which tasks, how often, how drawn."""
    chosen = {name: getattr(config.eval, name) for name in ("split", "num_samples", "temperature")}
    tasks = [task.id for task in panel_of(config)]
    return {"model": model, "seed": config.run.seed, "env": config.env.name, **chosen, "tasks": tasks}


# -- writing


def write_evaluation(
    out: Path, config: Config, subject: Subject, episodes: Sequence[Trajectory], result: PanelResult
) -> None:
    """One evaluation in a directory that explains itself.

    ::

        eval.toml        the settings that it was played with
        trained.toml     those of the run that it examines; absent for a model that came from no run
        panel.json       the tasks
        episodes.jsonl   whole episodes
        table.json, table.md   mean and interval, written last: where they are, the rest is whole
    """
    (out / "table.json").unlink(missing_ok=True)
    write_text_atomic(out / "eval.toml", to_toml(config))
    (out / "trained.toml").unlink(missing_ok=True)
    if subject.trained is not None:
        write_text_atomic(out / "trained.toml", to_toml(subject.trained))
    write_text_atomic(out / "panel.json", json.dumps(panel_record(config, subject.model), indent=1) + "\n")
    write_episodes(episodes, out / "episodes.jsonl")
    write_table([result], out)


def write_table(rows: Sequence[PanelResult], out: Path, figures: Sequence[str] | None = None) -> None:
    """`table.json` and `table.md`.

    Args:
        rows: from the top down.
        out: directory, made if absent.
        figures: what each row is called where all are of one run; by default a row goes by its algorithm.
    """
    records = [asdict(row) for row in rows]
    if figures is not None:
        records = [{"figure": name, **record} for name, record in zip(figures, records, strict=True)]
    out.mkdir(parents=True, exist_ok=True)
    write_text_atomic(out / "table.json", json.dumps({"rows": records}, indent=1) + "\n")
    write_text_atomic(out / "table.md", markdown_table(rows, figures))


def markdown_table(rows: Sequence[PanelResult], figures: Sequence[str] | None = None) -> str:
    """The rows as a Markdown table, with the interval's method beneath; arguments as for `write_table`."""
    head = ["algorithm" if figures is None else "figure", "memory", "panel", "metric", "mean", "interval", "env steps"]
    head += ["seeds"] if figures is None else []  # a run has one
    names = [row.algorithm for row in rows] if figures is None else figures
    table = [head, *([name, *_cells(row)][: len(head)] for name, row in zip(names, rows, strict=True))]
    lines = [f"| {' | '.join(cells)} |" for cells in table]
    lines.insert(1, "|---" * len(head) + "|")
    return "\n".join([*lines, "", *sorted({f"Intervals: {r.interval}." for r in rows}), ""])


def _cells(row: PanelResult) -> tuple[str, ...]:
    return (
        "with" if row.memory else "without",
        f"{row.panel} ({row.num_tasks})",
        row.metric,
        f"{row.mean:.3f}",
        f"[{row.ci_low:.3f}, {row.ci_high:.3f}]",
        f"{row.env_steps:,}",
        str(row.seeds),
    )


def write_episodes(episodes: Sequence[Trajectory], path: Path) -> None:
    """Whole episodes, one JSON object a line, as in `trajectories.jsonl` of a run.

    Raises:
        ConfigError: there are none; an empty file would pass for a panel that was played.
    """
    if not episodes:
        raise ConfigError(f"no episode could be played, so {path} was not written; see the log for the reason")
    write_bytes_atomic(path, b"".join(encode_line(trajectory_to_json(t)) for t in episodes))
