"""One row a task, one column a method of ours: means, intervals, and what stands behind each number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trailnotes.errors import RunError
from trailnotes.reporting import crossed
from trailnotes.reporting.crossed import CONFIDENCE, MIN_FAMILIES, CrossedMoments, VarianceComponent
from trailnotes.reporting.intervals import Estimate
from trailnotes.runs.usage import TABLE_FIELDS
from trailnotes_lab.compare.evaluations import Evaluation, get_variation, validate_same_protocol
from trailnotes_lab.compare.published.figures import PublishedTable
from trailnotes_lab.compare.published.protocol import (
    describe_differences,
    describe_models,
    describe_protocol,
    list_differing_settings,
    make_column_label,
)

RETURN_BOUNDS = (-100.0, 100.0)  # of a return of the panel
UNIT = "variations"
PUBLISHED_INTERVAL_METHOD = (
    f"{CONFIDENCE:.0%}, beyond these variations: seeds and variations are samples, the same variations for all seeds, "
    "a Student's t for each, the squares added, cut at the range of a return; where one seed stands behind it, "
    f"variations alone. With fewer than {MIN_FAMILIES} variations it is that on this panel, and says so: seeds are the "
    "sample. The tasks of a mean are fixed. Seeds that are equal in every variation count once"
)


@dataclass(frozen=True, slots=True)
class ComparisonCell:
    """One number of ours, in the unit of the panel."""

    estimate: Estimate  # on this panel: these tasks and variations; beyond: these tasks, other variations
    num_seeds: int  # of a mean: those of the task that has fewest
    num_variations: int
    num_episodes: int
    differences: tuple[str, ...] = ()  # from the published protocol

    @property
    def counts(self) -> str:
        """Seeds, variations and episodes behind the number, as the tables print them."""
        return f"{self.num_seeds}·{self.num_variations}·{self.num_episodes}"


@dataclass(frozen=True, slots=True)
class Column:
    """One method of ours. A task that was not played has no cell."""

    label: str
    model: str
    protocol: str
    cells: Mapping[str, ComparisonCell]
    mean: ComparisonCell  # over the tasks that have a cell
    costs: Mapping[str, float]  # mean of a training run, by the names of `TABLE_FIELDS`
    num_runs: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Columns of ours, and apart from them the published table."""

    panel: str
    published: PublishedTable
    columns: tuple[Column, ...]
    notes: tuple[str, ...]
    sources: Mapping[str, Sequence[str]]  # label -> directories that were read

    def is_complete(self, column: Column) -> bool:
        """Whether a column has every task: only then is its mean the average of the panel."""
        return len(column.cells) == len(self.published.rows)


def build_comparison(
    evaluations: Sequence[Evaluation], panel: str, published: PublishedTable, notes: Iterable[str] = ()
) -> Comparison:
    """Group evaluations by method, and pool seeds and variations within each task.

    Raises:
        RunError: nothing of the panel was played, a return is out of range, or two evaluations are the same run.
    """
    said = list(notes)
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        outside = [task for task in evaluation.tasks if task not in published.rows]
        if outside:
            said.append(f"{evaluation.path}: {', '.join(outside)} left out, not in the panel {panel}.")
        if len(outside) == len(evaluation.tasks):
            raise RunError(f"{evaluation.path} has no task of the panel {panel}: leave it out")
        _validate_returns(evaluation)
        if evaluation.metric != published.metric:
            said.append(f"{evaluation.path}: its own table shows {evaluation.metric}; here is its "
                        f"{published.metric}, from the same episodes.")  # fmt: skip
        groups.setdefault(make_column_label(evaluation), []).append(evaluation)
    columns = tuple(build_column(label, members, published) for label, members in groups.items())
    for label, members in groups.items():
        said += _make_column_notes(label, members, published)
    if len({frozenset(column.cells) for column in columns}) > 1:
        said.append("The columns do not hold the same tasks: compare them row by row, not by their means.")
    sources = {label: [str(member.path) for member in members] for label, members in groups.items()}
    return Comparison(panel, published, columns, tuple(said), sources)


def build_column(label: str, members: Sequence[Evaluation], published: PublishedTable) -> Column:
    """All evaluations of one method.

    Raises:
        RunError: one task twice with one seed, or two protocols.
    """
    validate_same_protocol(members, "column")
    _require_unique_seeds(label, members, published.rows)
    cells, values = {}, {}
    for task in published.rows:
        present = [member for member in members if member.get_episodes(task)]
        if present:
            values[task] = {member.run: _collect_returns(member, task) for member in present}
            cells[task] = _make_cell(values[task], _collect_differences(present, task, published))
    trained = [member for member in members if member.trained]
    costs = {name: float(np.mean([e.costs[name] for e in trained])) for name in TABLE_FIELDS} if trained else {}
    return Column(
        label=label,
        model=describe_models(members),
        protocol=describe_protocol(members, published.rows),
        cells=cells,
        mean=_make_mean_cell(cells, values),
        costs=costs,
        num_runs=len({member.run for member in trained}),
    )


_RunReturns = Mapping[tuple[str, int], Sequence[tuple[str, float]]]  # run -> (variation, return) of each episode


def _collect_returns(evaluation: Evaluation, task: str) -> list[tuple[str, float]]:
    return [(get_variation(episode.task.id), episode.value) for episode in evaluation.get_episodes(task)]


def _average_by_variation(numbers: _RunReturns) -> dict[tuple[str, int], dict[str, float]]:
    """Run -> variation -> mean of its episodes."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for run, episodes in numbers.items():
        own: dict[str, list[float]] = {}
        for variation, value in episodes:
            own.setdefault(variation, []).append(value)
        found[run] = {variation: float(np.mean(values)) for variation, values in own.items()}
    return found


def _make_cell(numbers: _RunReturns, phrases: Sequence[str]) -> ComparisonCell:
    variations = {variation for episodes in numbers.values() for variation, _ in episodes}
    return ComparisonCell(
        estimate=crossed.estimate(
            _average_by_variation(numbers), {name: name for name in variations}, RETURN_BOUNDS, unit=UNIT
        ),
        num_seeds=len(numbers),
        num_variations=len(variations),
        num_episodes=sum(map(len, numbers.values())),
        differences=tuple(phrases),
    )


def _make_mean_cell(cells: Mapping[str, ComparisonCell], numbers: Mapping[str, _RunReturns]) -> ComparisonCell:
    """Mean of the rows. The tasks are the panel and no sample; those that share their runs are of the same seeds."""
    return ComparisonCell(
        estimate=_estimate_mean([cell.estimate for cell in cells.values()], numbers),
        num_seeds=min(cell.num_seeds for cell in cells.values()),
        num_variations=sum(cell.num_variations for cell in cells.values()),
        num_episodes=sum(cell.num_episodes for cell in cells.values()),
    )


def _estimate_mean(rows: Sequence[Estimate], numbers: Mapping[str, _RunReturns]) -> Estimate:
    """Variances of the tasks' variations and of the blocks' seeds, each by its weight in the mean."""
    mean = np.asarray(np.mean([row.mean for row in rows]))
    if lacking := [row.not_beyond for row in rows if row.not_beyond == crossed.NO_COMMON_GAME]:
        return Estimate(float(mean), None, None, *lacking[:1] * 2)
    values = {task: _average_by_variation(own) for task, own in numbers.items()}
    blocks: dict[frozenset[object], list[str]] = {}
    for task, runs in values.items():
        blocks.setdefault(frozenset(runs), []).append(task)
    of_tasks = [_compute_crossed([values[task]]) for task in values]
    of_blocks = [_compute_crossed([values[task] for task in tasks]) for tasks in blocks.values()]
    seeds = _sum_parts(
        part.seeds.scale(len(tasks) / len(rows)) for part, tasks in zip(of_blocks, blocks.values(), strict=True)
    )
    variations = _sum_parts(part.families.scale(1 / len(rows)) for part in of_tasks)
    number = sum(part.num_families for part in of_tasks)
    alone = min(part.num_families for part in of_tasks) == 1  # its variations have no spread to be seen
    lonely = [crossed.explain_no_panel_interval(part, len(runs)) for part, runs in zip(of_blocks, blocks, strict=True)]
    found = CrossedMoments(mean, np.min([part.num_seeds for part in of_blocks]), seeds, variations, number)
    return crossed.build_estimate(
        mean,
        crossed.compute_panel_limits(mean, seeds, RETURN_BOUNDS),
        crossed.compute_population_limits(found, RETURN_BOUNDS),
        next(filter(None, lonely), ""),
        crossed.explain_too_few(1 if alone else number, UNIT) or crossed.explain_no_variation(found, RETURN_BOUNDS),
    )


def _compute_crossed(tasks: Sequence[crossed.Values]) -> CrossedMoments:
    """Runs by variations of `tasks`, which all have the same runs. A family is a variation, of more tasks a task."""
    games = [crossed.find_common_games(values) for values in tasks]
    runs = list(tasks[0])
    matrix = np.hstack(
        [
            crossed.build_matrix({run: values[run] for run in runs}, own)
            for values, own in zip(tasks, games, strict=True)
        ]
    )
    if len(tasks) == 1:
        return crossed.compute_moments(matrix, np.eye(len(games[0])))
    member = np.repeat(np.arange(len(games)), list(map(len, games)))
    shares = np.array([(member == task) / len(own) for task, own in enumerate(games)])
    return crossed.compute_moments(matrix, shares)


def _sum_parts(parts: Iterable[VarianceComponent]) -> VarianceComponent:
    first, *others = parts
    return sum(others, start=first)


def _collect_differences(members: Sequence[Evaluation], task: str, published: PublishedTable) -> list[str]:
    return list(dict.fromkeys(phrase for member in members for phrase in describe_differences(member, task, published)))


def _validate_returns(evaluation: Evaluation) -> None:
    """A return of the panel is a score at the end of an episode."""
    for episode in evaluation.episodes:
        if not -100.0 <= episode.value <= 100.0:
            raise RunError(f"{evaluation.path}: {episode.task.id} has the return {episode.value:g}, and the panel is "
                           "one of returns in [-100, 100]: leave it out")  # fmt: skip


def _require_unique_seeds(label: str, members: Sequence[Evaluation], rows: Iterable[str]) -> None:
    for task in rows:
        seen: dict[int, Evaluation] = {}
        for member in members:
            if not member.get_episodes(task):
                continue
            if member.seed in seen:
                raise RunError(f"{seen[member.seed].path} and {member.path} are both {label!r} on {task} with seed "
                               f"{member.seed}: leave one out, or name one otherwise, {member.path}=LABEL")  # fmt: skip
            seen[member.seed] = member


def _make_column_notes(label: str, members: Sequence[Evaluation], published: PublishedTable) -> list[str]:
    """What a reader of one column must know."""
    notes = []
    if names := list_differing_settings(members):
        notes.append(f"{label}: its runs differ in {', '.join(names)}, and are pooled all the same.")
    lonely = any(sum(bool(member.get_episodes(task)) for member in members) == 1 for task in published.rows)
    if lonely and any(member.trained for member in members):
        notes.append(f"{label}: where one seed stands behind a number, its interval is of variations alone, and "
                     "does not say how much another training run would differ.")  # fmt: skip
    if fewer := [
        task for task in published.rows if _has_partial_overlap([m for m in members if m.get_episodes(task)], task)
    ]:
        notes.append(f"{label}: {', '.join(fewer)}: of the variations that every seed has played; others are left out.")
    return notes


def _has_partial_overlap(members: Sequence[Evaluation], task: str) -> bool:
    """Whether the seeds share some variations but not all."""
    values = _average_by_variation({member.run: _collect_returns(member, task) for member in members})
    shared = crossed.find_common_games(values)
    return bool(shared) and any(len(own) > len(shared) for own in values.values())
