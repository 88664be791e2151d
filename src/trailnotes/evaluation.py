"""Fixed panels: how well a policy does without its notes, with them, and trial after trial."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes import checkpoint
from trailnotes.config import LoraConfig
from trailnotes.envs.workers import EnvPool
from trailnotes.errors import ConfigError, RunError
from trailnotes.files import write_text_atomic
from trailnotes.memory import open_memory
from trailnotes.rollout import write_tips
from trailnotes.run import derive_seed, play_panel
from trailnotes.stats import Interval, bootstrap, wilson
from trailnotes.tasks import panel, tasks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trailnotes.config import Config
    from trailnotes.memory.tips import TipMemory
    from trailnotes.policies.hf import HFPolicy
    from trailnotes.types import Task, Trajectory


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


def panel_result(
    episodes: Sequence[Trajectory], config: Config, *, algorithm: str, memory: bool, env_steps: int
) -> PanelResult:
    """The row of a table for `episodes`."""
    if not episodes:
        raise ConfigError(f"no episode of split {config.eval.split!r} could be played; see the log for the reason")
    interval, method = interval_of(episodes, config)
    return PanelResult(
        algorithm=algorithm,
        memory=memory,
        panel=config.eval.split,
        metric=config.eval.metric,
        mean=interval.mean,
        ci_low=interval.low,
        ci_high=interval.high,
        env_steps=env_steps,
        seeds=1,
        num_tasks=len({t.task.id for t in episodes}),
        num_episodes=len(episodes),
        interval=method,
    )


@dataclass(frozen=True, slots=True)
class Subject:
    """Who is examined: a model directory, and where it comes from a run, that run's memory and spending."""

    model: str
    name: str
    memory: Path | None = None
    env_steps: int = 0


def resolve(model_or_run: Path | str) -> Subject:
    """A run directory (its last valid checkpoint), a checkpoint of one, or any model that transformers can load."""
    path = Path(model_or_run)
    root = path / "checkpoints"
    if root.is_dir():
        found = checkpoint.latest(root)
        if found is None:
            raise RunError(f"{path} holds no finished checkpoint yet; train it first, or wait for the first save")
        path = found
    if (path / "model").is_dir() and (path / "meta.json").is_file():
        meta = checkpoint.load_meta(path)
        memory = path / "memory.db"
        algorithm = "empo2" if memory.is_file() else "grpo"
        return Subject(str(path / "model"), algorithm, memory if memory.is_file() else None, int(meta["env_steps"]))
    return Subject(str(model_or_run), "start")


def load_policy(config: Config, subject: Subject) -> HFPolicy:
    """The policy of `subject` under this config's device and limits."""
    import torch

    from trailnotes.policies.hf import HFPolicy, load_model

    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    whole = {"path": subject.model, "lora": LoraConfig()}  # adapters are merged into what a checkpoint exports
    model, tokenizer = load_model(config.model.model_copy(update=whole))
    return HFPolicy(
        model,
        tokenizer,
        name=subject.model,
        deterministic=config.run.deterministic,
        max_context_tokens=config.rollout.max_context_tokens,
    )


def evaluate(
    config: Config, model_or_run: Path | str, *, memory: bool | None = None, out: Path | None = None
) -> PanelResult:
    """Play the fixed panel of `config.eval`, with or without the run's memory, and report mean and interval.

    Args:
        config: panel, sampling and environment.
        model_or_run: run directory, checkpoint, model directory or hub name.
        memory: act with the run's memory; None takes `config.eval.memory`.
        out: directory for `table.json`, `table.md` and `episodes.jsonl`; None writes nothing.
    """
    subject = resolve(model_or_run)
    use_memory = config.eval.memory if memory is None else memory
    if use_memory and subject.memory is None:
        raise ConfigError(f"{model_or_run} has no memory to act with: give a run directory of empo2, or drop --memory")
    episodes = asyncio.run(_play(config, subject, use_memory=use_memory))
    result = panel_result(episodes, config, algorithm=subject.name, memory=use_memory, env_steps=subject.env_steps)
    if out is not None:
        write_table([result], out)
        write_episodes(episodes, out / "episodes.jsonl")
    return result


async def _play(config: Config, subject: Subject, *, use_memory: bool) -> list[Trajectory]:
    tasks = panel(tasks_of(config, config.eval.split), config.eval.num_tasks)
    policy = load_policy(config, subject)
    memory = open_memory(None, config.memory) if use_memory else None
    if memory is not None and subject.memory is not None:
        memory.restore(subject.memory)
    with EnvPool(config.env) as pool:
        return await play_panel(policy, pool, tasks, config, memory=memory, seed=config.run.seed)


def write_table(rows: Sequence[PanelResult], out: Path) -> None:
    """`table.json` and `table.md`."""
    out.mkdir(parents=True, exist_ok=True)
    write_text_atomic(out / "table.json", json.dumps({"rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    write_text_atomic(out / "table.md", markdown_table(rows))


def markdown_table(rows: Sequence[PanelResult]) -> str:
    """The rows as a Markdown table, with the interval's method beneath."""
    lines = ["| algorithm | memory | panel | metric | mean | interval | env steps | seeds |", "|---" * 8 + "|"]
    lines += [
        f"| {r.algorithm} | {'with' if r.memory else 'without'} | {r.panel} ({r.num_tasks}) | {r.metric} "
        f"| {r.mean:.3f} | [{r.ci_low:.3f}, {r.ci_high:.3f}] | {r.env_steps:,} | {r.seeds} |"
        for r in rows
    ]
    return "\n".join([*lines, "", *sorted({f"Intervals: {r.interval}." for r in rows}), ""])


def write_episodes(episodes: Sequence[Trajectory], path: Path) -> None:
    """Whole episodes, one JSON object a line, as in `trajectories.jsonl` of a run."""
    from trailnotes.logs import trajectory_to_json

    lines = [json.dumps(trajectory_to_json(t), ensure_ascii=False) for t in episodes]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, "\n".join(lines) + "\n")


# -- adaptation without weight updates


def adapt(
    config: Config,
    model_or_run: Path | str,
    *,
    trials: int | None = None,
    out: Path,
    progress: Callable[[int, PanelResult], None] | None = None,
) -> list[PanelResult]:
    """Trial 0 without memory, then `trials` trials that act with memory and write tips; no weight changes.

    Every tip is kept in `out/memory.db`, and every trial in `out/adapt.json`; the same command on the same directory
    goes on after the last finished trial. Source: EMPO2, section 6 (out-of-distribution adaptation).
    """
    subject = resolve(model_or_run)
    num_trials = config.eval.trials if trials is None else trials
    out.mkdir(parents=True, exist_ok=True)
    policy = load_policy(config, subject)
    memory = open_memory(out / "memory.db", config.memory)
    try:
        return asyncio.run(_adapt(config, subject, policy, memory, num_trials, out, progress))
    finally:
        memory.close()


async def _adapt(
    config: Config,
    subject: Subject,
    policy: HFPolicy,
    memory: TipMemory,
    num_trials: int,
    out: Path,
    progress: Callable[[int, PanelResult], None] | None,
) -> list[PanelResult]:
    tasks = panel(tasks_of(config, config.eval.split), config.eval.num_tasks)
    done = read_trials(out / "adapt.json")
    with EnvPool(config.env) as pool:
        for trial in range(len(done), num_trials + 1):
            seed = derive_seed(config.run.seed, "adapt", trial)
            shown = memory if trial else None
            episodes = await play_panel(policy, pool, tasks, config, memory=shown, seed=seed)
            result = panel_result(
                episodes, config, algorithm=subject.name, memory=bool(trial), env_steps=subject.env_steps
            )
            if trial < num_trials:  # what the last trial learned nobody would read
                tips, _ = await write_tips(policy, _groups(episodes), config, seed=seed, step=trial)
                memory.add(tips)
            done.append(result)
            write_text_atomic(out / "adapt.json", json.dumps({"trials": [asdict(r) for r in done]}, indent=1) + "\n")
            write_episodes(episodes, out / f"trial-{trial:02d}.jsonl")
            if progress is not None:
                progress(trial, result)
    return done


def read_trials(path: Path) -> list[PanelResult]:
    """The finished trials of an earlier, interrupted adaptation."""
    if not path.is_file():
        return []
    try:
        return [PanelResult(**row) for row in json.loads(path.read_text())["trials"]]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged ({error}); move it away to start the adaptation afresh") from error


def _groups(episodes: Sequence[Trajectory]) -> list[Any]:
    from trailnotes.types import TrajectoryGroup

    return [TrajectoryGroup(t.task, (t,)) for t in episodes]


# -- a few episodes to read


def rollout(config: Config, model_or_run: Path | str | None = None, *, out: Path | None = None) -> list[Trajectory]:
    """Play `rollout.num_tasks` tasks of the training split once each, to be read; optionally written as JSONL."""
    config = replace_eval(config, split=config.train.split, num_tasks=config.rollout.num_tasks)
    subject = resolve(model_or_run or config.model.path)
    episodes: list[Trajectory] = asyncio.run(_play(config, subject, use_memory=False))
    if out is not None:
        write_episodes(episodes, out)
    return episodes


def replace_eval(config: Config, **changes: Any) -> Config:
    """The config with other settings of the panel."""
    return config.model_copy(update={"eval": config.eval.model_copy(update=changes)})
