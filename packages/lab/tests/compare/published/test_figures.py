from __future__ import annotations

from statistics import mean

import pytest

from trailnotes_lab.compare.published.figures import PUBLISHED_PANELS, PrintedColumn, PrintedFigure
from trailnotes_worlds.scienceworld.tasks import MAX_STEPS, PAPER_PANEL

SCIENCEWORLD_18 = PUBLISHED_PANELS["scienceworld-18"]
COLUMNS = {column.method: column for column in SCIENCEWORLD_18.columns}


def test_the_rows_are_the_panel_in_the_papers_order() -> None:
    assert tuple(SCIENCEWORLD_18.rows) == PAPER_PANEL
    assert len(set(SCIENCEWORLD_18.rows.values())) == 18


@pytest.mark.parametrize(
    ("method", "printed"), [("naive", -61.3), ("Reflexion", 17.1), ("Retrospex", 33.8), ("GRPO", 33.2), ("EMPO²", 75.9)]
)
def test_each_printed_average_is_the_mean_of_the_18_rows(method: str, printed: float) -> None:
    column = COLUMNS[method]
    assert len(column.figures) == 18
    assert column.average == printed
    average = mean(figure.mean for figure in column.figures)
    if method == "naive":  # -61.356 from rows of one decimal: the paper has rounded the rows, too
        assert abs(average - printed) <= 0.05 + 0.05
    else:
        assert round(average, 1) == printed


def cell(method: str, task: str) -> PrintedFigure:
    return COLUMNS[method].figures[list(SCIENCEWORLD_18.rows).index(task)]


@pytest.mark.parametrize(
    ("method", "task", "figure"),
    [
        ("naive", "chemistry-mix", PrintedFigure(-42.0, 38.0)),
        ("Retrospex", "identify-life-stages-1", PrintedFigure(19.0, 25.7)),
        ("GRPO", "chemistry-mix-paint-tertiary-color", PrintedFigure(42.6, 6.2)),
        ("EMPO²", "chemistry-mix-paint-tertiary-color", PrintedFigure(39.2, 8.7)),
        ("Reflexion", "lifespan-shortest-lived", PrintedFigure(6.1, 1.9)),
        ("EMPO²", "use-thermometer", PrintedFigure(82.7, 13.3)),
    ],
)
def test_figures_stand_in_their_row_and_column(method: str, task: str, figure: PrintedFigure) -> None:
    assert cell(method, task) == figure


def test_a_panel_says_what_its_numbers_depend_on() -> None:
    assert list(PUBLISHED_PANELS) == ["scienceworld-18"]
    assert SCIENCEWORLD_18.facts["steps"] == MAX_STEPS
    assert "18 rows are printed though the text says 19 tasks" in SCIENCEWORLD_18.notes[0]
    assert all(isinstance(column, PrintedColumn) for column in SCIENCEWORLD_18.columns)
    assert str(PrintedFigure(-42.0, 38.0)) == "-42.0 ± 38.0"
