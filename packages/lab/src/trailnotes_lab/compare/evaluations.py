"""Find and read evaluations, directories that ``trailnotes eval --out`` wrote; of a run those below ``RUN/eval``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.envs.tasks import load_tasks
from trailnotes.errors import ConfigError, RunError, format_error
from trailnotes.runs.usage import TABLE_FIELDS
from trailnotes.storage.files import parse_json, read_jsonl
from trailnotes.types import Task

EVAL_DIR = "eval"  # inside a run directory


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    task: Task
    value: float  # return
    success: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation of one model on one panel."""

    path: Path
    label: str  # given on the command line; "" = named after its method
    player: str  # as its own table calls the model
    metric: str  # that its own table shows
    memory: bool  # whether it played with tips
    costs: Mapping[str, float]  # of the training, by the names of `TABLE_FIELDS`
    model: str  # that played: a checkpoint's directory, a model directory, a hub name
    settings: Config  # that it was played with
    trained: Config | None  # settings of the run evaluated; None for a model that came from no run
    planned: tuple[str, ...]  # task ids of the panel
    episodes: tuple[EpisodeResult, ...]
    protocol: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # identities: of the panel, of the training

    @property
    def seed(self) -> int:
        """Get the seed of the training; of the sampling for a model that came from no run."""
        return (self.trained or self.settings).run.seed

    @property
    def run(self) -> tuple[str, int]:
        return self.model, self.seed

    def get_episodes(self, task: str) -> list[EpisodeResult]:
        return [episode for episode in self.episodes if get_panel_row(episode.task.id) == task]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(get_panel_row(episode.task.id) for episode in self.episodes))

    def list_training_tasks(self) -> list[Task]:
        """List the tasks that the run was trained on; none without training, or where it was in another environment.

        Listing tasks imports the environment, which a stranger may have chosen.
        """
        if self.trained is None or self.trained.env.name != self.settings.env.name:
            return []
        return load_tasks(self.trained, self.trained.train.split)


def get_panel_row(task_id: str) -> str:
    """Get the row of a task: ``env/find-animal/225`` belongs to ``find-animal``."""
    return "/".join(task_id.split("/")[1:-1])


def get_variation(task_id: str) -> str:
    """Get the variation of a task: ``225`` of ``env/find-animal/225``."""
    return task_id.rpartition("/")[2]


def average_by_name(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Average the values of each name, such as those of the episodes of each game."""
    groups: dict[str, list[float]] = {}
    for name, value in values:
        groups.setdefault(name, []).append(value)
    return {name: math.fsum(own) / len(own) for name, own in groups.items()}


def load_evaluations(words: Sequence[str], env: str) -> tuple[list[Evaluation], list[str]]:
    """Load the evaluations that the words ``DIR`` or ``DIR=LABEL`` stand for, each once, and remarks about them."""
    evaluations: dict[Path, Evaluation] = {}
    notes: list[str] = []
    for word in words:
        place, label = split_label(word)
        for path in find_evaluations(place):
            if path.resolve() in evaluations:
                notes.append(f"{path} was given twice and is counted once.")
                continue
            evaluation = load_evaluation(path, label)
            if evaluation.settings.env.name != env:
                raise RunError(f"{path} was played in {evaluation.settings.env.name}, but the panel is one of {env}: "
                               "leave it out")  # fmt: skip
            evaluations[path.resolve()] = evaluation
    return list(evaluations.values()), notes


def validate_same_protocol(evaluations: Sequence[Evaluation], place: str) -> None:
    """Require that the evaluations of one "column" or "table" were played, and trained, on the same goals and data."""
    firsts: dict[str, Evaluation] = {}
    for evaluation in evaluations:
        for name, identity in evaluation.protocol.items():
            first = firsts.setdefault(name, evaluation)
            before = first.protocol[name]
            if keys := [key for key in before | identity if before.get(key) != identity.get(key)]:
                pairs = [["others" if isinstance(value := record.get(key), Mapping) else str(value)
                          for record in (before, identity)] for key in keys]  # fmt: skip
                differing = ", ".join(f"{key} {' and '.join(pair)}" for key, pair in zip(keys, pairs, strict=True))
                other = f", or name one otherwise, {evaluation.path}=LABEL" if place == "column" else ""
                raise RunError(f"{first.path} and {evaluation.path} are of two protocols ({differing}), and one "
                               f"{place} is of one: leave one out{other}")  # fmt: skip


def split_label(word: str) -> tuple[Path, str]:
    """Split ``DIR=LABEL`` in two; a directory that has "=" in its own name stays whole."""
    place, equals, label = word.rpartition("=")
    if not equals or Path(word).exists():
        return Path(word), ""
    if not label.strip():
        raise ConfigError(f"{word}: the label after = is empty: write DIR=LABEL")
    return Path(place), " ".join(label.split())


def is_evaluation(path: Path) -> bool:
    return (path / "panel.json").is_file()


def find_evaluations(path: Path) -> list[Path]:
    """Find the evaluations of a directory: itself, or else all at and below its `eval`."""
    if not path.is_dir():
        raise RunError(f"{path} is not a directory: name a run, or what `trailnotes eval --out` wrote")
    if is_evaluation(path):
        return [path]
    if inside := sorted(file.parent for file in (path / EVAL_DIR).rglob("panel.json")):
        return inside
    if (path / "config.toml").is_file():
        raise RunError(f"{path} has not been evaluated: trailnotes eval {path} --out {path / EVAL_DIR}")
    raise RunError(f"{path} holds neither a run nor an evaluation: name a run, or what `trailnotes eval --out` wrote")


def load_evaluation(path: Path, label: str = "") -> Evaluation:
    again = "evaluate again, by the same `trailnotes eval --out` command"
    for name in ("table.json", "eval.toml", "episodes.jsonl"):
        if not (path / name).is_file():
            raise RunError(f"{path} is not a whole evaluation (there is no {name}): {again}")
    try:
        (row,) = _read_json(path / "table.json")["rows"]
        player, metric = str(row["algorithm"]), str(row["metric"])
        memory, counted = bool(row["memory"]), int(row["num_episodes"])
        costs = {name: float(row[name]) for name in TABLE_FIELDS}
        panel = _read_json(path / "panel.json")
        model, planned = str(panel["model"]), tuple(map(str, panel["tasks"]))
        protocol = {name: dict(panel[name]) for name in ("environment", "trained_environment") if name in panel}
        episodes = tuple(_read_episodes(path / "episodes.jsonl"))
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise RunError(f"{path} is damaged ({format_error(error)}): {again}") from error
    if len(episodes) != counted:
        raise RunError(f"{path} is damaged (table.json counts {counted} episodes, episodes.jsonl holds "
                       f"{len(episodes)}): {again}")  # fmt: skip
    try:
        settings = load_config(path / "eval.toml", trusted=False)
        file = path / "trained.toml"
        trained = load_config(file, trusted=False) if file.is_file() else None
    except ConfigError as error:
        raise RunError(f"settings of an evaluation cannot be used: {error}") from error
    return Evaluation(path, label, player, metric, memory, costs, model, settings, trained, planned, episodes,
                      protocol)  # fmt: skip


def _read_episodes(path: Path) -> Iterator[EpisodeResult]:
    for record in read_jsonl(path):
        value = record["return"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"episodes.jsonl has the return {value!r}")
        yield EpisodeResult(Task(**record["task"]), float(value), record["success"] is True)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value: Mapping[str, Any] = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    return value
