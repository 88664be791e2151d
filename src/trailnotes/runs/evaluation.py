"""Evaluation of one model on a panel, which resumes after a stop without repeating finished episodes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trailnotes.config.former import RENAMED_KEYS, has_former_default
from trailnotes.config.schema import Config
from trailnotes.config.toml import RUNTIME_KEYS, flatten_config, is_within
from trailnotes.config.unused import warn_unused
from trailnotes.envs.tasks import describe_tip_overlap, load_panel, tasks_of
from trailnotes.errors import ConfigError, RunError
from trailnotes.gateway.pool import open_pool
from trailnotes.memory import TipMemory, embedder_of, open_memory
from trailnotes.memory.controls import make_prompt_memory
from trailnotes.runs.console import ProgressBar
from trailnotes.runs.dependencies import require_dependencies
from trailnotes.runs.load_policy import EvaluatedModel, open_policy
from trailnotes.runs.loop import run_to_end
from trailnotes.runs.panels import JOURNAL_FILE, play_panel
from trailnotes.storage import checkpoint
from trailnotes.storage.files import append_jsonl, encode_line, find_free_path, read_jsonl, split_after
from trailnotes.storage.records import trajectory_from_json, trajectory_to_json
from trailnotes.types import Task, Trajectory

logger = logging.getLogger(__name__)
EPISODE_KEYS = (
    *("run.seed", "run.deterministic", "model", "env", "rollout", "memory"),
    *("eval.split", "eval.num_tasks", "eval.num_samples", "eval.temperature", "eval.show_tips"),
)
"""The settings on which an episode of a panel depends, but for those of `RUNTIME_KEYS` and the name of the model."""


@dataclass(frozen=True, slots=True)
class PanelEpisodes:
    """Episodes of a panel, with a remark on their tips."""

    episodes: list[Trajectory]  # in the order of the tasks
    remark: str = ""  # how many were shown tips, or why none was; '' without memory


def evaluate_model(
    config: Config,
    subject: EvaluatedModel,
    *,
    use_memory: bool = False,
    directory: Path | None = None,
    progress: ProgressBar | None = None,
) -> PanelEpisodes:
    """Evaluate `subject` on the panel of `config.eval`.

    With `directory` each episode is kept there as it ends, and the same call plays on after a stop; so are an
    endpoint's answers.

    Raises:
        ConfigError: the subject has no memory.
        RunError: `directory` is in use, cannot be written, or holds a damaged journal.
    """
    if use_memory and subject.memory is None:
        raise ConfigError(
            f"{subject.model} has no memory to act with: give the run of a method with a memory, or drop --memory"
        )
    require_dependencies(config, subject.model, plays_only=True, memory=use_memory)
    warn_unused(config, subject.trained, subject.model)
    tasks = load_panel(config)

    async def play(memory: TipMemory | None) -> list[Trajectory]:
        with open_pool(config.env) as pool:
            return await play_panel(
                policy, pool, tasks, config, memory=memory, seed=config.run.seed,
                done=tuple(journal.episodes), progress=journal.append_episode,
            )  # fmt: skip

    journal = EpisodeJournal(directory, len(tasks) * config.eval.num_samples, progress)
    with (
        journal.resume(_build_fingerprint(config, subject, use_memory)),
        open_policy(config, subject, directory) as policy,
    ):
        if not use_memory or subject.memory is None:
            return PanelEpisodes(run_to_end(play(None)))
        with closing(open_memory(None, config.memory, embedder=embedder_of(config))) as memory:
            memory.restore(subject.memory)
            view = make_prompt_memory(memory, config.eval.show_tips)
            if subject.trained is not None:  # a training with scope = task has kept nothing of its games
                view.register_tasks(tasks_of(subject.trained, subject.trained.train.split))
            if said := describe_tip_overlap({tip.namespace for tip in memory.store.load_tips()}, config):
                logger.warning("%s", said)
            episodes = run_to_end(play(view))
            return PanelEpisodes(episodes, describe_tip_use(episodes, tasks, memory, config))


# -- stopped and resumed


class EpisodeJournal:
    """Journal of a panel's episodes: a line for the settings, then one for each episode as it ends."""

    def __init__(self, directory: Path | None, total: int, progress: ProgressBar | None) -> None:
        self.episodes: list[Trajectory] = []  # in the order in which they ended
        self.path = directory and directory / JOURNAL_FILE
        self._total, self._progress = total, progress

    @contextmanager
    def resume(self, about: dict[str, Any]) -> Iterator[None]:
        """Read the journal of an earlier start with the same settings; on a stop, report what is kept."""
        with _lock_directory(self.path.parent) if self.path else nullcontext():
            if self.path:
                self._read(self.path, json.loads(encode_line(about)))
            self._update_progress()
            try:
                yield
            except BaseException as stop:
                begun = self.episodes or (self.path and not isinstance(stop, ConfigError))
                if isinstance(stop, Exception) and not begun:
                    raise  # there is nothing to keep
                kept = f"{len(self.episodes)} of {self._total} episodes are kept in {self.path}, and the same command "
                self._notify(
                    f"stopped: {kept}plays the rest" if self.path else "stopped: without --out nothing is kept"
                )
                raise

    def append_episode(self, episode: Trajectory) -> None:
        """Append a finished episode, synced to disk."""
        if self.path:
            append_jsonl(self.path, [trajectory_to_json(episode)], sync=True)
        self.episodes.append(episode)
        self._update_progress()

    def _read(self, path: Path, about: dict[str, Any]) -> None:
        torn = split_after(path)
        if torn is not None:
            torn.unlink()  # a part of an episode, which is played again
        before, *records = [*read_jsonl(path)] or [about]
        before = {RENAMED_KEYS.get(n, n): value for n, value in before.items() if not has_former_default(n, value)}
        if others := [name for name in before | about if before.get(name) != about.get(name)]:
            aside = path.replace(find_free_path(path))
            self._notify(f"set aside {aside}: its {len(records)} episodes were played with another {', '.join(others)}")
            records = []
        if not path.exists():
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
        if self._progress is not None:
            self._progress.note(text)
        else:
            logger.warning(text)


def _build_fingerprint(config: Config, subject: EvaluatedModel, use_memory: bool) -> dict[str, Any]:
    settings = {name: value for name, value in flatten_config(config).items() if is_within(name, EPISODE_KEYS)}
    own = {name: value for name, value in settings.items() if not is_within(name, (*RUNTIME_KEYS, "model.path"))}
    return own | {"eval.memory": use_memory, "model": _fingerprint_model(subject.model)}


def _fingerprint_model(model: str) -> str:
    """Return a fingerprint of the weights in a directory; any other name as it is."""
    path = Path(model)
    if not path.is_dir():
        return model
    manifest = path.parent / checkpoint.MANIFEST
    if manifest.is_file():
        return hashlib.sha256(manifest.read_bytes()).hexdigest()
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return str([(file.relative_to(path).as_posix(), file.stat().st_size, file.stat().st_mtime_ns) for file in files])


@contextmanager
def _lock_directory(directory: Path) -> Iterator[None]:
    """Lock `directory` for one evaluation, without leaving a file behind."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{directory} is in use by another evaluation: wait for it, or choose another") from None
        except OSError as error:  # a file system without locks on directories
            logger.debug("%s is not locked: %s", directory, error)
        yield
    finally:
        os.close(descriptor)


# -- tips


def describe_tip_use(episodes: Sequence[Trajectory], tasks: Sequence[Task], memory: TipMemory, config: Config) -> str:
    """Describe how many episodes were shown a tip; where none was, the reason and the fix."""
    shown = sum(any(step.tips for step in episode.steps) for episode in episodes)
    if shown:
        return f"Tips were shown in {shown} of {len(episodes)} episodes"
    none = f"No tip was shown in any of {len(episodes)} episodes"
    wanted = sorted({task.id for task in tasks})
    held = sorted({tip.namespace for tip in memory.store.load_tips()})
    if not held:
        return f"{none}, since the memory holds no tip"
    if known := len({*held} & {*wanted}):
        return (f"{none}, though the memory has tips of {known} of the panel's {len(wanted)} tasks: they are switched "
                "off (`trailnotes memory enable`), less similar to the turns than memory.threshold, or without room "
                "beside the turns that are left (memory.leave_room, rollout.max_context_tokens)")  # fmt: skip
    return (
        f"{none}, since the memory has tips of {len(held)} tasks ({held[0]}, ...) and the panel asks for {len(wanted)} "
        f"others ({wanted[0]}, ...); a tip belongs to the task that it was written about. `trailnotes adapt` writes "
        f"tips about the panel itself and reads them; --eval.split {config.train.split} plays the tasks of the training"
    )
