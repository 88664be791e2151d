"""Minesweeper: what opens, what follows from numbers (against all arrangements), and what the fields are."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trailnotes_worlds.puzzles.base import assign_split, canonicalize_orientation, list_cells
from trailnotes_worlds.puzzles.fields import (
    Minefield,
    find_safe_cells,
    get_neighbours,
    open_cell,
    solve_by_logic,
)
from trailnotes_worlds.puzzles.minesweeper import (
    DIFFICULTIES,
    MinesweeperEnv,
    MinesweeperGame,
    _render_rows,
    generate_level,
    minesweeper_tasks,
)


def by_trying_everything(size: int, numbers: dict[int, int], num_mines: int) -> int:
    """Mask of the closed cells without a mine in any arrangement that fits."""
    closed = [cell for cell in range(size * size) if cell not in numbers]
    mined = 0
    for chosen in combinations(closed, num_mines):
        mines = sum(1 << cell for cell in chosen)
        if all((get_neighbours(size, cell) & mines).bit_count() == number for cell, number in numbers.items()):
            mined |= mines
    return sum(1 << cell for cell in closed) & ~mined


@st.composite
def openings(draw: st.DrawFn) -> tuple[Minefield, int]:
    """A small field, and some of its cells without a mine, open."""
    size = draw(st.integers(2, 4))
    every = list(range(size * size))
    mines = draw(st.sets(st.sampled_from(every), min_size=1, max_size=5).filter(lambda mines: len(mines) < len(every)))
    clear = [cell for cell in every if cell not in mines]
    shown = draw(st.sets(st.sampled_from(clear), min_size=1))
    return Minefield(size, sum(1 << cell for cell in mines)), sum(1 << cell for cell in shown)


@given(openings())
def test_what_follows_is_what_holds_in_all_arrangements_that_fit(opening: tuple[Minefield, int]) -> None:
    field, open_ = opening
    numbers = {cell: field.count_adjacent_mines(cell) for cell in list_cells(open_)}
    num_mines = field.mines.bit_count()
    follows = find_safe_cells(field.size, numbers, num_mines)
    assert follows == by_trying_everything(field.size, numbers, num_mines)
    assert not follows & (field.mines | open_)


def test_neighbours_are_counted_at_corners_edges_and_within() -> None:
    assert [get_neighbours(3, cell).bit_count() for cell in range(9)] == [3, 5, 3, 5, 8, 5, 3, 5, 3]
    field = Minefield(3, 0b000_000_011)
    assert [field.count_adjacent_mines(cell) for cell in range(2, 9)] == [1, 2, 2, 1, 0, 0, 0]


def test_a_zero_opens_its_neighbours_and_a_number_itself() -> None:
    field = Minefield(3, 0b000_000_001)
    assert open_cell(field, 0, 1) == 1 << 1
    assert open_cell(field, 0, 8) == 0b111_111_110


def test_the_number_of_mines_says_what_no_open_number_says() -> None:
    beside = {0: 2}  # of a 3 x 3 field: two of the three cells around the corner
    assert list_cells(find_safe_cells(3, beside, 2)) == [2, 5, 6, 7, 8]
    assert list_cells(find_safe_cells(3, beside, 3)) == []


def test_a_field_that_needs_a_guess_is_not_solved_by_logic() -> None:
    assert solve_by_logic(Minefield(4, 1 << 14), 0) == (15,)  # one mine, which is seen: the cell behind it is safe
    assert solve_by_logic(Minefield(4, 0b1_1111 << 8), 0) is None  # behind a wall of mines


def test_an_episode_reads_as_people_know_it() -> None:
    sweep = MinesweeperGame(Minefield(3, 1 << 0 | 1 << 1), 8)
    assert sweep.render() == "mines without a flag: 2\n  0 1 2\n0 . . .\n1 2 2 1\n2 0 0 0"
    assert sweep.actions() == ("open 0 0", "open 0 1", "open 0 2", "flag 0 0", "flag 0 1", "flag 0 2")
    assert sweep.apply_action("flag (0, 1)") == ""
    assert sweep.render().splitlines()[2] == "0 . F ."
    assert sweep.render().startswith("mines without a flag: 1")
    assert "open 0 1" not in sweep.actions()
    assert sweep.apply_action("open 0 1") == "There is a flag on that cell: take it away first."
    assert sweep.apply_action("open 1 1") == "That cell is open already."
    assert sweep.apply_action("open 3 0") == "There is no such cell: rows and columns go from 0 to 2."
    assert (sweep.won, sweep.progress) == (False, 0.0)
    assert sweep.apply_action("open 0 2") == ""
    assert (sweep.won, sweep.lost, sweep.progress) == (True, False, 1.0)


def test_a_mine_loses_and_is_shown() -> None:
    env = MinesweeperEnv(reward="dense")
    task = minesweeper_tasks("train")[0]
    env.reset(task)
    assert env._game
    (mine, *_) = list_cells(generate_level("easy", True, "train", task.seed).field.mines)
    last = env.step(f"I will open {mine // 5}, {mine % 5}.")
    assert (last.terminated, last.success, last.score, last.reward, last.actions) == (True, False, 0.0, 0.0, ())
    assert last.text.startswith("That was a mine.")
    assert last.text.count("*") == 1


def test_no_field_is_in_two_splits_whatever_the_first_click() -> None:
    """Clicks on one area without numbers open the same picture, so that the field alone says which game it is."""
    fields = [
        {canonicalize_orientation(_render_rows(generate_level("easy", True, split, seed).field)) for seed in range(150)}
        for split in ("train", "validation", "test")
    ]
    assert all(not one & other for one, other in combinations(fields, 2))


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@settings(max_examples=30)
@given(st.booleans(), st.sampled_from(["train", "validation", "test"]), st.integers(0, 2000))
def test_a_field_is_what_its_difficulty_says(difficulty: str, logic: bool, split: str, seed: int) -> None:
    level, wanted = generate_level(difficulty, logic, split, seed), DIFFICULTIES[difficulty]
    field = level.field
    assert (field.size, field.mines.bit_count()) == (wanted.size, wanted.mines)
    assert field.count_adjacent_mines(level.start) == 0
    assert assign_split(canonicalize_orientation(_render_rows(field))) == split
    open_ = open_cell(field, 0, level.start)
    for cell in level.solution:
        assert not (open_ | field.mines) >> cell & 1
        if logic:  # it follows from what was open, and nobody knew more
            numbers = {each: field.count_adjacent_mines(each) for each in list_cells(open_)}
            assert find_safe_cells(field.size, numbers, wanted.mines) >> cell & 1
        open_ = open_cell(field, open_, cell)
    assert open_ == field.all_cells & ~field.mines
