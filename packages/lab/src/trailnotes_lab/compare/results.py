"""Read the results of runs from their directories: values by game, attempts, learning curves, costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trailnotes.errors import RunError
from trailnotes.runs.directory import report_damaged_run
from trailnotes.runs.panels import get_family
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Task
from trailnotes_lab.compare.cost import load_costs
from trailnotes_lab.compare.evaluations import (
    Evaluation,
    average_by_name,
    find_evaluations,
    load_evaluation,
    validate_same_protocol,
)
from trailnotes_lab.compare.published.protocol import make_column_label
from trailnotes_lab.story import Record

GameValues = Mapping[str, float]  # game -> value
TRIAL_PREFIX = "trial-"  # begins the name of a phase that is an attempt at the panel


@dataclass(frozen=True, slots=True)
class Attempts:
    """Values of several attempts of one run at the games of the panel."""

    number: int  # at a game, at most
    first: GameValues  # the first attempt at each that was played
    last: GameValues  # the last trial; {} where it did not play the whole panel again
    best: GameValues  # the best of all attempts at each: cumulative success
    failed: frozenset[str] = frozenset()  # games whose environment failed in a trial


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one run of one method on the panel."""

    label: str
    seed: int
    evaluation: Evaluation
    trains: bool  # whether the run changed weights
    games: GameValues  # as evaluated
    attempts: Attempts | None  # None: one attempt at a game
    costs: Mapping[str, float]
    curve: tuple[tuple[float, float], ...]  # (environment steps, metric without tips); () without training
    families: Mapping[str, str] = field(default_factory=dict)  # game -> family
    returns: tuple[GameValues, ...] = ()  # of the first and the last attempt, where success is judged; else ()


def read_result(directory: Path, label: str = "") -> RunResult:
    """Read a run that has been evaluated, or an evaluation alone; `label` is by default made of its method."""
    places = find_evaluations(directory)
    if len(places) > 1:
        raise RunError(f"{directory} holds {len(places)} evaluations: name the one that is meant")
    with report_damaged_run(directory):
        return _build_result(load_evaluation(places[0], label))


def _build_result(evaluation: Evaluation) -> RunResult:
    run_dir = evaluation.path.parent if (evaluation.path.parent / "config.toml").is_file() else None
    trains = run_dir is not None and any((run_dir / "checkpoints").glob("step-*"))
    trials = read_trial_records(run_dir) if run_dir and not trains else []
    attempts, return_attempts = (build_attempts(trials, metric) for metric in (evaluation.metric, "return"))
    tasks = [episode.task for episode in evaluation.episodes]
    if attempts:  # a game whose environment failed in the evaluation was played in other trials
        tasks += [Task(**record["task"]) for records in trials for record in records]
    returns: tuple[GameValues, ...] = ()
    if evaluation.metric != "return":
        own = return_attempts
        returns = (own.first, own.last) if own else (_average_by_game(evaluation, "return"),)
    return RunResult(
        label=make_column_label(evaluation),
        seed=evaluation.seed,
        evaluation=evaluation,
        trains=trains,
        games=_average_by_game(evaluation, evaluation.metric),
        attempts=attempts,
        costs=load_costs(run_dir) if run_dir else {},
        curve=_read_learning_curve(run_dir, evaluation.metric) if run_dir and trains else (),
        families={task.id: get_family(task) for task in tasks},
        returns=returns,
    )


def _average_by_game(evaluation: Evaluation, metric: str) -> dict[str, float]:
    return average_by_name(
        (episode.task.id, float(episode.success) if metric == "success" else episode.value)
        for episode in evaluation.episodes
    )


def _read_learning_curve(run_dir: Path, metric: str) -> tuple[tuple[float, float], ...]:
    """Environment steps against the metric without tips: on validation games where there are any, else in training."""
    lines = list(read_jsonl(run_dir / "metrics.jsonl"))
    validated = f"validation/{metric}"
    name = validated if any(validated in line for line in lines) else f"rollout/{metric}/plain"
    return tuple((float(line["env_steps"]), float(line[name])) for line in lines if name in line)


def build_attempts(trials: Sequence[Sequence[Record]], metric: str) -> Attempts | None:
    """Build the result of each trial on the games of the panel; None if the run played each once.

    `trials` are those of `read_trial_records`.
    """
    means = average_trials(trials, metric)
    if len(means) < 2:
        return None
    games = dict.fromkeys(game for trial in means for game in trial)
    played = {game: [trial[game] for trial in means if game in trial] for game in games}
    attempted = {record["task"]["id"] for record in trials[-1]}  # also where the environment failed
    last = means[-1] if attempted >= played.keys() else {}
    first = {game: values[0] for game, values in played.items()}
    best = {game: max(values) for game, values in played.items()}
    failed = {record["task"]["id"] for trial, own in zip(trials, means, strict=True) for record in trial
              if record["task"]["id"] not in own}  # fmt: skip
    return Attempts(max(map(len, played.values())), first, last, best, frozenset(failed))


def average_trials(trials: Sequence[Sequence[Record]], metric: str) -> list[GameValues]:
    """Average the value of each game in each trial; games whose environment failed there are absent."""
    played = ([record for record in records if record["outcome"] != "error"] for records in trials)
    return [average_by_name((record["task"]["id"], float(record[metric])) for record in own) for own in played]


def read_trial_records(run_dir: Path) -> list[list[Record]]:
    """Read the episodes of each trial without their steps, the first trial first.

    A trial is a phase `trial-N` in metrics.jsonl, and knows of the trials before it. Other phases are no further
    attempts: those that fill a table on other games, or play the panel once more without the additions of the method.
    """
    lines = read_jsonl(run_dir / "metrics.jsonl")
    named = {line["iteration"] for line in lines if str(line.get("phase", "")).startswith(TRIAL_PREFIX)}
    trials: dict[int, list[Record]] = {}
    for record in read_jsonl(run_dir / "trajectories.jsonl"):
        if record["iteration"] in named:
            record.pop("steps", None)
            trials.setdefault(record["iteration"], []).append(record)
    if len(named) > 1 and not trials:
        raise RunError(f"{run_dir} has no episodes of its {len(named)} trials, as some older records: leave it out")
    return [records for _, records in sorted(trials.items())]


def collect_last(results: Sequence[RunResult]) -> dict[int, GameValues]:
    """Collect the last attempts of a method, seed by seed; {} unless every seed has one: its seeds are judged alike."""
    last = {result.seed: result.attempts.last for result in results if result.attempts and result.attempts.last}
    return last if len(last) == len(results) else {}


def collect_best(results: Sequence[RunResult]) -> dict[int, GameValues]:
    """Collect the best of several attempts, seed by seed; of a seed with one attempt, that one."""
    return {result.seed: result.attempts.best if result.attempts else result.games for result in results}


def collect_final(results: Sequence[RunResult]) -> dict[int, GameValues]:
    """Collect the values that a method is judged by: the last of several attempts, or else the best of them."""
    return collect_last(results) or collect_best(results)


def validate_same_panel(results: Sequence[RunResult]) -> None:
    """Require that all results are of one protocol, panel and metric, and no method has a seed twice."""
    validate_same_protocol([result.evaluation for result in results], "table")
    first = results[0].evaluation
    seen: dict[tuple[str, int], Path] = {}
    for result in results:
        other = result.evaluation
        if (other.planned, other.metric) != (first.planned, first.metric):
            raise RunError(f"{first.path} and {other.path} are of different panels or metrics: leave one out")
        if before := seen.get((result.label, result.seed)):
            raise RunError(f"{before} and {other.path} are both {result.label!r} with seed {result.seed}: leave one "
                           f"out, or name one otherwise, {other.path}=LABEL")  # fmt: skip
        seen[result.label, result.seed] = other.path
