"""One row a task, one column a method of ours: means, intervals, and what stands behind each number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trailnotes.compare.evaluations import Evaluation, variation_of
from trailnotes.compare.published.figures import PublishedTable
from trailnotes.compare.published.protocol import differences, label_of, models_of, protocol_of, unlike
from trailnotes.compare.statistics import CONFIDENCE
from trailnotes.errors import RunError
from trailnotes.reporting.intervals import Interval, bootstrap, percentile_interval, resampled_means
from trailnotes.runs.spent import BY_ROW

METHOD = f"bootstrap over seeds, then variations, {CONFIDENCE:.0%}; the tasks of a mean are fixed, not resampled"


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of ours, in the unit of the panel."""

    interval: Interval
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
    cells: Mapping[str, Cell]
    mean: Cell  # over the tasks that have a cell
    costs: Mapping[str, float]  # mean of a training run, by the names of `BY_ROW`
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


def compare(
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
        _refuse_impossible(evaluation)
        if evaluation.metric != published.metric:
            said.append(f"{evaluation.path}: its own table shows {evaluation.metric}; here is its "
                        f"{published.metric}, from the same episodes.")  # fmt: skip
        groups.setdefault(label_of(evaluation), []).append(evaluation)
    columns = tuple(column_of(label, members, published) for label, members in groups.items())
    for label, members in groups.items():
        said += _about(label, members, published)
    if len({frozenset(column.cells) for column in columns}) > 1:
        said.append("The columns do not hold the same tasks: compare them row by row, not by their means.")
    sources = {label: [str(member.path) for member in members] for label, members in groups.items()}
    return Comparison(panel, published, columns, tuple(said), sources)


def column_of(label: str, members: Sequence[Evaluation], published: PublishedTable) -> Column:
    """All evaluations of one method.

    Raises:
        RunError: one task twice with one seed.
    """
    _refuse_repeated(label, members, published.rows)
    cells, values = {}, {}
    for task in published.rows:
        present = [member for member in members if member.of(task)]
        if present:
            values[task] = {member.run: _numbers(member, task) for member in present}
            cells[task] = _cell(values[task], _differences(present, task, published))
    trained = [member for member in members if member.trained]
    costs = {name: float(np.mean([e.costs[name] for e in trained])) for name in BY_ROW} if trained else {}
    return Column(
        label=label,
        model=models_of(members),
        protocol=protocol_of(members, published.rows),
        cells=cells,
        mean=_mean(cells, values),
        costs=costs,
        num_runs=len({member.run for member in trained}),
    )


_Numbers = Mapping[tuple[str, int], Sequence[tuple[str, float]]]  # run -> (variation, return) of each episode


def _numbers(evaluation: Evaluation, task: str) -> list[tuple[str, float]]:
    return [(variation_of(episode.task.id), episode.value) for episode in evaluation.of(task)]


def _levels(values: Mapping[str, _Numbers]) -> tuple[list[float], list[list[object]]]:
    """Returns of the episodes, and their run, task and variation."""
    rows = [
        (run, task, variation, value)
        for task, by_run in values.items()
        for run, episodes in by_run.items()
        for variation, value in episodes
    ]
    return [row[3] for row in rows], [[row[i] for row in rows] for i in range(3)]


def _cell(values: _Numbers, phrases: Sequence[str]) -> Cell:
    returns, (runs, _, variations) = _levels({"": values})
    return Cell(
        interval=bootstrap(returns, [runs, variations], confidence=CONFIDENCE),
        num_seeds=len(values),
        num_variations=len(set(variations)),
        num_episodes=len(returns),
        differences=tuple(phrases),
    )


def _mean(cells: Mapping[str, Cell], values: Mapping[str, _Numbers]) -> Cell:
    """Mean of the rows. Tasks that share their runs are resampled together, a run that is drawn bringing all of them.

    The tasks themselves are the panel and no sample, so each is taken once.
    """
    blocks: dict[frozenset[object], list[str]] = {}
    for task, runs in values.items():
        blocks.setdefault(frozenset(runs), []).append(task)
    means = []  # of each block, weighed by its share of the tasks
    for seed, tasks in enumerate(blocks.values()):
        returns, levels = _levels({task: values[task] for task in tasks})
        means.append(resampled_means(returns, levels, fixed=[1], seed=seed) * len(tasks) / len(values))
    mean = float(np.mean([cell.interval.mean for cell in cells.values()]))
    return Cell(
        interval=percentile_interval(mean, np.sum(means, axis=0), CONFIDENCE),
        num_seeds=min(cell.num_seeds for cell in cells.values()),
        num_variations=sum(cell.num_variations for cell in cells.values()),
        num_episodes=sum(cell.num_episodes for cell in cells.values()),
    )


def _differences(members: Sequence[Evaluation], task: str, published: PublishedTable) -> list[str]:
    return list(dict.fromkeys(phrase for member in members for phrase in differences(member, task, published)))


def _refuse_impossible(evaluation: Evaluation) -> None:
    """A return of the panel is a score at the end of an episode."""
    for episode in evaluation.episodes:
        if not -100.0 <= episode.value <= 100.0:
            raise RunError(f"{evaluation.path}: {episode.task.id} has the return {episode.value:g}, and the panel is "
                           "one of returns in [-100, 100]: leave it out")  # fmt: skip


def _refuse_repeated(label: str, members: Sequence[Evaluation], rows: Iterable[str]) -> None:
    for task in rows:
        seen: dict[int, Evaluation] = {}
        for member in members:
            if not member.of(task):
                continue
            if member.seed in seen:
                raise RunError(f"{seen[member.seed].path} and {member.path} are both {label!r} on {task} with seed "
                               f"{member.seed}: leave one out, or name one otherwise, {member.path}=LABEL")  # fmt: skip
            seen[member.seed] = member


def _about(label: str, members: Sequence[Evaluation], published: PublishedTable) -> list[str]:
    """What a reader of one column must know."""
    notes = []
    if names := unlike(members):
        notes.append(f"{label}: its runs differ in {', '.join(names)}, and are pooled all the same.")
    lonely = any(sum(bool(member.of(task)) for member in members) == 1 for task in published.rows)
    if lonely and any(member.trained for member in members):
        notes.append(f"{label}: where one seed stands behind a number, its interval is over variations alone, and "
                     "does not say how much another training run would differ.")  # fmt: skip
    return notes
