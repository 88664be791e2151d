"""WebShop's tips: what each tells can be read back, in every wording, as a prompt shows it."""

from __future__ import annotations

import random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.rollout.conversation import quoted
from trailnotes_worlds.demonstrations.webshop_words import (
    WORDS,
    Fault,
    FaultKind,
    format_english_tip,
    format_terse_tip,
    parse_tip_actions,
    space_brackets,
    strip_brackets,
    unspace_brackets,
)

WAY = ("search[oak lamp 2.5 inch]", "click[next >]", "click[b00lamp]", "click[dark red, matt]", "click[buy now]")
SAID = st.from_regex(r"[a-z0-9]+( [a-z0-9.]*[a-z0-9]){0,4}", fullmatch=True)


@given(
    query=SAID,
    clicked=st.lists(SAID, max_size=5),
    kinds=st.lists(st.sampled_from(get_args(FaultKind)), max_size=3, unique=True),
    seed=st.integers(0, 2**32),
)
def test_the_way_is_read_back_out_of_every_wording(
    query: str, clicked: list[str], kinds: list[FaultKind], seed: int
) -> None:
    way = (f"search[{query}]", *(f"click[{what}]" for what in clicked))
    faults = [Fault(kind, "size") for kind in kinds]
    for text in (format_terse_tip(way, faults), format_english_tip(way, faults, 0.25, random.Random(seed))):
        assert parse_tip_actions(text) == way, text
        assert parse_tip_actions(quoted(text)) == way, "as a prompt shows it"


def test_a_way_may_hold_commas_and_numbers() -> None:
    terse = "search oak lamp 2.5 inch ; click next ; click b00lamp ; click dark red, matt ; click buy now"
    assert format_terse_tip(WAY, ()) == terse
    assert format_terse_tip(WAY, [Fault("option", "size"), Fault("price", "20.00")]) == f"{terse} . no size , too dear"
    assert parse_tip_actions(terse) == parse_tip_actions(quoted(terse)) == WAY
    assert all(parse_tip_actions(format_english_tip(WAY, (), 1.0, random.Random(seed))) == WAY for seed in range(50))


def test_what_was_missed_is_said_and_nothing_else() -> None:
    faults = [Fault("value", "pale green"), Fault("option", "size")]
    texts = {format_english_tip(WAY, faults, 0.625, random.Random(seed)) for seed in range(200)}
    assert len(texts) > 50
    assert all("pale green" in text and "size" in text and "0.62" in text for text in texts)
    right = {format_english_tip(WAY, (), 1.0, random.Random(seed)) for seed in range(200)}
    assert not any(word in text for text in right for word in ("not", "fault", "missed", "But"))


def test_every_fault_has_both_wordings() -> None:
    assert WORDS["terse"].keys() == WORDS["english"].keys() == {*get_args(FaultKind)}


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("nothing . not bought", ()),
        ("What I did: nothing. Score 0, since nothing was bought.", ()),
        ("I would search elsewhere.", ()),
        ("Try: search lamp, click b00lamp.", ("search[lamp]", "click[b00lamp]")),
        ("", ()),
    ],
)
def test_other_words_tell_what_they_list(text: str, way: tuple[str, ...]) -> None:
    assert parse_tip_actions(text) == way


def test_an_action_loses_its_brackets_alone() -> None:
    assert [strip_brackets(action) for action in ("click[a [b]]", "search[x]", "look around", "Click[x]")] == [
        "click a [b]", "search x", "look around", "Click[x]",
    ]  # fmt: skip


def test_blanks_inside_brackets_come_and_go() -> None:
    assert space_brackets("click[dark red]") == "click[ dark red ]"
    assert [unspace_brackets(text) for text in ("click[ dark red ]", "click[dark red]", "dance")] == [
        "click[dark red]", "click[dark red]", "dance",
    ]  # fmt: skip
