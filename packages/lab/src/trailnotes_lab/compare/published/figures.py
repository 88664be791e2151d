"""Published figures as data, each table with its model and its protocol. They never share a column with ours.

Figures are facts quoted from the papers named in each table's `source`; a ± is theirs, and no interval of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class PrintedFigure:
    """One printed cell: mean and standard deviation, in the unit of its table."""

    mean: float
    sd: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.sd:.1f}"


@dataclass(frozen=True, slots=True)
class PrintedColumn:
    """One published method."""

    method: str
    figures: tuple[PrintedFigure, ...]  # one a row of the table, in its order
    average: float  # as printed


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One table of a paper: rows, columns, and what every number in it depends on."""

    env: str
    source: str
    model: str
    protocol: str  # one line for the head of the columns
    facts: Mapping[str, object]  # what of it can be held against a config of ours; see protocol.py
    metric: str
    rows: Mapping[str, str]  # task as the simulator calls it -> as the paper prints it, in the paper's order
    columns: tuple[PrintedColumn, ...]
    notes: tuple[str, ...]


_ROWS = {
    "chemistry-mix": "chemistry-mix",
    "chemistry-mix-paint-secondary-color": "chemistry-mix-paint-secondary",
    "chemistry-mix-paint-tertiary-color": "chemistry-mix-paint-tertiary",
    "find-animal": "find-animal",
    "find-living-thing": "find-living-thing",
    "find-non-living-thing": "find-non-living-thing",
    "find-plant": "find-plant",
    "identify-life-stages-1": "identify-life-stages-1",
    "identify-life-stages-2": "identify-life-stages-2",
    "lifespan-longest-lived": "lifespan-longest",
    "lifespan-longest-lived-then-shortest-lived": "lifespan-longest/shortest",
    "lifespan-shortest-lived": "lifespan-shortest",
    "power-component": "power-component",
    "power-component-renewable-vs-nonrenewable-energy": "power-component-renewable",
    "test-conductivity": "test-conductivity",
    "test-conductivity-of-unknown-substances": "test-conductivity-unknown",
    "measure-melting-point-known-substance": "measure-melting-point-known",
    "use-thermometer": "use-thermometer",
}

# One line a row of the paper: naive, Reflexion, Retrospex, GRPO, EMPO2; each mean and standard deviation.
_FIGURES = """
-42.0 38.0    1.2 0.7   20.8 10.0   12.4 3.5    42.7 12.4
-33.0 47.1    0.0 0.0   27.8  6.3    7.1 2.8    33.3  0.6
-33.9 44.3   36.9 5.7    7.6  4.2   42.6 6.2    39.2  8.7
-58.2 50.2   39.5 5.8   25.9 13.5   72.4 6.8   100.0  0.0
-65.1 48.1   36.6 6.1   20.6  4.8   68.7 7.1   100.0  0.0
-35.9 68.6    4.8 2.0   89.1 11.5   24.7 6.4   100.0  0.0
-47.1 66.2   15.1 3.8   23.0  3.5   46.2 7.9   100.0  0.0
-48.9 65.4    9.2 2.4   19.0 25.7   17.9 4.7    36.2 11.2
-50.7 65.0   33.8 5.5   11.0  1.7   39.5 6.0    56.3  8.1
-51.8 64.8   44.6 6.5   55.0 15.0   78.2 7.3   100.0  0.0
-56.2 63.5   34.1 5.1   38.0 15.0   62.3 6.9   100.0  0.0
-56.8 63.0    6.1 1.9   67.0 23.8   20.6 4.4   100.0  0.0
-90.0 39.4    6.3 1.8    8.2  2.4   15.1 3.9    94.3  3.6
-85.0 49.8   11.7 2.9   10.0  3.2   24.6 5.5    92.6  0.9
-86.9 42.4   13.2 3.1   60.0  0.0   27.8 6.1    89.5  3.2
-81.7 48.6    2.6 1.0   65.5 23.7    9.5 3.4    71.4  6.3
-97.5  7.5   11.4 3.0   26.5 16.1   19.8 5.0    27.6  4.2
-83.7 43.6    0.9 0.4   32.5 32.1    7.6 2.5    82.7 13.3
"""
_AVERAGES = {"naive": -61.3, "Reflexion": 17.1, "Retrospex": 33.8, "GRPO": 33.2, "EMPO²": 75.9}


def _parse_columns() -> tuple[PrintedColumn, ...]:
    lines = [[float(word) for word in line.split()] for line in _FIGURES.strip().splitlines()]
    return tuple(
        PrintedColumn(method, tuple(PrintedFigure(*line[2 * i : 2 * i + 2]) for line in lines), average)
        for i, (method, average) in enumerate(_AVERAGES.items())
    )


SCIENCEWORLD_18 = PublishedTable(
    env="scienceworld",
    source="EMPO², arXiv 2602.23008, Table 1",
    model="Qwen2.5-7B-Instruct",
    protocol="first 5 train variations, 20 unseen test variations, 30 steps, return in [-100, 100], failure negative",
    # Temperature and the correction of actions are those of the release (commit 0b40cb72), where the paper is silent.
    facts=MappingProxyType(
        {
            "model": "Qwen2.5-7B-Instruct",
            "split": "test",
            "steps": 30,
            "tips": "without",
            "temperature": 0.4,
            "simplification": "easy",
            "score": "raw",
            "action_correction": "jaccard",
            "max_action_tokens": 32,
            "max_context_tokens": 4500,
        }
    ),
    metric="return",
    rows=MappingProxyType(_ROWS),
    columns=_parse_columns(),
    notes=(
        "18 rows are printed though the text says 19 tasks; which task is missing is not known.",
        "The averages printed are the means of those 18 rows (to the last decimal; naive to its rounding).",
        "A published ± is the paper's standard deviation, not an interval of ours.",
        "30 steps are the paper's; its release sets 60 for chemistry-mix and 120 for measure-melting-point-known.",
    ),
)

PUBLISHED_PANELS: Mapping[str, PublishedTable] = MappingProxyType({"scienceworld-18": SCIENCEWORLD_18})
