"""What the runs of a comparison have played, read from their directories: values by game, attempts, curves, costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trailnotes.errors import RunError
from trailnotes.runs.directory import named_damage
from trailnotes.runs.panels import family_of
from trailnotes.storage.files import read_jsonl
from trailnotes_lab.compare.cost import cost_of
from trailnotes_lab.compare.evaluations import Evaluation, find, read, refuse_two_protocols
from trailnotes_lab.compare.published.protocol import label_of

Games = Mapping[str, float]  # game -> value
TRIAL = "trial-"  # begins the name of a phase that is an attempt at the panel


@dataclass(frozen=True, slots=True)
class Attempts:
    """Several attempts of one run at the games of the panel."""

    number: int  # at a game, at most
    first: Games  # the first attempt at each
    last: Games  # the last trial; {} where it did not play the whole panel again
    best: Games  # the best of all attempts at each: cumulative success


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one method on the panel."""

    label: str
    seed: int
    evaluation: Evaluation
    trains: bool  # whether the run changed weights
    games: Games  # as evaluated
    attempts: Attempts | None  # None: one attempt at a game
    costs: Mapping[str, float]
    curve: tuple[tuple[float, float], ...]  # (environment steps, metric without tips); () without training
    families: Mapping[str, str] = field(default_factory=dict)  # game -> family
    returns: tuple[Games, ...] = ()  # attempt by attempt, where success is judged and does not say all; else ()

    @property
    def final(self) -> Games:
        """What the run is judged by: the last attempt at each game, or where there is none, the evaluation."""
        return self.attempts.last or self.attempts.best if self.attempts else self.games


def read_result(directory: Path, label: str = "") -> Result:
    """A run that has been evaluated, or an evaluation alone.

    Args:
        directory: run directory, or what `trailnotes eval --out` wrote.
        label: of its line; by default made of its method.

    Raises:
        RunError: there is no whole evaluation, more than one, or a damaged line.
    """
    places = find(directory)
    if len(places) > 1:
        raise RunError(f"{directory} holds {len(places)} evaluations: name the one that is meant")
    with named_damage(directory):
        return _result(read(places[0], label))


def _result(evaluation: Evaluation) -> Result:
    run_dir = evaluation.path.parent if (evaluation.path.parent / "config.toml").is_file() else None
    trains = run_dir is not None and any((run_dir / "checkpoints").glob("step-*"))
    attempts = attempts_at(run_dir, evaluation) if run_dir and not trains else None
    return Result(
        label=label_of(evaluation),
        seed=evaluation.seed,
        evaluation=evaluation,
        trains=trains,
        games=_games(evaluation, evaluation.metric),
        attempts=attempts,
        costs=cost_of(run_dir) if run_dir else {},
        curve=curve_of(run_dir, evaluation.metric) if run_dir and trains else (),
        families={episode.task.id: family_of(episode.task) for episode in evaluation.episodes},
        returns=_returns(evaluation, run_dir if attempts else None),
    )


def _returns(evaluation: Evaluation, run_dir: Path | None) -> tuple[Games, ...]:
    """Those of the evaluation, or of each trial of a run; () where they say no more than the metric."""
    if evaluation.metric == "return" or all(episode.value == episode.success for episode in evaluation.episodes):
        return ()
    return tuple(trials_of(run_dir, "return")) if run_dir else (_games(evaluation, "return"),)


def _games(evaluation: Evaluation, metric: str) -> dict[str, float]:
    """Mean of the episodes of each game."""
    values: dict[str, list[float]] = {}
    for episode in evaluation.episodes:
        value = float(episode.success) if metric == "success" else episode.value
        values.setdefault(episode.task.id, []).append(value)
    return {game: math.fsum(own) / len(own) for game, own in values.items()}


def curve_of(run_dir: Path, metric: str) -> tuple[tuple[float, float], ...]:
    """Environment steps against the metric without tips: on validation games where there are any, else in training."""
    lines = list(read_jsonl(run_dir / "metrics.jsonl"))
    validated = f"validation/{metric}"
    name = validated if any(validated in line for line in lines) else f"rollout/{metric}/plain"
    return tuple((float(line["env_steps"]), float(line[name])) for line in lines if name in line)


def attempts_at(run_dir: Path, evaluation: Evaluation) -> Attempts | None:
    """What each trial of a run achieved on the games of its panel; None if it played each once.

    A trial is what `trial-N` names in metrics.jsonl, and knows of the trials before it. Other phases are no further
    attempts: those that fill a table on other games, or play the panel once more without what the method adds.
    """
    means = trials_of(run_dir, evaluation.metric)
    if len(means) < 2:
        return None
    played = {game: [trial[game] for trial in means if game in trial] for game in means[0]}
    last = means[-1] if means[-1].keys() >= played.keys() else {}
    return Attempts(
        number=max(map(len, played.values())),
        first={game: values[0] for game, values in played.items()},
        last=last,
        best={game: max(values) for game, values in played.items()},
    )


def trials_of(run_dir: Path, metric: str) -> list[Games]:
    """What each trial of a run achieved, the first one first; games that failed in the environment are absent."""
    lines = read_jsonl(run_dir / "metrics.jsonl")
    named = {line["iteration"] for line in lines if str(line.get("phase", "")).startswith(TRIAL)}
    trials: dict[int, dict[str, list[float]]] = {}
    for record in read_jsonl(run_dir / "trajectories.jsonl"):
        if record["iteration"] in named and record["outcome"] != "error":
            games = trials.setdefault(record["iteration"], {})
            games.setdefault(record["task"]["id"], []).append(_value(record, metric))
    return [{game: math.fsum(v) / len(v) for game, v in games.items()} for _, games in sorted(trials.items())]


def _value(record: Mapping[str, Any], metric: str) -> float:
    return float(record["success"] if metric == "success" else record["return"])


def refuse_mixed(results: Sequence[Result]) -> None:
    """One table is of one panel.

    Raises:
        RunError: two evaluations are of different protocols, games or metrics, or one method has a seed twice.
    """
    refuse_two_protocols([result.evaluation for result in results], "table")
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
