"""The reward: its arithmetic by hand, the original's quirks, and its figure on the real products."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_shop import LAMP, MUG
from trailnotes_worlds.webshop.goals import Goal
from trailnotes_worlds.webshop.products import Product
from trailnotes_worlds.webshop.reward import COLORS, compute_reward, compute_similarity, extract_color

GOAL = Goal(MUG.asin, "", ("lead free",), (("color", "blue"), ("size", "small")), 20.0)


def test_a_wanted_pair_is_compared_as_python_writes_it() -> None:
    """There a no-break space is the letters xa0; of the value chosen it is dropped: "size x xa0large" and "xlarge"."""
    for value, num_options in (("x large", 1), ("x\xa0large", 0)):
        wanted = replace(GOAL, options=(("size", value),))
        assert compute_reward(wanted, MUG, MUG, [value], 12.5).num_options == num_options


def test_each_part_that_is_missed_costs_its_share_of_four() -> None:
    assert compute_reward(GOAL, MUG, MUG, ["blue"], 12.5).total == 0.75
    assert compute_reward(GOAL, MUG, MUG, [], 12.5).total == 0.5
    assert compute_reward(GOAL, MUG, MUG, ["blue", "small"], 20.01).total == 0.75
    assert compute_reward(GOAL, MUG, MUG, ["blue", "small"], 20.0).total == 1.0  # the limit itself fits
    leaded = replace(MUG, attributes=("dishwasher safe",))
    assert compute_reward(GOAL, MUG, leaded, ["blue", "small"], 12.5).total == 0.75


@pytest.mark.parametrize(
    ("nouns", "query", "categories", "factor"),
    [
        (("mug",), "mugs", (), 1.0),  # a third of the nouns, and found by the same words
        (("mug",), "cups", (), 1.0),  # a third is enough by itself
        (("lamp",), "mugs", ("Home", "Kitchen"), 0.0),  # no noun in common outweighs all
        (("lamp",), "cups", (), 0.0),
    ],
)
def test_the_type_factor(nouns: tuple[str, ...], query: str, categories: tuple[str, ...], factor: float) -> None:
    bought = replace(MUG, nouns=nouns, query=query, categories=categories)
    assert compute_reward(GOAL, MUG, bought, ["blue", "small"], 0.0).total == factor


@pytest.mark.parametrize(("shared", "of", "factor"), [(1, 5, 0.5), (1, 10, 0.5), (1, 11, 0.1), (2, 9, 1.0)])
def test_few_nouns_in_common_and_nothing_else_cost(shared: int, of: int, factor: float) -> None:
    """One of five is 0.2, which is not more than 0.2; one of eleven is less than 0.1."""
    wanted = replace(MUG, nouns=tuple(f"noun{n}" for n in range(of)))
    stranger = replace(MUG, nouns=wanted.nouns[:shared], query="cups", categories=("Toys",))
    assert compute_reward(GOAL, wanted, stranger, ["blue", "small"], 0.0).type_factor == factor
    related = replace(stranger, categories=("Mugs", "Home"))
    assert compute_reward(GOAL, wanted, related, ["blue", "small"], 0.0).type_factor == (0.1 if factor == 0.1 else 1.0)


@pytest.mark.parametrize(
    ("chosen", "wanted", "matched"),
    [
        ("navy blue", ("", "blue"), True),  # "blue" comes before "navy" in the list
        ("navy", ("", "blue"), False),
        ("rectangular", ("", "rectangular"), True),  # both are tan
        ("rectangular", ("", "tan"), True),
        ("rectangular", ("shape", "rectangular"), False),  # tan against "shape rectangular"
        ("1877brown", ("color", "1877brown"), False),
        ("brown", ("color", "brown"), True),
        ("stonewash", ("color", "stonewash"), False),  # stone, against a pair that is stonewash as a whole
        ("2 pack", ("size", "2 pack"), True),
        ("small", ("size", "large"), False),
        ("size", ("size", "large"), True),  # the name of a pair is compared, too
        ("x-large", ("", "large"), True),  # the one's words are among the other's
        ("", ("", "large"), False),
    ],
)
def test_options_match_as_in_the_original(chosen: str, wanted: tuple[str, str], matched: bool) -> None:
    goal = replace(GOAL, options=(wanted,))
    assert compute_reward(goal, MUG, MUG, [chosen], 0.0).num_options == matched


def test_the_first_color_of_the_list_counts() -> None:
    assert len(COLORS) == len(set(COLORS)) == 102
    assert list(COLORS) == sorted(COLORS)
    found = [extract_color(word) for word in ("washed", "dark grey", "xl", "white | wine")]
    assert found == ["ash", "dark", "xl", "white"]


def test_similarity_is_a_whole_number_of_words_without_signs() -> None:
    assert compute_similarity("Lead-Free!", "lead free") == 100
    assert compute_similarity("12” wide", "12 wide") == 100
    assert compute_similarity("café", "caf") == 100  # Latin-1 letters are dropped first
    assert compute_similarity("abc", "") == 0
    assert compute_similarity("leather", "feather") == 86  # of 85.7


texts = st.text(alphabet="abc blue", max_size=8)


@given(st.sampled_from([MUG, LAMP]), st.lists(texts, max_size=3), st.floats(0, 100))
def test_a_reward_is_a_share(bought: Product, chosen: list[str], price: float) -> None:
    reward = compute_reward(GOAL, MUG, bought, chosen, price)
    assert 0 <= reward.total <= 1
    assert reward.num_options <= len(GOAL.options)
    assert compute_reward(GOAL, MUG, bought, [*chosen, "blue"], price).num_options >= reward.num_options
