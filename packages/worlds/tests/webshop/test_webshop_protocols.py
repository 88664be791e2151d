"""Goals and their splits: the original's wording and orders, one answer for each seed, and no product on two sides."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from small_shop import MUG, ListCatalogue, product
from trailnotes.errors import ConfigError
from trailnotes_worlds.webshop.goals import NO_LIMIT, iter_goals
from trailnotes_worlds.webshop.products import Instruction, Product
from trailnotes_worlds.webshop.protocols import (
    PROTOCOLS,
    SPLITS,
    GoalSelection,
    compute_splits,
    make_tasks,
    require_leak_free_split,
)


def human(number: int, order: int | None = None) -> Product:
    """A product with one human goal, and two synthetic ones."""
    return product(
        f"B0PEN{number:05}",
        title=f"pen number {number}",
        options=(("ink", ("red", "blue")),),
        instructions=(
            Instruction("human", f"i want pen {number}", ("fine tip",), (), order),
            Instruction("synthetic", f"Find me pen {number}", ("fine tip",)),
        ),
    )


PENS = ListCatalogue(tuple(human(number) for number in range(1600)))


def test_a_synthetic_instruction_makes_a_goal_of_each_combination() -> None:
    goals = [goal for goal, _ in iter_goals(MUG, "synthetic", 0)]
    assert [goal.options for goal in goals] == [
        (("color", "blue"), ("size", "small")), (("color", "blue"), ("size", "large")),
        (("color", "rectangular"), ("size", "small")), (("color", "rectangular"), ("size", "large")),
    ]  # fmt: skip
    (limit,) = {goal.price_upper for goal in goals}
    assert goals[0].instruction == (
        f"Find me a lead free mug with color: blue, and size: small, and price lower than {limit:.2f} dollars"
    )


def test_a_human_instruction_makes_one_goal_of_values() -> None:
    ((goal, order),) = iter_goals(MUG, "human", 0)
    assert (goal.options, goal.attributes, order) == ((("", "blue"),), ("dishwasher safe",), 7)
    assert goal.instruction == (
        f"i want a blue mug that is dishwasher safe, and price lower than {goal.price_upper:.2f} dollars"
    )


@pytest.mark.parametrize(
    ("price", "limits"),
    [
        (12.5, {30.0, 40.0, 50.0}),  # the higher of two of 20, 30, 40, 50
        (20.0, {40.0, 50.0, 60.0}),  # 20 is not above 20
        (975.0, {990.0}),  # of 980 and 990
        (985.0, {NO_LIMIT}),  # one is not enough to draw two
        (2000.0, {NO_LIMIT}),
    ],
)
def test_the_limit_is_the_higher_of_two_of_the_next_four(price: float, limits: set[float]) -> None:
    drawn = set()
    for seed in range(60):
        ((goal, _),) = iter_goals(product("B0MUG00002", prices=(price,)), "human", seed)
        drawn.add(goal.price_upper)
        assert ("price lower than" in goal.instruction) == (goal.price_upper < NO_LIMIT)
    assert drawn == limits


@pytest.mark.parametrize("name", PROTOCOLS)
def test_splits_are_pure_and_share_no_task(name: str) -> None:
    choice = GoalSelection(name)
    first = compute_splits(PENS, choice)
    random.seed(1)
    assert compute_splits(PENS, choice) == first
    ids = [task.id for split in SPLITS if first[split] for task in make_tasks(first, split, name)]
    assert len(ids) == len(set(ids))
    assert all(task_id.startswith(f"webshop/{name}/B0PEN") for task_id in ids)


def test_original_splits_by_the_place_in_the_shuffle_of_seed_233() -> None:
    splits = compute_splits(PENS, GoalSelection("original"))
    assert {split: len(placed) for split, placed in splits.items()} == {"test": 500, "validation": 1000, "train": 100}
    order = list(range(1600))
    random.Random(233).shuffle(order)
    assert [placed.goal.asin for placed in splits["test"]] == [f"B0PEN{number:05}" for number in order[:500]]
    assert splits["train"][0].number == 1500


def test_original_keeps_the_official_order() -> None:
    """A part of the catalogue then has its part of each split, and nothing moves; what has no place is in none."""
    few = ListCatalogue((human(0, 499), human(1, 12_000), human(2, 0), human(3, 1499), human(4, 1500), human(5)))
    numbers = {
        split: [p.number for p in placed] for split, placed in compute_splits(few, GoalSelection("original")).items()
    }
    assert numbers == {"test": [0, 499], "validation": [1499], "train": [1500, 12_000]}


def test_rememberer_trains_on_ten_goals() -> None:
    for train_set, first in (("S0", 500), ("S1", 510)):
        splits = compute_splits(PENS, GoalSelection("rememberer", train_set=train_set))
        assert [placed.number for placed in splits["train"]] == list(range(first, first + 10))
        assert [placed.number for placed in splits["test"]] == list(range(100))
        assert not {p.goal for p in splits["validation"]} & {p.goal for p in (*splits["train"], *splits["test"])}


def test_verl_agent_small_leaks() -> None:
    splits = compute_splits(PENS, GoalSelection("verl-agent-small"))
    trained = {(placed.goal.asin, placed.goal.options) for placed in splits["train"]}
    tested = {(placed.goal.asin, placed.goal.options) for placed in splits["test"]}
    assert len(tested) == 500
    assert tested <= trained  # all of it
    own = [{(p.goal.asin, p.goal.options): p.number for p in splits[split]} for split in ("test", "validation")]
    assert len(own[1]) == 500
    assert own[0] != own[1]  # permutations of their own
    assert not {p.seed for p in splits["test"]} & {p.seed for p in splits["validation"]}
    for split in ("test", "validation"):
        with pytest.raises(ConfigError, match=r'goals that it tests.*Train and evaluate with protocol = "by-product"'):
            require_leak_free_split(split, "verl-agent-small", allow=False)
    require_leak_free_split("train", "verl-agent-small", allow=False)
    require_leak_free_split("test", "verl-agent-small", allow=True)
    assert [name for name, protocol in PROTOCOLS.items() if protocol.leaks] == ["verl-agent-small"]


titles = st.sampled_from(["Red Pen", "red  pen", "Blue Pen", "Mug", "Cup", "Lamp", "Chair"])


kinds = st.sampled_from(["both", "human", "synthetic"])


@settings(deadline=None, max_examples=30)
@given(st.lists(titles, min_size=1, max_size=30), st.integers(0, 5), kinds)
def test_by_product_has_no_product_on_two_sides(listed: list[str], seed: int, kind: str) -> None:
    """Neither by asin nor by title, however the catalogue looks."""
    shelves = ListCatalogue(
        tuple(product(f"B0{n:08}", title=title, instructions=told(str(n))) for n, title in enumerate(listed))
    )
    splits = compute_splits(shelves, GoalSelection("by-product", kind, seed))
    for name in ("asin", "title"):
        sides = [
            {p.goal.asin if name == "asin" else " ".join(shelves[p.goal.asin].title.lower().split()) for p in placed}
            for placed in splits.values()
        ]
        assert sum(map(len, sides)) == len(set().union(*sides))
    assert max(Counter(p.goal.asin for placed in splits.values() for p in placed).values()) <= 4
    everywhere = {asin for placed in splits.values() for asin in (p.goal.asin for p in placed)}
    assert everywhere == {each.asin for each in shelves}


@pytest.mark.parametrize("seed", range(3))
def test_by_product_trains_on_no_instruction_that_it_examines(seed: int) -> None:
    """Products of many titles share one; above the highest limit of price, nothing tells their instructions apart."""
    told_alike = [product(f"B0{n:08}", title=f"pen {n}", prices=(2000.0,), instructions=told("a")) for n in range(30)]
    own = [product(f"B1{n:08}", title=f"pot {n}", prices=(2000.0,), instructions=told(str(n))) for n in range(30)]
    splits = compute_splits(ListCatalogue((*told_alike, *own)), GoalSelection("by-product", "human", seed))
    said = {split: {placed.goal.instruction for placed in splits[split]} for split in SPLITS}
    assert "find me a" in said["test"]
    assert not said["train"] & (said["test"] | said["validation"])
    examined = {placed.goal.asin for split in ("test", "validation") for placed in splits[split]}
    assert {placed.goal.asin for placed in splits["train"]} == {each.asin for each in own} - examined


def told(what: str) -> tuple[Instruction, ...]:
    """An instruction of each kind."""
    return Instruction("human", f"find me {what}", ("soft",)), Instruction("synthetic", f"Find {what}", ("soft",))


@settings(deadline=None, max_examples=30)
@given(st.lists(titles, min_size=1, max_size=30), st.integers(0), st.integers(0), kinds)
def test_what_one_seed_trains_on_no_other_examines(listed: list[str], one: int, other: int, kind: str) -> None:
    shelves = ListCatalogue(tuple(product(f"B0{n:08}", title=title) for n, title in enumerate(listed)))
    trained, examined = (compute_splits(shelves, GoalSelection("by-product", kind, seed)) for seed in (one, other))
    products = {p.goal.asin for p in trained["train"]}
    assert not products & {p.goal.asin for split in ("validation", "test") for p in examined[split]}
