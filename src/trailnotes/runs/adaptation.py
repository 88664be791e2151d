"""An adaptation: the services of a method without weight updates, in one run directory.

A method's code runs from its top at every start. Each episode and each answer is on disk as soon as it ends, and a
method always gets the file's content, so that a restart makes no difference::

    phases/trial-2.episodes.jsonl   as they end, failed attempts too
    phases/trial-2.notes.jsonl      completions of `write`, by index
    trajectories.jsonl, metrics.jsonl   as of a training run; one iteration for each `log`
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trailnotes.config.schema import Config
from trailnotes.envs.tasks import load_panel
from trailnotes.errors import ConfigError
from trailnotes.memory.base import Memory
from trailnotes.policies.base import Policy
from trailnotes.reporting.episodes import log_traceback
from trailnotes.reporting.terminal import ProgressBar, begin_activity
from trailnotes.rollout.episode import MakeActor, Pool
from trailnotes.rollout.groups import GroupRunner, compute_rollout_metrics
from trailnotes.rollout.tips import CompletionRequest, complete_requests
from trailnotes.runs.directory import RunDir
from trailnotes.runs.load_policy import EvaluatedModel
from trailnotes.runs.panels import (
    EPISODE_KEYS,
    PanelResult,
    build_eval_config,
    build_panel_result,
    write_evaluation,
    write_table,
)
from trailnotes.runs.usage import ENDPOINT_COST, USAGE_FIELDS, Usage
from trailnotes.storage.files import (
    append_jsonl,
    completion_from_json,
    completion_to_json,
    find_free_path,
    read_jsonl,
    split_after,
    trajectory_from_json,
    trajectory_to_json,
)
from trailnotes.types import Completion, Mode, Task, Trajectory, TrajectoryGroup, derive_seed

PHASE_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]*")
FIXED_ADAPTATION_KEYS = (
    *(name for name in EPISODE_KEYS if name != "model"),
    *("model.path", "model.base", "model.dtype", "model.template_options", "algorithm"),
    *("model.attn_implementation", "model.load_in_4bit"),
    *("eval.warmup_split", "eval.warmup_tasks", "train.split", "train.num_tasks"),
)
"""These settings, and the sections of the method, decide the episodes and tips of a trial: a begun run keeps them."""


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A row of the results table; a row with a trial is a point of the curve."""

    name: str
    result: PanelResult
    trial: int | None = None


class AdaptationRun:
    """State and services of a run without weight updates, which a method (algorithms/) drives.

    `policy` plays; `author` writes the tips of empo2-tips, and is another policy where `algorithm.author` says so.
    """

    def __init__(
        self, config: Config, directory: RunDir, policy: Policy, author: Policy, pool: Pool, subject: EvaluatedModel,
        progress: ProgressBar | None,
    ) -> None:  # fmt: skip
        self.config, self.directory, self.policy, self.author, self.pool = config, directory, policy, author, pool
        self.tasks: list[Task] = load_panel(config)
        self.figures: list[ResultRow] = []
        self.spent = Usage()  # up to the last `log`
        self._subject, self._progress = subject, progress
        self._pending = Usage()  # since then
        self._unplayable: set[str] = set()  # tasks that failed in an earlier phase, in which others did not
        self._episodes: list[dict[str, Any]] = []  # records since then, failed attempts too
        self._failed = Usage()  # of the failed attempts up to the last `log`, since the one before
        self._phases = directory.path / "phases"
        self._phases.mkdir(exist_ok=True)
        directory.write_config()
        for journal in [*self._phases.glob("*.episodes.jsonl"), *self._phases.glob("*.notes.jsonl")]:
            split_after(journal)
        self._lines = directory.read_metrics()  # of earlier starts; `log` comes by them again
        for torn in directory.move_lines_after(len(self._lines)):
            torn.unlink()  # episodes of a phase whose line was not written: `log` writes them again
        self._logged = 0
        self._started = time.monotonic()

    # -- what a method drives

    def seed(self, *purpose: object) -> int:
        return derive_seed(self.config.run.seed, *purpose)

    async def play(
        self, phase: str, tasks: Sequence[Task], *, memory: Memory | None = None, make_actor: MakeActor | None = None,
        num_samples: int = 1, mode: Mode | None = None, policy: Policy | None = None,
    ) -> list[TrajectoryGroup]:  # fmt: skip
        """Play each task `num_samples` times at the evaluation temperature; groups in task order.

        Args:
            phase: a name of this call alone, such as "trial-2", for its seeds and its file.
            tasks: each task once.
            memory: the ordinary actor reads its tips.
            make_actor: makes other actors.
            num_samples: episodes of each task.
            mode: by default "plain" without memory and actor, else "on_policy_tips".
            policy: by default that of the run.

        Raises:
            ConfigError: every episode failed, and not of tasks alone that failed in an earlier phase, too; the same
                command tries all of them again.
        """
        assert len({task.id for task in tasks}) == len(tasks), "each task is in a phase once"
        mode = mode or ("plain" if memory is None and make_actor is None else "on_policy_tips")
        journal = self._get_journal_path(phase, "episodes")
        done = [trajectory_from_json(record) for record in _read_episodes(journal, tasks)]
        ended = sum(trajectory.outcome != "error" for trajectory in done)

        def keep(trajectory: Trajectory) -> None:
            nonlocal ended
            append_jsonl(journal, [trajectory_to_json(trajectory)], sync=True)
            ended += trajectory.outcome != "error"
            activity.end_unit()
            log_traceback(trajectory)
            self._update_progress(phase, ended, len(tasks) * num_samples, "episodes")

        with begin_activity(self._progress, phase, len(tasks) * num_samples - ended, "episodes") as activity:
            runner = GroupRunner(
                policy or self.policy, self.pool, memory, build_eval_config(self.config), seed=self.seed(phase),
                progress=keep, on_error=keep, on_step=activity.count_step, make_actor=make_actor, once=phase,
                min_members=1,
            )  # fmt: skip
            groups = await runner.play(tasks, [[mode] * num_samples for _ in tasks], done)
        records = _read_episodes(journal, tasks)
        ids = {task.id for task in tasks}
        if not groups and not ids <= self._unplayable:  # an outage: such a trial would stay empty at every start
            journal.replace(find_free_path(journal))
            raise ConfigError(f"no episode of {phase} could be played; the last error was: {records[-1]['error']}")
        self._unplayable |= ids - {group.task.id for group in groups}
        self._episodes += records
        self._pending += _count_usage(records)
        kept = {(t.task.id, t.member): t for t in map(trajectory_from_json, records) if t.outcome != "error"}
        return [TrajectoryGroup(g.task, tuple(kept[g.task.id, t.member] for t in g.trajectories)) for g in groups]

    async def write(
        self, phase: str, requests: Sequence[CompletionRequest], *, policy: Policy | None = None
    ) -> list[Completion]:
        """Have the policy answer each request once; completions in their order, without prompt ids.

        Args:
            phase: a name of this call alone.
            requests: the same ones at every start, as far as they are not answered.
            policy: by default that of the run.
        """
        journal = self._get_journal_path(phase, "notes")
        done = {record["index"] for record in read_jsonl(journal)}
        missing = [index for index in range(len(requests)) if index not in done]

        def keep(index: int, completion: Completion) -> None:
            append_jsonl(journal, [{"index": missing[index], **completion_to_json(completion)}], sync=True)
            done.add(missing[index])
            self._update_progress(phase, len(done), len(requests), "tips")

        limit = self.config.env.max_envs
        pending = [requests[index] for index in missing]
        await complete_requests(policy or self.policy, pending, limit=limit, on_done=keep)
        records = {record["index"]: record for record in read_jsonl(journal)}
        written = [completion_from_json(records[index]) for index in range(len(requests))]
        self._pending += Usage(
            tokens_read=sum(completion.num_prompt_tokens for completion in written),
            tokens_generated=sum(completion.num_tokens for completion in written),
        )
        return written

    def log(self, phase: str, groups: Sequence[TrajectoryGroup], **metrics: float | Mapping[str, float]) -> None:
        """Write the episodes since the last call to trajectories.jsonl, and a line to metrics.jsonl, once.

        Args:
            phase: the name of the line.
            groups: the source of its `rollout/` metrics.
            metrics: those of the method; a mapping gives names below its own, as "memory/tips".
        """
        iteration, spent, episodes = self._logged, self._pending, self._episodes
        self._logged, self._pending, self._episodes = iteration + 1, Usage(), []
        self._failed = _count_usage([record for record in episodes if record["outcome"] == "error"])
        if iteration < len(self._lines):
            line = self._lines[iteration]
            assert line["phase"] == phase, f"line {iteration} of metrics.jsonl is of {line['phase']}, not of {phase}"
            self.spent = Usage(**{name: line[name] for name in USAGE_FIELDS})
            return
        now = time.monotonic()
        self.spent += replace(spent, seconds=now - self._started)
        self._started = now
        errors = [trajectory_from_json(record) for record in episodes if record["outcome"] == "error"]
        rollout = {f"rollout/{name}": value for name, value in compute_rollout_metrics(groups, errors).items()}
        own: dict[str, float] = {}
        for name, value in metrics.items():
            own |= {f"{name}/{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {name: value}
        modes = "+".join(sorted({t.mode for group in groups for t in group.trajectories}))
        append_jsonl(self.directory.trajectories_path, [{"iteration": iteration, **r} for r in episodes])
        clients = [policy.metrics() for policy in {self.policy, self.author} if hasattr(policy, "metrics")]
        endpoint = {name: sum(each[name] for each in clients) for name in (clients[0] if clients else ())}
        self.directory.append_metrics(
            {"iteration": iteration, "phase": phase, "mode": modes, **asdict(self.spent), **rollout, **own, **endpoint}
        )
        if self._progress is not None:
            facts = {"success": rollout.get("rollout/success"), **own, "cost": endpoint.get(ENDPOINT_COST)}
            figures = [f"{k} {v:.3g}" for k, v in facts.items() if v is not None and "/" not in k]
            counts = f"{self.spent.episodes:,} episodes  {self.spent.env_steps:,} steps"
            tokens = f"{self.spent.tokens_read:,} tokens read  {self.spent.tokens_generated:,} written"
            self._progress.note("  ".join([phase, *figures, counts, tokens]))

    def report(
        self, name: str, groups: Sequence[TrajectoryGroup], *, memory: bool, trial: int | None = None
    ) -> PanelResult | None:
        """Add a row to the table, and with `trial` a point to the curve; None without episodes."""
        episodes = [trajectory for group in groups for trajectory in group.trajectories]
        if not episodes:
            return None
        subject, planned = self._build_evaluated_model(episodes), self.tasks if trial is not None else ()
        result = build_panel_result(episodes, self.config, subject, memory=memory, planned=planned)
        self.figures.append(ResultRow(name, result, trial))
        return result

    def write_panel(self, groups: Sequence[TrajectoryGroup], *, memory: bool, name: str = "eval") -> PanelResult:
        """Write `groups` to the directory `name` as `trailnotes eval --out` writes a panel.

        Its costs are those of the subject's training and of this run, without the evaluated episodes.
        """
        episodes = [trajectory for group in groups for trajectory in group.trajectories]
        subject = self._build_evaluated_model(episodes)
        result = build_panel_result(episodes, self.config, subject, memory=memory, planned=self.tasks)
        write_evaluation(self.directory.path / name, self.config, subject, episodes, result)
        return result

    def write_table(self) -> None:
        write_table([row.result for row in self.figures], self.directory.path, [row.name for row in self.figures])

    # -- details

    def _build_evaluated_model(self, episodes: Sequence[Trajectory]) -> EvaluatedModel:
        spent = asdict(self.spent)
        spent["env_steps"] -= self._failed.env_steps + sum(len(t.steps) for t in episodes)
        spent["tokens_generated"] -= self._failed.tokens_generated + sum(t.num_tokens for t in episodes)
        before = self._subject.spent
        total = {name: value + before.get(name, 0) for name, value in spent.items()}
        return replace(self._subject, name=self.config.algorithm.name, spent=total)

    def _get_journal_path(self, phase: str, kind: str) -> Path:
        assert PHASE_PATTERN.fullmatch(phase), f"{phase!r} would be part of a file's name"
        return self._phases / f"{phase}.{kind}.jsonl"

    def _update_progress(self, phase: str, done: int, total: int, unit: str) -> None:
        if self._progress is not None:
            self._progress.update(done / max(1, total), label=f"{phase}  {done}/{total} {unit}")


def _read_episodes(journal: Path, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    places = {task.id: index for index, task in enumerate(tasks)}
    records = [record for record in read_jsonl(journal) if record["task"]["id"] in places]
    return sorted(records, key=lambda record: (places[record["task"]["id"]], record["member"]))


def _count_usage(records: Sequence[Mapping[str, Any]]) -> Usage:
    """Count the usage of `records`, failed attempts too: they have been paid for."""
    steps = [step for record in records for step in record["steps"]]
    return Usage(
        env_steps=len(steps),
        episodes=sum(record["outcome"] != "error" for record in records),
        tokens_read=sum(step["prompt_tokens"] for step in steps),
        tokens_generated=sum(step["tokens"] + step["other_tokens"] for step in steps),
    )
