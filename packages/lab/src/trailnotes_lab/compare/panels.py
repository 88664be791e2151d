"""Summarise the panels beside the main one, which the models play trial after trial with the tips that they wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trailnotes.errors import RunError
from trailnotes.reporting.intervals import Estimate, Values, find_common_games
from trailnotes.runs.panels import get_family
from trailnotes_lab.compare.evaluations import EVAL_DIR, Evaluation, load_evaluation
from trailnotes_lab.compare.results import GameValues, RunResult, average_trials, read_trial_records
from trailnotes_lab.compare.statistics import Difference, estimate_paired_difference, estimate_pooled_mean


@dataclass(frozen=True, slots=True)
class PanelTrials:
    """The trials of one run's model on one panel."""

    panel: str  # name
    label: str  # of its method
    seed: int
    evaluation: Evaluation  # the last trial
    games: tuple[GameValues, ...]  # of each trial: trial 0 without tips, each other with those of the trials before it
    families: Mapping[str, str]  # game -> family

    @property
    def last(self) -> GameValues:
        return self.games[-1]


@dataclass(frozen=True, slots=True)
class PanelMethodSummary:
    """The line of one method on a panel; without a trial where there is no result."""

    label: str
    seeds: tuple[int, ...]
    num_games: int
    trials: tuple[Estimate, ...]
    by_seed: tuple[tuple[float, ...], ...]  # of each seed its means, one a trial
    difference: Difference | None  # of the last trial, to `PanelSummary.against`
    missing: Mapping[int, str] = field(default_factory=dict)  # seed -> why it has no result

    @property
    def final(self) -> Estimate | None:
        return self.trials[-1] if self.trials else None


@dataclass(frozen=True, slots=True)
class PanelSummary:
    """The lines of all methods on one panel."""

    label: str
    metric: str
    games: str  # their number and kind, for a title
    num_trials: int  # after trial 0
    same_games: bool  # whether they are those of the main panel
    start: str  # label of the start model; "" where it does not play
    lines: tuple[PanelMethodSummary, ...]

    @property
    def against(self) -> str:
        return "the same run without tips" if self.same_games else self.start


@dataclass(frozen=True, slots=True)
class PanelOptions:
    """Options of the summary of one panel, as the comparison sets them."""

    name: str
    label: str
    num_trials: int
    methods: Sequence[str]  # labels of those that play it, in their order
    start: str = ""  # label of the start model among them
    missing: Mapping[tuple[str, int], str] = field(default_factory=dict)  # (label, seed) -> why


def read_trials(directory: Path, panel: str, label: str, seed: int) -> PanelTrials:
    """Read the trials that an adaptation left."""
    evaluation = load_evaluation(directory / EVAL_DIR, label)
    games = average_trials(read_trial_records(directory), evaluation.metric)
    if len(games) != evaluation.settings.eval.trials + 1:
        raise RunError(f"{directory} is damaged ({len(games)} trials of {evaluation.settings.eval.trials + 1}): remove "
                       "it to have it played again")  # fmt: skip
    families = {episode.task.id: get_family(episode.task) for episode in evaluation.episodes}
    kept = tuple({game: value for game, value in trial.items() if game in families} for trial in games)
    return PanelTrials(panel, label, seed, evaluation, kept, families)


def summarise_panel(question: PanelOptions, played: Sequence[PanelTrials], main: Sequence[RunResult]) -> PanelSummary:
    """Summarise one panel from trials on any panel, and from the results of the same methods on the main panel."""
    own = [trials for trials in played if trials.panel == question.name]
    for trials in own[1:]:
        one, other = own[0].evaluation, trials.evaluation
        if (one.planned, one.metric, len(own[0].games)) != (other.planned, other.metric, len(trials.games)):
            raise RunError(f"{one.path} and {other.path} are of different games, metrics or numbers of trials: remove "
                           "one to have it played again")  # fmt: skip
    first = own[0].evaluation if own else main[0].evaluation
    same_games = bool(own) and set(first.planned) == set(main[0].evaluation.planned)
    start = {trials.seed: trials.last for trials in own if trials.label == question.start}
    lines = []
    for label in question.methods:
        group = [trials for trials in own if trials.label == label]
        without = {result.seed: result.final for result in main if result.label == label} if same_games else start
        baseline = without if same_games or label != question.start else {}
        missing = {seed: why for (name, seed), why in question.missing.items() if name == label}
        lines.append(_summarise_panel_method(label, group, baseline, missing))
    return PanelSummary(
        label=question.label,
        metric=first.metric,
        games=f"{len(first.planned)} games ({first.settings.env.name}, {first.settings.eval.split})" if own else "",
        num_trials=question.num_trials,
        same_games=same_games,
        start=question.start,
        lines=tuple(lines),
    )


def _summarise_panel_method(
    label: str, group: Sequence[PanelTrials], baseline: Values, missing: Mapping[int, str]
) -> PanelMethodSummary:
    if not group:
        return PanelMethodSummary(label, (), 0, (), (), None, missing)
    families = {game: family for trials in group for game, family in trials.families.items()}
    metric = group[0].evaluation.metric
    last = {trials.seed: trials.last for trials in group}
    by_trial = [{trials.seed: trials.games[i] for trials in group} for i in range(len(group[0].games))]
    trials = tuple(estimate_pooled_mean(values, families, metric) for values in by_trial)
    by_seed = tuple(tuple(estimate_pooled_mean({0: v}, families, metric).mean for v in own.games) for own in group)
    difference = estimate_paired_difference(last, baseline, families, metric) if baseline else None
    num_games = len(find_common_games(last))
    return PanelMethodSummary(label, tuple(last), num_games, trials, by_seed, difference, missing)
