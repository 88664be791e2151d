"""Commands in a model's own words, and what each game makes of them."""

from __future__ import annotations

import pytest

from trailnotes.envs.base import strip_intent
from trailnotes.envs.waymarks.env import parse_command
from trailnotes_worlds.scienceworld.actions import correct_action

OPENINGS = (
    "I ", "I\u2019ll ", "I would like to ", "I'm going to ", "let's first ", "We should ", "Okay, I will ", "I'd ",
    "Sure! Let me try to ", "I believe that we can ", "So let me ", "My next action is to ", "The best move is to ",
)  # fmt: skip


@pytest.mark.parametrize("opening", OPENINGS)
def test_what_a_model_says_of_itself_becomes_a_command(opening: str) -> None:
    assert strip_intent(f"{opening}go to the kitchen") == "go to the kitchen"
    assert parse_command(f"{opening}go north.") == ("go north", False)
    assert correct_action(f"{opening}go to kitchen.", "exact", list).action == "go to kitchen"
    offered = correct_action(f"{opening}go to the kitchen.", "ordered", lambda: ["go to kitchen", "look"])
    assert offered.action == "go to kitchen"


@pytest.mark.parametrize(
    "action",
    ["", "i", "i will", "go north", "i go north", "Ill", "let go", "Insert key", "We", "now look", "my action"],
)
def test_a_command_stays_as_it_is(action: str) -> None:
    assert strip_intent(action) == action


@pytest.mark.parametrize(
    "said", ["I am going to the kitchen", "I'm now going to the kitchen", "Okay, we are going to the kitchen"]
)
def test_where_a_model_is_going_it_goes(said: str) -> None:
    assert strip_intent(said) == "go to the kitchen"
