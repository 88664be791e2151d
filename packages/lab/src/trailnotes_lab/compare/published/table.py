"""Group evaluations into a table, one row a task and one column a method: means, intervals, and counts behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trailnotes.errors import RunError
from trailnotes.reporting import intervals
from trailnotes.reporting.intervals import CrossedMoments, Estimate, VarianceComponent
from trailnotes.runs.usage import TABLE_FIELDS
from trailnotes_lab.compare.evaluations import Evaluation, average_by_name, get_variation, validate_same_protocol
from trailnotes_lab.compare.published import protocol
from trailnotes_lab.compare.published.protocol import PublishedTable

RETURN_BOUNDS = (-100.0, 100.0)  # of a return of the panel
UNIT = "variations"


@dataclass(frozen=True, slots=True)
class ComparisonCell:
    """One measured number, in the unit of the panel."""

    estimate: Estimate  # on this panel: these tasks and variations; beyond: these tasks, other variations
    num_seeds: int  # of a mean: those of the task that has fewest
    num_variations: int
    num_episodes: int

    @property
    def counts(self) -> str:
        return f"{self.num_seeds}·{self.num_variations}·{self.num_episodes}"


@dataclass(frozen=True, slots=True)
class Column:
    """A method that was run here; a task that was not played has no cell."""

    label: str
    model: str
    protocol: str
    cells: Mapping[str, ComparisonCell]
    mean: ComparisonCell  # over the tasks that have a cell
    costs: Mapping[str, float]  # mean of a training run, by the names of `TABLE_FIELDS`
    num_runs: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Measured columns, and apart from them the published table."""

    panel: str
    published: PublishedTable
    columns: tuple[Column, ...]
    notes: tuple[str, ...]
    sources: Mapping[str, Sequence[str]]  # label -> directories that were read

    def is_complete(self, column: Column) -> bool:
        """Say whether a column has every task: only then is its mean the average of the panel."""
        return len(column.cells) == len(self.published.rows)


def build_comparison(
    evaluations: Sequence[Evaluation], panel: str, published: PublishedTable, notes: Iterable[str] = ()
) -> Comparison:
    """Group evaluations by method, and pool seeds and variations within each task."""
    all_notes = list(notes)
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        outside = [task for task in evaluation.tasks if task not in published.rows]
        if outside:
            all_notes.append(f"{evaluation.path}: {', '.join(outside)} left out, not in the panel {panel}.")
        if len(outside) == len(evaluation.tasks):
            raise RunError(f"{evaluation.path} has no task of the panel {panel}: leave it out")
        for episode in evaluation.episodes:  # a return of the panel is a score at the end of an episode
            if not RETURN_BOUNDS[0] <= episode.value <= RETURN_BOUNDS[1]:
                raise RunError(f"{evaluation.path}: {episode.task.id} has the return {episode.value:g}, and the panel "
                               "is one of returns in [-100, 100]: leave it out")  # fmt: skip
        if evaluation.metric != published.metric:
            all_notes.append(f"{evaluation.path}: its own table shows {evaluation.metric}; here is its "
                        f"{published.metric}, from the same episodes.")  # fmt: skip
        groups.setdefault(protocol.make_column_label(evaluation), []).append(evaluation)
    columns = tuple(build_column(label, members, published) for label, members in groups.items())
    for label, members in groups.items():
        all_notes += _make_column_notes(label, members, published)
    if len({frozenset(column.cells) for column in columns}) > 1:
        all_notes.append("The columns do not hold the same tasks: compare them row by row, not by their means.")
    sources = {label: [str(member.path) for member in members] for label, members in groups.items()}
    return Comparison(panel, published, columns, tuple(all_notes), sources)


def build_column(label: str, members: Sequence[Evaluation], published: PublishedTable) -> Column:
    validate_same_protocol(members, "column")
    cells, values = {}, {}
    for task in published.rows:
        present = [member for member in members if member.get_episodes(task)]
        _require_unique_seeds(label, present, task)
        if present:
            values[task] = {member.run: _collect_returns(member, task) for member in present}
            cells[task] = _make_cell(values[task])
    trained = [member for member in members if member.trained]
    costs = {name: float(np.mean([e.costs[name] for e in trained])) for name in TABLE_FIELDS} if trained else {}
    mean = ComparisonCell(  # the tasks are the panel and no sample; those that share their runs are of the same seeds
        estimate=_estimate_mean([cell.estimate for cell in cells.values()], values),
        num_seeds=min(cell.num_seeds for cell in cells.values()),
        num_variations=sum(cell.num_variations for cell in cells.values()),
        num_episodes=sum(cell.num_episodes for cell in cells.values()),
    )
    models = sorted({protocol.get_model(member) for member in members})
    model = ", ".join(models) if len(models) <= 2 else f"{len(models)} models"
    played = protocol.describe_protocol(members, published.rows)
    return Column(label, model, played, cells, mean, costs, num_runs=len({member.run for member in trained}))


_RunReturns = Mapping[tuple[str, int], Sequence[tuple[str, float]]]  # run -> (variation, return) of each episode


def _collect_returns(evaluation: Evaluation, task: str) -> list[tuple[str, float]]:
    return [(get_variation(episode.task.id), episode.value) for episode in evaluation.get_episodes(task)]


def _average_by_variation(numbers: _RunReturns) -> dict[tuple[str, int], dict[str, float]]:
    return {run: average_by_name(episodes) for run, episodes in numbers.items()}


def _make_cell(numbers: _RunReturns) -> ComparisonCell:
    variations = {variation for episodes in numbers.values() for variation, _ in episodes}
    means, families = _average_by_variation(numbers), {name: name for name in variations}
    estimate = intervals.estimate(means, families, RETURN_BOUNDS, unit=UNIT)
    return ComparisonCell(estimate, len(numbers), len(variations), sum(map(len, numbers.values())))


def _estimate_mean(rows: Sequence[Estimate], numbers: Mapping[str, _RunReturns]) -> Estimate:
    """Variances of the tasks' variations and of the blocks' seeds, each by its weight in the mean."""
    mean = np.asarray(np.mean([row.mean for row in rows]))
    if lacking := [row.not_beyond for row in rows if row.not_beyond == intervals.NO_COMMON_GAME]:
        return Estimate(float(mean), None, None, *lacking[:1] * 2)
    values = {task: _average_by_variation(own) for task, own in numbers.items()}
    blocks: dict[frozenset[object], list[str]] = {}
    for task, runs in values.items():
        blocks.setdefault(frozenset(runs), []).append(task)
    of_tasks = [_compute_crossed([values[task]]) for task in values]
    of_blocks = [_compute_crossed([values[task] for task in tasks]) for tasks in blocks.values()]
    shares = [len(tasks) / len(rows) for tasks in blocks.values()]
    seeds = _sum_parts([part.seeds.scale(share) for part, share in zip(of_blocks, shares, strict=True)])
    variations = _sum_parts([part.families.scale(1 / len(rows)) for part in of_tasks])
    number = sum(part.num_families for part in of_tasks)
    alone = min(part.num_families for part in of_tasks) == 1  # its variations have no spread to be seen
    pairs = zip(of_blocks, blocks, strict=True)
    lonely = [intervals.explain_no_panel_interval(part, len(runs)) for part, runs in pairs]
    moments = CrossedMoments(mean, np.min([part.num_seeds for part in of_blocks]), seeds, variations, number)
    return intervals.build_estimate(
        mean,
        intervals.compute_panel_limits(mean, seeds, RETURN_BOUNDS),
        intervals.compute_population_limits(moments, RETURN_BOUNDS),
        next(filter(None, lonely), ""),
        intervals.explain_too_few(1 if alone else number, UNIT)
        or intervals.explain_no_variation(moments, RETURN_BOUNDS),
    )


def _compute_crossed(tasks: Sequence[intervals.Values]) -> CrossedMoments:
    """Runs by variations of `tasks`, which all have the same runs. A family is a variation, of more tasks a task."""
    games = [intervals.find_common_games(values) for values in tasks]
    runs = list(tasks[0])
    ordered = [{run: values[run] for run in runs} for values in tasks]
    matrix = np.hstack([intervals.build_matrix(values, own) for values, own in zip(ordered, games, strict=True)])
    if len(tasks) == 1:
        return intervals.compute_moments(matrix, np.eye(len(games[0])))
    member = np.repeat(np.arange(len(games)), list(map(len, games)))
    shares = np.array([(member == task) / len(own) for task, own in enumerate(games)])
    return intervals.compute_moments(matrix, shares)


def _sum_parts(parts: Sequence[VarianceComponent]) -> VarianceComponent:
    return sum(parts[1:], start=parts[0])


def _require_unique_seeds(label: str, members: Sequence[Evaluation], task: str) -> None:
    seen: dict[int, Evaluation] = {}
    for member in members:
        if (other := seen.setdefault(member.seed, member)) is not member:
            raise RunError(f"{other.path} and {member.path} are both {label!r} on {task} with seed {member.seed}: "
                           f"leave one out, or name one otherwise, {member.path}=LABEL")  # fmt: skip


def _make_column_notes(label: str, members: Sequence[Evaluation], published: PublishedTable) -> list[str]:
    notes = []
    if differences := protocol.describe_differences(members, published):
        notes.append(f"{label}: not the published protocol: {differences}.")
    if names := protocol.list_differing_settings(members):
        notes.append(f"{label}: its runs differ in {', '.join(names)}, and are pooled all the same.")
    lonely = any(sum(bool(member.get_episodes(task)) for member in members) == 1 for task in published.rows)
    if lonely and any(member.trained for member in members):
        notes.append(f"{label}: where one seed stands behind a number, its interval is of variations alone, and "
                     "does not say how much another training run would differ.")  # fmt: skip
    fewer = []
    for task in published.rows:
        played = {member.run: _collect_returns(member, task) for member in members if member.get_episodes(task)}
        values = _average_by_variation(played)
        shared = intervals.find_common_games(values)
        if shared and any(len(own) > len(shared) for own in values.values()):
            fewer.append(task)
    if fewer:
        notes.append(f"{label}: {', '.join(fewer)}: of the variations that every seed has played; others are left out.")
    return notes
