"""Fixed panels: how well a policy does without its notes, with them, and trial after trial."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes import checkpoint
from trailnotes.config import LoraConfig
from trailnotes.configio import to_toml
from trailnotes.envs.workers import EnvPool
from trailnotes.errors import ConfigError, MissingExtraError, RunError
from trailnotes.files import write_bytes_atomic, write_text_atomic
from trailnotes.jsonl import encode_line, read_jsonl
from trailnotes.logs import run_config
from trailnotes.memory import open_memory
from trailnotes.panels import derive_seed, play_panel
from trailnotes.players import RANDOM, random_player
from trailnotes.plots import trial_curve
from trailnotes.records import trajectory_from_json, trajectory_to_json
from trailnotes.rollout import write_tips
from trailnotes.stats import Interval, bootstrap, wilson
from trailnotes.tasks import panel, tasks_of
from trailnotes.types import TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trailnotes.config import Config
    from trailnotes.memory.tips import TipMemory
    from trailnotes.policies.base import Policy
    from trailnotes.types import Task, Trajectory

logger = logging.getLogger(__name__)
COUNTS = ("env_steps", "tokens_generated", "tokens_trained")


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
    tokens_generated: int = 0  # by the training: actions and notes
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


@dataclass(frozen=True, slots=True)
class Subject:
    """Who is examined: a model directory, and where it comes from a run, that run's memory and what it spent."""

    model: str
    name: str
    memory: Path | None = None
    spent: Mapping[str, float] = field(default_factory=dict)  # the counters of its checkpoint
    trained: Config | None = None  # the settings of that run


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
        **spending(subject.spent),
    )


def spending(spent: Mapping[str, float]) -> dict[str, Any]:
    """The cost columns of a row; nothing was spent where nothing is known of it."""
    return {name: round(spent.get(name, 0)) for name in COUNTS} | {"seconds": float(spent.get("seconds", 0.0))}


def resolve(model_or_run: Path | str) -> Subject:
    """A run directory (its last whole checkpoint), a checkpoint of one, or any model that transformers can load.

    Raises:
        RunError: the run has no checkpoint yet, or a damaged one.
    """
    path = Path(model_or_run)
    root = path / "checkpoints"
    if root.is_dir():
        found = checkpoint.latest(root)
        if found is None:
            raise RunError(f"{path} holds no finished checkpoint yet; train it first, or wait for the first save")
        return _checkpointed(found)
    if (path / "model").is_dir() and (path / checkpoint.META).is_file():
        if problems := checkpoint.verify(path):
            raise RunError(f"{path} is damaged ({problems[0]}); name another checkpoint, or the run directory")
        return _checkpointed(path)
    name = str(model_or_run)
    return Subject(name, RANDOM if name == RANDOM else "start")


def _checkpointed(path: Path) -> Subject:
    run_dir, memory = path.parent.parent, path / "memory.db"
    has_memory = memory.is_file()
    trained = run_config(run_dir) if (run_dir / "config.toml").is_file() else None
    name = trained.algorithm.name if trained else "empo2" if has_memory else "grpo"
    return Subject(str(path / "model"), name, memory if has_memory else None, checkpoint.load_meta(path), trained)


def load_policy(config: Config, subject: Subject) -> Policy:
    """The policy of `subject` under this config's device and limits."""
    if subject.model == RANDOM:
        return random_player(config)
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
        out: directory for what `write_evaluation` writes; None writes nothing.

    Raises:
        ConfigError: memory is asked for where there is none, or nothing could be played.
    """
    use_memory = config.eval.memory if memory is None else memory
    subject, episodes = play_subject(config, model_or_run, use_memory=use_memory)
    result = panel_result(episodes, config, subject, memory=use_memory)
    if out is not None:
        write_evaluation(out, config, subject, episodes, result)
    return result


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


def play_subject(
    config: Config, model_or_run: Path | str, *, use_memory: bool = False
) -> tuple[Subject, list[Trajectory]]:
    """Who was examined, and the episodes of the panel in the order of its tasks."""
    subject = resolve(model_or_run)
    if use_memory and subject.memory is None:
        raise ConfigError(f"{model_or_run} has no memory to act with: give a run directory of empo2, or drop --memory")
    policy = load_policy(config, subject)

    async def play(memory: TipMemory | None) -> list[Trajectory]:
        with EnvPool(config.env) as pool:
            return await play_panel(policy, pool, panel_of(config), config, memory=memory, seed=config.run.seed)

    if not use_memory or subject.memory is None:
        return subject, asyncio.run(play(None))
    with closing(open_memory(None, config.memory)) as memory:
        memory.restore(subject.memory)
        return subject, asyncio.run(play(memory))


def panel_of(config: Config) -> list[Task]:
    """The tasks of the panel: always the same."""
    return panel(tasks_of(config, config.eval.split), config.eval.num_tasks)


def panel_record(config: Config, model: str) -> dict[str, Any]:
    """What a panel's numbers depend on, for the record: who plays which tasks, how often, how drawn."""
    chosen = {name: getattr(config.eval, name) for name in ("split", "num_samples", "temperature")}
    tasks = [task.id for task in panel_of(config)]
    return {"model": model, "seed": config.run.seed, "env": config.env.name, **chosen, "tasks": tasks}


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
    """Whole episodes, one JSON object a line, as in `trajectories.jsonl` of a run.

    Raises:
        ConfigError: there are none; a file of nothing would pass for a panel that was played.
    """
    if not episodes:
        raise ConfigError(f"no episode could be played, so {path} was not written; see the log for the reason")
    write_bytes_atomic(path, b"".join(encode_line(trajectory_to_json(t)) for t in episodes))


# -- adaptation without weight updates


def adapt(
    config: Config,
    model_or_run: Path | str,
    *,
    trials: int | None = None,
    out: Path,
    progress: Callable[[int, PanelResult], None] | None = None,
) -> list[PanelResult]:
    """Trial 0 without memory, then `trials` trials that act with memory; each trial writes tips; no weight changes.

    Every tip is kept in `out/memory.db`, every trial in `out/adapt.json` and the curve in `out/adapt.png` (where
    matplotlib is installed). The same command on the same directory goes on after the last finished trial, and plays
    no episode twice. Source: EMPO2, section 6 (out-of-distribution adaptation).

    Raises:
        RunError: `out` holds another adaptation, or a damaged one.
    """
    subject = resolve(model_or_run)
    num_trials = config.eval.trials if trials is None else trials
    diary = Diary.open(out / "adapt.json", panel_record(config, subject.model))
    if len(diary.trials) <= num_trials:
        policy = load_policy(config, subject)
        with closing(open_memory(out / "memory.db", config.memory)) as memory:
            asyncio.run(
                _adapt(config, subject, policy, memory, range(len(diary.trials), num_trials + 1), diary, progress)
            )
    done = diary.trials[: num_trials + 1]
    _draw(done, out / "adapt.png")
    return done


async def _adapt(
    config: Config,
    subject: Subject,
    policy: Policy,
    memory: TipMemory,
    trials: range,
    diary: Diary,
    progress: Callable[[int, PanelResult], None] | None,
) -> None:
    """Each trial in three steps, each of which stays done: episodes, tips, the line in the diary."""
    with EnvPool(config.env) as pool:
        for trial in trials:
            seed = derive_seed(config.run.seed, "adapt", trial)
            file = diary.path.with_name(f"trial-{trial:02d}.jsonl")
            if not file.exists():
                shown = memory if trial else None
                write_episodes(await play_panel(policy, pool, panel_of(config), config, memory=shown, seed=seed), file)
            episodes = [trajectory_from_json(record) for record in read_jsonl(file)]
            result = panel_result(episodes, config, subject, memory=bool(trial))
            if not any(not tip.imported for tip in memory.store.tips(after=diary.sequence)):
                groups = [TrajectoryGroup(episode.task, (episode,)) for episode in episodes]
                memory.add((await write_tips(policy, groups, config, seed=seed, step=trial)).tips)
            diary.add(result, memory.store.sequence)
            if progress is not None:
                progress(trial, result)


@dataclass(slots=True)
class Diary:
    """`adapt.json`: what is examined, the finished trials, and how far the memory was after the last of them."""

    path: Path
    about: dict[str, Any]
    trials: list[PanelResult]
    sequence: int  # `TipStore.sequence`; tips that came later belong to a trial that was interrupted

    @classmethod
    def open(cls, path: Path, about: dict[str, Any]) -> Diary:
        """Begin one, or take one up that is about the same."""
        if not path.is_file():
            diary = cls(path, about, [], 0)
            diary.save()
            return diary
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            diary = cls(
                path, record["about"], [PanelResult(**row) for row in record["trials"]], int(record["sequence"])
            )
            changed = [name for name in about if diary.about.get(name) != about[name]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{path} is damaged ({error}); move it away to start the adaptation afresh") from error
        if changed:
            raise RunError(f"{path.parent} holds an adaptation with another {', '.join(changed)}; choose another --out")
        return diary

    def add(self, result: PanelResult, sequence: int) -> None:
        """A trial is over."""
        self.trials.append(result)
        self.sequence = sequence
        self.save()

    def save(self) -> None:
        """Write it down, whole or not at all."""
        record = {"about": self.about, "sequence": self.sequence, "trials": [asdict(row) for row in self.trials]}
        write_text_atomic(self.path, json.dumps(record, indent=1) + "\n")


def _draw(results: Sequence[PanelResult], path: Path) -> None:
    """The curve of an adaptation."""
    intervals = [Interval(row.mean, row.ci_low, row.ci_high) for row in results]
    title = f"{results[0].algorithm} on {results[0].panel} ({results[0].num_tasks} tasks)\n{results[-1].interval}"
    try:
        trial_curve(intervals, path, ylabel=results[0].metric, title=title)
    except MissingExtraError as error:
        logger.warning("no %s: %s", path.name, error)


# -- a few episodes to read


def rollout(config: Config, model_or_run: Path | str | None = None, *, out: Path | None = None) -> list[Trajectory]:
    """Play `rollout.num_tasks` tasks of the training split once each, to be read; optionally written as JSONL."""
    config = replace_eval(config, split=config.train.split, num_tasks=config.rollout.num_tasks)
    _, episodes = play_subject(config, model_or_run or config.model.path)
    if out is not None:
        write_episodes(episodes, out)
    return episodes


def replace_eval(config: Config, **changes: Any) -> Config:
    """The config with other settings of the panel."""
    return config.model_copy(update={"eval": config.eval.model_copy(update=changes)})
