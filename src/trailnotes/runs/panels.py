"""Fixed panels of tasks: played, measured and written down, without torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from trailnotes.config.schema import Config
from trailnotes.config.toml import BATCH_SETTINGS, RUNTIME_KEYS, is_within, to_toml
from trailnotes.envs.tasks import has_other_env_code, load_identity, load_panel
from trailnotes.errors import ConfigError
from trailnotes.memory.base import Memory
from trailnotes.policies.base import Policy
from trailnotes.reporting.intervals import (
    CONFIDENCE,
    MIN_FAMILIES,
    RATE_BOUNDS,
    Interval,
    compute_sample_interval,
    estimate,
)
from trailnotes.reporting.tables import Table
from trailnotes.rollout.episode import OnStep, Pool
from trailnotes.rollout.groups import GroupRunner, OnTrajectory
from trailnotes.runs.load_policy import EvaluatedModel
from trailnotes.runs.usage import TABLE_FIELDS
from trailnotes.storage.checkpoint import read_json
from trailnotes.storage.files import encode_line, trajectory_to_json, write_bytes_atomic, write_text_atomic
from trailnotes.types import Mode, Task, Trajectory, derive_seed

JOURNAL_FILE = "episodes.part.jsonl"  # of an unfinished evaluation
NO_SUCCESS = "No episode reported success (`Observation.success`)"  # remark on a row
EPISODE_KEYS = (
    *("run.seed", "run.deterministic", "model", "env", "rollout", "memory"),
    *("eval.split", "eval.num_tasks", "eval.num_samples", "eval.temperature", "eval.show_tips"),
)
"""An episode of a panel depends on these settings, except `RUNTIME_KEYS` and the name of the model."""


def decides_episodes(name: str) -> bool:
    """Tell whether the episodes of a panel depend on the setting of this dotted name."""
    return is_within(name, EPISODE_KEYS) and not is_within(name, (*RUNTIME_KEYS, *BATCH_SETTINGS, "model.path"))


@dataclass(frozen=True, slots=True)
class PanelResult:
    """Row of a table: the result of a policy on a panel."""

    algorithm: str
    memory: bool
    panel: str  # name of the split
    metric: str  # success | return
    mean: float
    ci_low: float | None  # None where nothing varied that an interval could be made of
    ci_high: float | None
    env_steps: int  # trained for, 0 for an initial model
    seeds: int
    num_tasks: int
    num_episodes: int
    interval: str  # its scope and its method
    tokens_generated: int = 0  # by the training: actions and tips
    tokens_trained: int = 0  # trained positions, times passes
    seconds: float = 0.0  # of the training, with its validations
    episodes_with_tips: int = 0  # with a tip in at least one prompt
    remark: str = ""  # beside the table

    def __str__(self) -> str:
        return f"{self.mean:.2f} {self.format_interval(2)}"

    def format_interval(self, places: int) -> str:
        if self.ci_low is None or self.ci_high is None:
            return "no interval"
        return f"[{self.ci_low:.{places}f}, {self.ci_high:.{places}f}]"


def get_family(task: Task) -> str:
    """Return the task's family, in which successes correlate; without one its id up to the last part."""
    return task.family or task.id.rpartition("/")[0] or task.env


def estimate_interval(episodes: Sequence[Trajectory], config: Config) -> tuple[float, Interval | None, str]:
    """Estimate a policy's mean on a panel, its interval, and a description of the interval.

    Every family weighs the same, as does every game within it. With `MIN_FAMILIES` families the interval is **beyond
    this panel**, of other families and games. With fewer it is **on this panel**: of the same games played once more.
    Neither covers another training run.
    """
    metric = config.eval.metric
    bounds = RATE_BOUNDS if metric == "success" else None
    families = {t.task.id: get_family(t.task) for t in episodes}
    games: dict[str, list[float]] = {}
    for t in episodes:
        games.setdefault(t.task.id, []).append(float(t.success) if metric == "success" else t.episode_return)
    crossed = estimate({0: {game: fmean(own) for game, own in games.items()}}, families, bounds)
    num_families = len(set(families.values()))
    kind = ("Wilson's" if bounds else "Student's t") + f", {CONFIDENCE:.0%}"
    if num_families >= MIN_FAMILIES:
        scope = f"beyond this panel, of this one model: its {num_families} families are a sample"
        return crossed.mean, crossed.beyond, f"{scope}, {kind}"
    sizes = Counter(families.values())  # games of each family
    weights = [1 / (num_families * sizes[families[game]] * len(own)) for game, own in games.items() for _ in own]
    values = [value for own in games.values() for value in own]
    once_more = compute_sample_interval(np.array(values), np.array(weights), bounds, CONFIDENCE)
    scope = f"on this panel, of this one model: the same games played again, {kind}"
    return crossed.mean, once_more, f"{scope}; for other games it takes {MIN_FAMILIES} families (here: {num_families})"


def build_panel_result(
    episodes: Sequence[Trajectory], config: Config, subject: EvaluatedModel, *,
    memory: bool, planned: Sequence[Task] = (),
) -> PanelResult:  # fmt: skip
    """Build the row of a panel, whose remark names the `planned` games of which no episode could be played."""
    if not episodes:
        raise ConfigError(f"no episode of split {config.eval.split!r} could be played")
    mean, interval, method = estimate_interval(episodes, config)
    no_success = config.eval.metric == "success" and not any(t.success for t in episodes)
    usage: dict[str, Any] = {name: round(subject.spent.get(name, 0)) for name in TABLE_FIELDS}
    usage["seconds"] = float(subject.spent.get("seconds", 0.0))
    return PanelResult(
        algorithm=subject.name, memory=memory, panel=config.eval.split, metric=config.eval.metric, mean=mean,
        ci_low=interval.low if interval else None, ci_high=interval.high if interval else None, seeds=1,
        num_tasks=len({t.task.id for t in episodes}), num_episodes=len(episodes), interval=method,
        episodes_with_tips=sum(any(step.tips for step in t.steps) for t in episodes),
        remark=". ".join(filter(None, (_describe_lost_games(episodes, planned), NO_SUCCESS if no_success else ""))),
        **usage,
    )  # fmt: skip


def _describe_lost_games(episodes: Sequence[Trajectory], tasks: Sequence[Task]) -> str:
    played = {episode.task.id for episode in episodes}
    lost = [task.id for task in tasks if task.id not in played]
    names = ", ".join(lost[:3]) + (", ..." if len(lost) > 3 else "")
    return f"Not counted: {len(lost)} of {len(tasks)} games, which failed every time ({names})" if lost else ""


# -- playing


def build_eval_config(config: Config) -> Config:
    rollout = config.rollout.model_copy(update={"temperature": config.eval.temperature})
    return config.model_copy(update={"rollout": rollout})


async def play_panel(  # noqa: PLR0913 (see `run_episode`)
    policy: Policy,
    pool: Pool,
    tasks: Sequence[Task],
    config: Config,
    *,
    memory: Memory | None = None,
    seed: int = 0,
    done: Iterable[Trajectory] = (),
    progress: OnTrajectory | None = None,
    on_error: OnTrajectory | None = None,
    on_step: OnStep = lambda _: None,
) -> list[Trajectory]:
    """Play each task `eval.num_samples` times at the evaluation temperature, with or without memory.

    Returns the episodes in task order without failed ones. The callbacks and `done` are as for `GroupRunner`.
    """
    mode: Mode = "plain" if memory is None else "on_policy_tips"
    runner = GroupRunner(
        policy, pool, memory, build_eval_config(config), seed=derive_seed(seed, "panel"), progress=progress,
        on_error=on_error, on_step=on_step, min_members=1,
    )  # fmt: skip
    groups = await runner.play(tasks, [[mode] * config.eval.num_samples for _ in tasks], done)
    return [trajectory for group in groups for trajectory in group.trajectories]


def build_panel_record(config: Config, model: str, trained: Config | None = None) -> dict[str, Any]:
    """Record the model, tasks, samples and identities that a panel's numbers depend on."""
    chosen = {name: getattr(config.eval, name) for name in ("split", "num_samples", "temperature")}
    tasks = [task.id for task in load_panel(config)]
    record = {"model": model, "seed": config.run.seed, "env": config.env.name, **chosen, "tasks": tasks}
    identities = {"environment": load_identity(config)}
    if trained is not None and not has_other_env_code(trained, config):
        identities["trained_environment"] = load_identity(trained)
    return record | {name: identity for name, identity in identities.items() if identity}


# -- writing


def write_evaluation(
    out: Path, config: Config, subject: EvaluatedModel, episodes: Sequence[Trajectory], result: PanelResult
) -> None:
    """Write one evaluation to a directory, and delete its journal.

    ::

        eval.toml        the settings of the evaluation
        trained.toml     those of the evaluated run; absent for a model without a run
        panel.json       the tasks
        episodes.jsonl   whole episodes
        table.json, table.md   mean and interval, written last
    """
    (out / "table.json").unlink(missing_ok=True)
    write_text_atomic(out / "eval.toml", to_toml(config))
    (out / "trained.toml").unlink(missing_ok=True)
    if subject.trained is not None:
        write_text_atomic(out / "trained.toml", to_toml(subject.trained))
    record = build_panel_record(config, subject.model, subject.trained)
    write_text_atomic(out / "panel.json", json.dumps(record, indent=1) + "\n")
    write_episodes(episodes, out / "episodes.jsonl")
    write_table([result], out)
    (out / JOURNAL_FILE).unlink(missing_ok=True)


def write_table(rows: Sequence[PanelResult], out: Path, figures: Sequence[str] | None = None) -> None:
    """Write the rows to `table.json` and `table.md`; `figures` names rows of one run, else the algorithm does."""
    records = [asdict(row) for row in rows]
    if figures is not None:
        records = [{"figure": name, **record} for name, record in zip(figures, records, strict=True)]
    out.mkdir(parents=True, exist_ok=True)
    write_text_atomic(out / "table.json", json.dumps({"rows": records}, indent=1) + "\n")
    write_text_atomic(out / "table.md", format_markdown_table(rows, figures))


def read_table(out: Path) -> tuple[list[PanelResult], list[str]]:
    """Read the rows of an adaptation and their names, as `write_table` wrote them."""
    records: list[dict[str, Any]] = read_json(out / "table.json")["rows"]
    figures = [record.pop("figure") for record in records]
    return [PanelResult(**record) for record in records], figures


def format_markdown_table(rows: Sequence[PanelResult], figures: Sequence[str] | None = None) -> str:
    """Format the rows as a Markdown table, with the interval's method beneath."""
    head, cells = build_panel_table(rows, figures)
    lines = [f"| {' | '.join(line)} |" for line in (head, *cells)]
    lines.insert(1, "|---" * len(head) + "|")
    return "\n".join([*lines, "", *describe_intervals(rows), ""])


def describe_intervals(rows: Sequence[PanelResult]) -> list[str]:
    """Name the methods of the rows' intervals, and what their panels remark, in lines for the text below a table.

    `NO_SUCCESS` stands there only where no row has a success.
    """
    won = any(row.metric == "success" and row.mean > 0 for row in rows)
    kept = [row.remark.removesuffix(NO_SUCCESS).removesuffix(". ") if won else row.remark for row in rows]
    remarks = dict.fromkeys(f"{remark}." for remark in kept if remark)
    return [*sorted({f"Intervals: {row.interval}." for row in rows}), *remarks]


def build_panel_table(rows: Sequence[PanelResult], figures: Sequence[str] | None = None) -> Table:
    first, steps = ("algorithm", "env steps") if figures is None else ("figure", "env steps before")
    head = [first, "memory", "panel", "metric", "mean", "interval", steps]
    head += ["seeds"] if figures is None else []  # a run has one
    names = [row.algorithm for row in rows] if figures is None else figures
    cells = [
        [name, "with" if row.memory else "without", f"{row.panel} ({row.num_tasks})", row.metric, f"{row.mean:.3f}",
         row.format_interval(3), f"{row.env_steps:,}", str(row.seeds)]
        for name, row in zip(names, rows, strict=True)
    ]  # fmt: skip
    return head, [line[: len(head)] for line in cells]


def write_episodes(episodes: Sequence[Trajectory], path: Path) -> None:
    """Write whole episodes, one JSON object a line, as in `trajectories.jsonl` of a run."""
    if not episodes:
        raise ConfigError(f"no episode could be played, so {path} was not written")
    write_bytes_atomic(path, b"".join(encode_line(trajectory_to_json(t)) for t in episodes))
