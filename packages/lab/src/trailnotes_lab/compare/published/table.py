"""One row a task, one column a method of ours: means, intervals, and what stands behind each number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trailnotes.errors import RunError
from trailnotes.reporting import crossed
from trailnotes.reporting.crossed import CONFIDENCE, MIN_FAMILIES, Crossed, Part
from trailnotes.reporting.intervals import Estimate
from trailnotes.runs.usage import BY_ROW
from trailnotes_lab.compare.evaluations import Evaluation, refuse_two_protocols, variation_of
from trailnotes_lab.compare.published.figures import PublishedTable
from trailnotes_lab.compare.published.protocol import differences, label_of, models_of, protocol_of, unlike

BOUNDS = (-100.0, 100.0)  # of a return of the panel
UNIT = "variations"
METHOD = (
    f"{CONFIDENCE:.0%}, beyond these variations: seeds and variations are samples, the same variations for all seeds, "
    "a Student's t for each, the squares added, cut at the range of a return; where one seed stands behind it, "
    f"variations alone. With fewer than {MIN_FAMILIES} variations it is that on this panel, and says so: seeds are the "
    "sample. The tasks of a mean are fixed. Seeds that are equal in every variation count once"
)


@dataclass(frozen=True, slots=True)
class Cell:
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
        RunError: one task twice with one seed, or two protocols.
    """
    refuse_two_protocols(members, "column")
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


def _values(numbers: _Numbers) -> dict[tuple[str, int], dict[str, float]]:
    """Run -> variation -> mean of its episodes."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for run, episodes in numbers.items():
        own: dict[str, list[float]] = {}
        for variation, value in episodes:
            own.setdefault(variation, []).append(value)
        found[run] = {variation: float(np.mean(values)) for variation, values in own.items()}
    return found


def _cell(numbers: _Numbers, phrases: Sequence[str]) -> Cell:
    variations = {variation for episodes in numbers.values() for variation, _ in episodes}
    return Cell(
        estimate=crossed.estimate(_values(numbers), {name: name for name in variations}, BOUNDS, unit=UNIT),
        num_seeds=len(numbers),
        num_variations=len(variations),
        num_episodes=sum(map(len, numbers.values())),
        differences=tuple(phrases),
    )


def _mean(cells: Mapping[str, Cell], numbers: Mapping[str, _Numbers]) -> Cell:
    """Mean of the rows. The tasks are the panel and no sample; those that share their runs are of the same seeds."""
    return Cell(
        estimate=_estimate_of_mean([cell.estimate for cell in cells.values()], numbers),
        num_seeds=min(cell.num_seeds for cell in cells.values()),
        num_variations=sum(cell.num_variations for cell in cells.values()),
        num_episodes=sum(cell.num_episodes for cell in cells.values()),
    )


def _estimate_of_mean(rows: Sequence[Estimate], numbers: Mapping[str, _Numbers]) -> Estimate:
    """Variances of the tasks' variations and of the blocks' seeds, each by its weight in the mean."""
    mean = np.asarray(np.mean([row.mean for row in rows]))
    if lacking := [row.not_beyond for row in rows if row.not_beyond == crossed.APART]:
        return Estimate(float(mean), None, None, *lacking[:1] * 2)
    values = {task: _values(own) for task, own in numbers.items()}
    blocks: dict[frozenset[object], list[str]] = {}
    for task, runs in values.items():
        blocks.setdefault(frozenset(runs), []).append(task)
    of_tasks = [_crossed([values[task]]) for task in values]
    of_blocks = [_crossed([values[task] for task in tasks]) for tasks in blocks.values()]
    seeds = _sum(
        part.seeds.times(len(tasks) / len(rows)) for part, tasks in zip(of_blocks, blocks.values(), strict=True)
    )
    variations = _sum(part.families.times(1 / len(rows)) for part in of_tasks)
    number = sum(part.num_families for part in of_tasks)
    alone = min(part.num_families for part in of_tasks) == 1  # its variations have no spread to be seen
    lonely = [crossed.why_not_on_panel(part, len(runs)) for part, runs in zip(of_blocks, blocks, strict=True)]
    found = Crossed(mean, np.min([part.num_seeds for part in of_blocks]), seeds, variations, number)
    return crossed.estimate_of(
        mean,
        crossed.panel_limits(mean, seeds, BOUNDS),
        crossed.beyond_limits(found, BOUNDS),
        next(filter(None, lonely), ""),
        crossed.too_few(1 if alone else number, UNIT) or crossed.why_constant(found, BOUNDS),
    )


def _crossed(tasks: Sequence[crossed.Values]) -> Crossed:
    """Runs by variations of `tasks`, which all have the same runs. A family is a variation, of more tasks a task."""
    games = [crossed.common_games(values) for values in tasks]
    runs = list(tasks[0])
    matrix = np.hstack(
        [crossed.matrix_of({run: values[run] for run in runs}, own) for values, own in zip(tasks, games, strict=True)]
    )
    if len(tasks) == 1:
        return crossed.crossed(matrix, np.eye(len(games[0])))
    member = np.repeat(np.arange(len(games)), list(map(len, games)))
    shares = np.array([(member == task) / len(own) for task, own in enumerate(games)])
    return crossed.crossed(matrix, shares)


def _sum(parts: Iterable[Part]) -> Part:
    first, *others = parts
    return sum(others, start=first)


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
        notes.append(f"{label}: where one seed stands behind a number, its interval is of variations alone, and "
                     "does not say how much another training run would differ.")  # fmt: skip
    if fewer := [task for task in published.rows if _loses_some([m for m in members if m.of(task)], task)]:
        notes.append(f"{label}: {', '.join(fewer)}: of the variations that every seed has played; others are left out.")
    return notes


def _loses_some(members: Sequence[Evaluation], task: str) -> bool:
    """Whether the seeds share some variations but not all."""
    values = _values({member.run: _numbers(member, task) for member in members})
    shared = crossed.common_games(values)
    return bool(shared) and any(len(own) > len(shared) for own in values.values())
