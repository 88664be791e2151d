"""Evaluation of one model on a fixed panel: `trailnotes.evaluate`. It resumes after a stop, and repeats no episode."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from trailnotes.config.schema import Config
from trailnotes.config.toml import flatten_config
from trailnotes.config.unused import warn_unused
from trailnotes.envs.tasks import (
    describe_tip_overlap,
    describe_training_overlap,
    load_identity,
    load_panel,
    load_tasks,
)
from trailnotes.errors import ConfigError
from trailnotes.gateway.pool import open_pool
from trailnotes.memory import TipMemory, make_config_embedder, open_memory
from trailnotes.memory.controls import make_prompt_memory
from trailnotes.reporting.episodes import log_traceback
from trailnotes.reporting.terminal import Activity, ProgressBar, begin_activity
from trailnotes.runs.directory import RunLock
from trailnotes.runs.load_policy import EvaluatedModel, open_evaluated_model, open_policy
from trailnotes.runs.loop import run_to_end
from trailnotes.runs.panels import (
    JOURNAL_FILE,
    PanelResult,
    build_panel_result,
    decides_episodes,
    play_panel,
    write_episodes,
    write_evaluation,
)
from trailnotes.runs.preflight import require_dependencies
from trailnotes.storage import checkpoint
from trailnotes.storage.files import (
    append_jsonl,
    encode_line,
    find_free_path,
    read_jsonl,
    split_after,
    trajectory_from_json,
    trajectory_to_json,
)
from trailnotes.types import StrPath, Task, Trajectory

logger = logging.getLogger(__name__)


def evaluate(
    config: Config,
    model_or_run: StrPath,
    *,
    memory: bool = False,
    out: StrPath | None = None,
    progress: ProgressBar | None = None,
) -> PanelResult:
    """Play the fixed panel of `config.eval`, with or without the run's memory, and report mean and interval.

    With `out` each episode is kept as it ends; the same call after an interruption plays the rest, and writes the same
    files.

    Args:
        config: panel, sampling and environment.
        model_or_run: run directory, checkpoint, model directory or hub name. A run in training keeps the checkpoint
            until the evaluation has ended.
        memory: act with the run's memory.
        out: directory for the files of `write_evaluation`; None writes nothing.
        progress: displays the number of finished episodes.

    Raises:
        ConfigError: memory is asked for where there is none, or no episode could be played.
        RunError: the run has no whole checkpoint yet, or `out` is in use.
    """
    directory = None if out is None else Path(out)
    if directory is not None and (directory / "table.json").exists():
        logger.warning("%s holds a finished evaluation, which this one replaces", directory)
    run = directory.parent.resolve() if directory and (directory.parent / "config.toml").is_file() else None
    with open_evaluated_model(model_or_run) as subject:
        if run is not None and not Path(subject.model).resolve().is_relative_to(run):  # tables would count its costs
            raise ConfigError(f"--out {directory} lies in a run of another model: choose another directory")
        if warning := describe_training_overlap(subject.trained, config):
            logger.warning("%s", warning)
        episodes, remark = evaluate_model(config, subject, use_memory=memory, directory=directory, progress=progress)
    result = build_panel_result(episodes, config, subject, memory=memory, planned=load_panel(config))
    result = replace(result, remark=". ".join(filter(None, (remark, result.remark))))
    if directory is not None:
        write_evaluation(directory, config, subject, episodes, result)
    return result


def rollout(
    config: Config, model_or_run: StrPath | None = None, *,
    out: StrPath | None = None, progress: ProgressBar | None = None,
) -> list[Trajectory]:  # fmt: skip
    """Play `rollout.num_tasks` training tasks once each, at `rollout.temperature`; optionally write them as JSONL.

    Raises:
        ConfigError: as `evaluate`, or `out` is a directory.
    """
    if out is not None and Path(out).is_dir():
        raise ConfigError(f"{out} is a directory: name a file, such as {Path(out) / 'episodes.jsonl'}")
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)  # it fails before anything is played
    played = {"split": config.train.split, "num_tasks": config.rollout.num_tasks, "num_samples": 1}
    panel = config.eval.model_copy(update={**played, "temperature": config.rollout.temperature})
    with open_evaluated_model(model_or_run or config.model.path) as subject:
        episodes, _ = evaluate_model(config.model_copy(update={"eval": panel}), subject, progress=progress)
    if out is not None:
        write_episodes(episodes, Path(out))
    return episodes


def evaluate_model(
    config: Config,
    subject: EvaluatedModel,
    *,
    use_memory: bool = False,
    directory: Path | None = None,
    progress: ProgressBar | None = None,
) -> tuple[list[Trajectory], str]:
    """Play the panel; return its episodes in the order of the tasks, and a remark on their tips ("" without memory).

    `directory` keeps each episode as it ends, and an endpoint's answers; the same call plays on after a stop.
    """
    if use_memory and subject.memory is None:
        raise ConfigError(
            f"{subject.model} has no memory to act with: give the run of a method with a memory, or drop --memory"
        )
    require_dependencies(config, subject.model, plays_only=True, memory=use_memory)
    warn_unused(config, subject.trained, subject.model)
    tasks = load_panel(config)
    journal = EpisodeJournal(directory, len(tasks) * config.eval.num_samples, progress)
    with ExitStack() as opened:
        opened.enter_context(journal.resume(_build_fingerprint(config, subject, use_memory)))
        with begin_activity(progress, "opening the model"):
            policy = opened.enter_context(open_policy(config, subject, directory))
        memory = opened.enter_context(_open_memory(config, subject)) if use_memory else None
        view = make_prompt_memory(memory, config.eval.show_tips) if memory else None
        if view and subject.trained is not None:  # a training with scope = task has kept nothing of its games
            view.register_tasks(load_tasks(subject.trained, subject.trained.train.split))

        async def play() -> list[Trajectory]:
            with open_pool(config.env) as pool:
                return await play_panel(
                    policy, pool, tasks, config, memory=view, seed=config.run.seed,
                    done=tuple(journal.episodes), progress=journal.append_episode,
                    on_error=journal.record_error, on_step=journal.activity.count_step,
                )  # fmt: skip

        episodes = run_to_end(play())
        if journal.first_error and not episodes:
            raise ConfigError(
                f"no episode of split {config.eval.split!r} could be played; the first one: {journal.first_error}"
            )
        return episodes, describe_tip_use(episodes, tasks, memory) if memory else ""


@contextmanager
def _open_memory(config: Config, subject: EvaluatedModel) -> Iterator[TipMemory]:
    assert subject.memory is not None
    with closing(open_memory(None, config.memory, embedder=make_config_embedder(config))) as memory:
        memory.restore(subject.memory)
        if warning := describe_tip_overlap({tip.namespace for tip in memory.store.load_tips()}, config):
            logger.warning("%s", warning)
        yield memory


# -- stopped and resumed


class EpisodeJournal:
    """Journal of a panel's episodes: a line for the settings, then one for each episode as it ends."""

    def __init__(self, directory: Path | None, total: int, progress: ProgressBar | None) -> None:
        self.episodes: list[Trajectory] = []  # in the order in which they ended
        self.path = directory and directory / JOURNAL_FILE
        self.first_error = ""
        self._total, self._progress = total, progress
        self.activity = Activity("playing", total, "episodes")

    @contextmanager
    def resume(self, about: dict[str, Any]) -> Iterator[None]:
        """Read the journal of an earlier start with the same settings; on a stop, report how much it has."""
        with _lock_directory(self.path.parent) if self.path else nullcontext():
            if self.path:
                self._read(self.path, json.loads(encode_line(about)))
            self._update_progress()
            try:
                left = self._total - len(self.episodes)
                with begin_activity(self._progress, "playing", left, "episodes") as self.activity:
                    yield
            except BaseException as stop:
                if self.path and self.episodes:
                    kept = f"{len(self.episodes)} of {self._total} episodes are kept in {self.path}"
                    self._notify(f"stopped: {kept}, and the same command plays the rest")
                elif self.path:
                    self.path.unlink(missing_ok=True)  # it holds the settings alone
                elif not isinstance(stop, Exception) or self.episodes:
                    self._notify("stopped: without --out nothing is kept")
                raise

    def append_episode(self, episode: Trajectory) -> None:
        if self.path:
            append_jsonl(self.path, [trajectory_to_json(episode)], sync=True)
        self.episodes.append(episode)
        self.activity.end_unit()
        self._update_progress()

    def record_error(self, episode: Trajectory) -> None:
        self.first_error = self.first_error or episode.error
        log_traceback(episode)

    def _read(self, path: Path, about: dict[str, Any]) -> None:
        torn = split_after(path)
        if torn is not None:
            torn.unlink()  # a part of an episode, which is played again
        before, *records = [*read_jsonl(path)] or [about]
        if others := [name for name in before | about if before.get(name) != about.get(name)]:
            backup = path.replace(find_free_path(path))
            self._notify(
                f"set aside {backup}: its {len(records)} episodes were played with another {', '.join(others)}"
            )
            records = []
        if not path.exists() or not path.stat().st_size:  # empty after a disk was full
            append_jsonl(path, [about], sync=True)
        self.episodes = [trajectory_from_json(record) for record in records]
        if self.episodes:
            self._notify(f"playing on: {len(self.episodes)} of {self._total} episodes have ended before")

    def _update_progress(self) -> None:
        if self._progress is not None:
            ended = len(self.episodes)
            facts = {"success": sum(t.success for t in self.episodes) / ended} if ended else {}
            self._progress.update(ended / max(1, self._total), facts, f"{ended}/{self._total} episodes")

    def _notify(self, text: str) -> None:
        (self._progress.note if self._progress is not None else logger.warning)(text)


def _build_fingerprint(config: Config, subject: EvaluatedModel, use_memory: bool) -> dict[str, Any]:
    """Collect what the episodes depend on; a directory of weights counts by its content, not by its name."""
    settings = {name: value for name, value in flatten_config(config).items() if decides_episodes(name)}
    model, path, memory = subject.model, Path(subject.model), use_memory
    if path.is_dir() and not checkpoint.verify(path.parent, contents=False):
        saved = checkpoint.read_json(path.parent / checkpoint.MANIFEST)["files"]
        # Without the optimizer's state, which a training deletes; learner.json has a server's name of the weights.
        places = ("model/", "learner.json") if config.is_hosted else ("model/",)
        weights = {name: saved[name] for name in saved if name.startswith(places)}
        model, memory = hashlib.sha256(json.dumps(weights).encode()).hexdigest(), use_memory and saved["memory.db"]
    elif path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        model = str([(f.relative_to(path).as_posix(), f.stat().st_size, f.stat().st_mtime_ns) for f in files])
    identity = load_identity(config)
    return settings | ({"environment": identity} if identity else {}) | {"eval.memory": memory, "model": model}


@contextmanager
def _lock_directory(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    with RunLock(directory / "eval.lock"):
        try:
            yield
        finally:
            (directory / "eval.lock").unlink()
            with suppress(OSError):
                directory.rmdir()  # where nothing was played


def describe_tip_use(episodes: Sequence[Trajectory], tasks: Sequence[Task], memory: TipMemory) -> str:
    if number := sum(any(step.tips for step in episode.steps) for episode in episodes):
        return f"Tips were shown in {number} of {len(episodes)} episodes"
    namespaces = {tip.namespace for tip in memory.store.load_tips()}
    shared = len(namespaces & {task.id for task in tasks})
    return (f"No tip was shown in any of {len(episodes)} episodes: of the {len(namespaces)} tasks that the memory has "
            f"tips of, {shared} are in the panel (`trailnotes adapt` writes tips about the panel itself)")  # fmt: skip
