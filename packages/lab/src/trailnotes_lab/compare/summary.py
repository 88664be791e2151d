"""Summarise the results of a comparison: one line a method, with its estimates, differences and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from trailnotes.errors import RunError
from trailnotes.reporting.intervals import MIN_FAMILIES, NO_VARIATION, SEEDS_ALIKE, Estimate, Values, find_common_games
from trailnotes.runs.panels import get_family
from trailnotes.runs.usage import COMPARISON_FIELDS
from trailnotes_lab.compare import statistics
from trailnotes_lab.compare.evaluations import EVAL_DIR, Evaluation, load_evaluation
from trailnotes_lab.compare.published.protocol import list_differing_settings
from trailnotes_lab.compare.results import (
    GameValues,
    RunResult,
    average_trials,
    collect_best,
    collect_final,
    collect_last,
    read_trial_records,
    validate_same_panel,
)
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
    name: str
    label: str
    num_trials: int
    methods: Sequence[str]  # labels of those that play it, in their order
    start: str = ""  # label of the start model among them
    missing: Mapping[tuple[str, int], str] = field(default_factory=dict)  # (label, seed) -> why


def read_trials(directory: Path, panel: str, label: str, seed: int) -> PanelTrials:
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
        without = collect_final([result for result in main if result.label == label]) if same_games else start
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


STEP_TOLERANCE = 0.02  # share by which the environment steps of trained methods may differ without a word about it


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """The line of one method; estimates are None where nothing was played for them."""

    label: str
    trains: bool
    seeds: tuple[int, ...]  # that have a result
    num_games: int
    num_attempts: int  # at a game; 1 for most methods
    one: Estimate | None  # one attempt: the evaluation, or the first trial
    last: Estimate | None  # last of several attempts; None unless every seed has one
    best: Estimate | None  # any of several attempts
    iqm: float | None  # of `final`, which the method is judged by
    difference: statistics.Difference | None  # likewise
    reached: tuple[float | None, ...]  # environment steps to the threshold, a seed each
    costs: Mapping[str, float]  # mean of a run; of peak memory the largest
    missing: Mapping[int, str] = field(default_factory=dict)  # seed -> why it has no result
    one_return: Estimate | None = None  # return where success is judged and does not say all: of one attempt
    last_return: Estimate | None = None  # and of the last of several

    @property
    def final(self) -> Estimate | None:
        return self.last or self.best or self.one


@dataclass(frozen=True, slots=True)
class Summary:
    """The lines of all methods on one panel."""

    title: str
    metric: str  # success | return
    env: str
    threshold: float
    baseline: str  # label, or ""
    lines: tuple[MethodSummary, ...]
    curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]]  # label -> one curve a seed
    notes: tuple[str, ...]
    panels: tuple[PanelSummary, ...] = ()  # beside the main one

    def require_all_results(self) -> None:
        """Raise a `RunError` that names each run without a result, and why."""
        missing = [f"{line.label} with seed {seed}: {why}" for line in self.lines for seed, why in line.missing.items()]
        for panel in self.panels:
            missing += [f"{line.label} with seed {seed} on panel {panel.label}: {why}"
                        for line in panel.lines for seed, why in line.missing.items()]  # fmt: skip
        if missing:
            raise RunError(f"{len(missing)} run{'s' * (len(missing) > 1)} without a result; {'; '.join(missing)}")


@dataclass(frozen=True, slots=True)
class SummaryOptions:
    labels: Sequence[str] = ()  # lines in their order, also those without any result; () = as the results come
    title: str = ""
    remark: str = ""  # before the title
    threshold: float = 0.5
    baseline: str = ""  # label
    missing: Mapping[tuple[str, int], str] = field(default_factory=dict)  # (label, seed) -> why
    notes: Sequence[str] = ()  # further notes below the table
    panels: Sequence[PanelOptions] = ()


def summarise(results: Sequence[RunResult], question: SummaryOptions, trials: Sequence[PanelTrials] = ()) -> Summary:
    if not results:
        whys = [f"{label} with seed {seed}: {why}" for (label, seed), why in question.missing.items()]
        raise RunError(f"no run of the comparison has a result: {whys[0] if whys else 'run it first'}")
    validate_same_panel(results)
    if all(episode.value == episode.success for result in results for episode in result.evaluation.episodes):
        results = [replace(result, returns=()) for result in results]  # they say no more than success
    labels = list(question.labels) or list(dict.fromkeys(result.label for result in results))
    families = {game: family for result in results for game, family in result.families.items()}
    groups = {label: [result for result in results if result.label == label] for label in labels}
    baseline = collect_final(groups.get(question.baseline, []))
    first = results[0].evaluation
    panels = tuple(summarise_panel(panel, trials, results) for panel in question.panels)
    line_of = partial(_summarise_method, families=families, baseline=baseline, question=question, metric=first.metric)
    lines = tuple(line_of(label, groups[label]) for label in labels)
    lost = [f"{line.label}, seed {seed} is missing on panel {panel.label}: {why}."
            for panel in panels for line in panel.lines for seed, why in line.missing.items()]  # fmt: skip
    lost += [f"{own.label}, seed {own.seed}: {failed} games of panel {own.panel} failed in the environment in one "
             "trial or more." for own in trials
             if (failed := len(own.evaluation.planned) - len(set(own.games[0]).intersection(*own.games)))]  # fmt: skip
    games = f"{len(first.planned)} games ({first.settings.env.name}, {first.settings.eval.split})"
    return Summary(
        title=(f"{question.remark}: " if question.remark else "") + (question.title or f"{first.metric} on {games}"),
        metric=first.metric,
        env=first.settings.env.name,
        threshold=question.threshold,
        baseline=question.baseline,
        lines=lines,
        curves={line.label: [r.curve for r in groups[line.label] if r.curve] for line in lines if line.trains},
        notes=(*_make_interval_notes(lines), *_make_notes(lines, groups), *question.notes, *lost),
        panels=panels,
    )


def _summarise_method(
    label: str,
    results: Sequence[RunResult],
    *,
    families: Mapping[str, str],
    baseline: Values,
    question: SummaryOptions,
    metric: str,
) -> MethodSummary:
    last, final = collect_last(results), collect_final(results)
    several = [result.attempts for result in results if result.attempts]
    one = {r.seed: r.attempts.first if r.attempts else r.games for r in results}
    best = collect_best(results) if several else {}
    compared = bool(baseline and results) and label != question.baseline
    returns = {r.seed: r.returns for r in results if r.returns}
    costs = {name: [r.costs[name] for r in results if name in r.costs] for name in COMPARISON_FIELDS}
    first_returns = {seed: own[0] for seed, own in returns.items()}
    last_returns = {seed: own[-1] for seed, own in returns.items() if seed in last}

    def pool(values: Values, metric: str = metric) -> Estimate | None:
        return statistics.estimate_pooled_mean(values, families, metric) if values else None

    return MethodSummary(
        label=label,
        trains=any(result.trains for result in results),
        seeds=tuple(final),
        num_games=len(find_common_games(final)),
        num_attempts=max((attempts.number for attempts in several), default=1),
        one=pool(one),
        last=pool(last),
        best=pool(best),
        iqm=statistics.compute_iqm(final, families) if final else None,
        difference=statistics.estimate_paired_difference(final, baseline, families, metric) if compared else None,
        reached=tuple(next((x for x, y in r.curve if y >= question.threshold), None) for r in results if r.trains),
        costs={name: float(max(own) if name == "peak_memory" else np.mean(own)) for name, own in costs.items() if own},
        missing={seed: why for (name, seed), why in question.missing.items() if name == label},
        one_return=pool(first_returns, "return"),
        last_return=pool(last_returns, "return"),
    )


def _make_notes(lines: Sequence[MethodSummary], groups: Mapping[str, Sequence[RunResult]]) -> list[str]:
    notes = []
    steps = {line.label: line.costs["env_steps"] for line in lines if line.trains and "env_steps" in line.costs}
    if steps and max(steps.values()) - min(steps.values()) > STEP_TOLERANCE * max(steps.values()):
        counts = ", ".join(f"{label} {count:,.0f}" for label, count in steps.items())
        notes.append(f"The environment steps of training differ by more than {STEP_TOLERANCE:.0%} ({counts}).")
    for label, results in groups.items():
        if differing := list_differing_settings([result.evaluation for result in results]):
            notes.append(f"{label}: its runs differ in {', '.join(differing)}, and are pooled all the same.")
        if any(r.attempts for r in results) and not collect_last(results):
            notes.append(f"{label}: its last trial did not play the whole panel again, since what was solved was left "
                         "out; so it has no last attempt, and is judged by the cumulative figure.")  # fmt: skip
        own = [(r.attempts.failed if r.attempts else frozenset(), r) for r in results]
        lost = sum(len(failed.union({*r.evaluation.planned} - r.games.keys())) for failed, r in own)
        if lost:
            common = len(find_common_games(collect_final(results)))
            in_trial = " in one trial or more" if any(failed for failed, _ in own) else ""
            notes.append(f"{label}: {lost} games failed in the environment{in_trial}; its line is of the {common} "
                         "games that every seed of it has played.")  # fmt: skip
    for line in lines:
        notes += [f"{line.label}, seed {seed} is missing: {why}." for seed, why in line.missing.items()]
    return notes


def _make_interval_notes(lines: Sequence[MethodSummary]) -> list[str]:
    finals = [(line, line.final) for line in lines if line.final is not None]
    notes = []
    if alike := [line.label for line, final in finals if final.not_on_panel == SEEDS_ALIKE]:
        notes.append(f"The seeds of {', '.join(alike)} are equal in every game, and count as one run.")
    if any(line.difference and line.difference.estimate.not_on_panel == SEEDS_ALIKE for line in lines):
        notes.append("Where the differences of all seeds are equal in every game, they count as one pair.")
    if any(final.not_beyond and final.not_beyond[0].isdigit() for _, final in finals):
        notes.append(f"Beyond this panel nothing is claimed: that takes {MIN_FAMILIES} families of games.")
    if any(final.not_beyond == NO_VARIATION for _, final in finals):
        notes.append("Where all families came out the same and the metric has no bounds, there is nothing to tell how "
                     "much others would differ.")  # fmt: skip
    return notes
