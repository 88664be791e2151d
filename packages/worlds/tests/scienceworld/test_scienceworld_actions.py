"""What ScienceWorld is told: cleaning, questions, and the two ways of replacing an action."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trailnotes.errors import ConfigError
from trailnotes_worlds.scienceworld.actions import (
    MODES,
    CorrectedAction,
    correct_action,
    match_by_jaccard,
    match_in_order,
    normalize_action,
    parse_question,
)
from trailnotes_worlds.scienceworld.client import ScienceWorldClient
from trailnotes_worlds.scienceworld.tasks import resolve_simplifications

CIRCUIT = (
    "connect battery anode to red wire terminal 1",
    "connect red wire terminal 1 to battery anode",
    "connect red wire terminal 1 to battery cathode",
    "connect red wire terminal 2 to light bulb",
    "focus on agent",
    "focus on red wire",
    "go to kitchen",
    "look around",
    "look at red wire",
    "open door to kitchen",
    "open door to workshop",
    "pick up red wire",
)
UNKNOWN = "No known action matches that input."
ASKED = (
    "Ambiguous request: Please enter the number for the action you intended (or blank to cancel):\n"
    "0:\tpick up orange (in sink, in kitchen)\n"
    "1:\tpick up orange (in bowl, in counter, in kitchen)\n"
    "2:\tpick up orange juice (in wood cup, in fridge, in kitchen)\n"
)
WORDS = sorted({word for action in CIRCUIT for word in action.split()} | {"the", "lamp", "kitchn", "blue"})
phrases = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)
relaxed = settings(deadline=None)  # the machine may be busy
lists = st.lists(phrases.filter(bool), max_size=12)


def never() -> NoReturn:
    raise AssertionError("the list of admissible actions is dear, and was not needed")


def told(text: str, mode: str, valid: Sequence[str] = CIRCUIT) -> str:
    return correct_action(text, mode, lambda: valid).action


# -- exact


@pytest.mark.parametrize(
    "said",
    ["look around", "Look Around", "  look \t around\n", "look around.", "look around!?", '"look around."',
     "`look around`", "\u201cLook around.\u201d", "look around)", "look\x00around", "look around \ud800"],
)  # fmt: skip
def test_exact_cleans_case_blanks_and_final_punctuation(said: str) -> None:
    assert correct_action(said, "exact", never) == CorrectedAction("look around", changed=False)


@pytest.mark.parametrize("said", ["action: look around", "> look around", "look, around", "l'ook around", "(wait"])
def test_exact_leaves_all_else(said: str) -> None:
    assert correct_action(said, "exact", never) == CorrectedAction(said, changed=False)


def test_nothing_remains_of_nothing() -> None:
    assert [normalize_action(said) for said in ("", "   ", "...", '"', "\n\n")] == [""] * 5
    assert normalize_action("öffne die Tür \U0001f6aa") == "öffne die tür"


def test_cleaning_a_very_long_line_is_quick() -> None:
    start = time.process_time()
    assert normalize_action("look" + "." * 200_000) == "look"
    assert len(normalize_action("look " * 20_000)) == 99_999
    assert time.process_time() - start < 2


@relaxed
@given(st.text())
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert normalize_action(normalize_action(text)) == normalize_action(text)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="'exact' or 'jaccard' or 'ordered'"):
        correct_action("wait", "jacard", never)


# -- questions


def test_a_question_has_its_answers() -> None:
    answers = parse_question(ASKED)
    assert answers[1] == "pick up orange (in bowl, in counter, in kitchen)"
    assert len(answers) == 3
    assert parse_question("You move to the kitchen.") == parse_question("") == ()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("2", "2"),
        (" 0. ", "0"),
        ("1:", "1"),
        ("pick up orange (in bowl, in counter, in kitchen)", "1"),
        ("1: pick up orange (in bowl, in counter, in kitchen)", "1"),
        ("Pick up orange juice.", "2"),
        ("pick up orange", "0"),  # two answers are worded so without their places: the first
    ],
)
def test_answers_are_a_number_or_the_words_of_one(mode: str, said: str, number: str) -> None:
    assert correct_action(said, mode, never, parse_question(ASKED)).action == number


@pytest.mark.parametrize(
    ("mode", "action"), [("exact", "pick up the juice"), ("jaccard", "0"), ("ordered", "2")], ids=MODES
)
def test_what_is_no_answer(mode: str, action: str) -> None:
    assert correct_action("pick up the juice", mode, never, parse_question(ASKED)).action == action


def test_going_on_without_an_answer_is_let_through() -> None:
    for mode in ("exact", "ordered"):
        assert correct_action("go to kitchen", mode, never, parse_question(ASKED)) == CorrectedAction(
            "go to kitchen", changed=False
        )


# -- jaccard


def test_jaccard_takes_the_largest_share_of_words() -> None:
    assert told("please open the door to kitchen", "jaccard") == "open door to kitchen"
    assert match_by_jaccard("go kitchen", ["look around", "go to hallway", "go to kitchen"]) == "go to kitchen"


def test_jaccard_replaces_even_an_admissible_action() -> None:
    turned = "connect red wire terminal 1 to battery anode"
    assert turned in CIRCUIT
    assert correct_action(turned, "jaccard", lambda: CIRCUIT) == CorrectedAction(
        "connect battery anode to red wire terminal 1", changed=True
    )


def test_jaccard_always_finds_something() -> None:
    assert told("", "jaccard") == told("xyzzy", "jaccard") == CIRCUIT[0]
    assert match_by_jaccard("xyzzy", []) == "xyzzy"


@relaxed
@given(phrases, lists)
def test_jaccard_repeated_changes_nothing_more(text: str, valid: list[str]) -> None:
    chosen = match_by_jaccard(text, valid)
    assert chosen in valid or (chosen == text and not valid)
    assert match_by_jaccard(chosen, valid) == chosen


# -- ordered


@pytest.mark.parametrize("action", CIRCUIT)
def test_ordered_never_changes_an_admissible_action(action: str) -> None:
    assert correct_action(action.upper() + ".", "ordered", lambda: CIRCUIT) == CorrectedAction(action, changed=False)


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("connect the red wire terminal 1 to the battery anode", "connect red wire terminal 1 to battery anode"),
        ("connect the battery anode to the red wire terminal 1", "connect battery anode to red wire terminal 1"),
        ("connect red wire terminal 1 to battery cathod", "connect red wire terminal 1 to battery cathode"),
        ("open the door to the kitchen", "open door to kitchen"),
        ("open door to kichen", "open door to kitchen"),
        ("go kitchen", "go to kitchen"),
        ("focs on red wire", "focus on red wire"),
        ("look arround", "look around"),
    ],
)
def test_ordered_finds_what_was_meant(said: str, action: str) -> None:
    assert correct_action(said, "ordered", lambda: CIRCUIT) == CorrectedAction(action, changed=True)


@pytest.mark.parametrize(
    "said",
    [
        "focus on lamp",  # must not become "focus on agent", which ends the episode
        "focus on blue wire terminal",
        "examine red wire",  # the simulator understands it, though it does not list it
        "drop red wire",
        "activate red wire",
        "xyzzy",
        "",
        "connect",
        "look " * 400,
    ],
)
def test_ordered_leaves_what_is_not_close(said: str) -> None:
    valid = [*CIRCUIT, "deactivate red wire"]
    assert correct_action(said, "ordered", lambda: valid) == CorrectedAction(normalize_action(said), changed=False)


def test_ordered_prefers_the_first_of_equals() -> None:
    valid = ["open door to workshop", "open door to kitchen", "open door to hallway"]
    assert told("open door to", "ordered", valid) == "open door to workshop"
    assert told("open door to", "ordered", valid[::-1]) == "open door to hallway"


@relaxed
@given(phrases, lists)
def test_ordered_repeated_changes_nothing_more(text: str, valid: list[str]) -> None:
    chosen = match_in_order(text, valid)
    assert chosen in valid or chosen == text
    assert match_in_order(chosen, valid) == chosen
    assert text not in valid or chosen == text


@relaxed
@given(phrases)
def test_ordered_keeps_the_verb(text: str) -> None:
    chosen = match_in_order(text, CIRCUIT)
    assert chosen == text or chosen.split()[0] == text.split(maxsplit=1)[0]


@pytest.mark.parametrize("mode", ["jaccard", "ordered"])
def test_a_long_list_is_searched_in_milliseconds(mode: str) -> None:
    things = [f"{colour} {thing}" for colour in ("red", "green", "tin", "big") for thing in
              ("cup", "wire", "box", "door to hall", "paint", "jug", "pot", "lamp", "seed", "jar")][:35]  # fmt: skip
    verbs = (("connect", "to"), ("move", "to"), ("pour", "into"))
    valid = [f"{verb} {one} {word} {other}" for verb, word in verbs for one in things for other in things]
    assert len(valid) > 3600
    start = time.process_time()
    assert told("connect the red cup to the green lampp", mode, valid).startswith("connect red cup to")
    assert time.process_time() - start < 0.2  # 0.02 when alone


# -- the simulator itself


@pytest.fixture(scope="module")
def client() -> Iterator[ScienceWorldClient]:
    client = ScienceWorldClient()
    yield client
    client.close()


def load(client: ScienceWorldClient, task: str, variation: int) -> None:
    client.load(task, variation, resolve_simplifications(task))


def say(client: ScienceWorldClient, action: str, before: int = 0) -> tuple[str, int]:
    """The answer, and the moves since `before`."""
    result = client.step(action)
    return result.text, result.moves - before


def test_cleaning_spoils_no_admissible_action(client: ScienceWorldClient) -> None:
    for task in ("power-component", "grow-fruit", "use-thermometer"):
        load(client, task, 0)
        listed = client.valid_actions()
        assert len(listed) > 100
        assert [normalize_action(action) for action in listed] == list(listed)


def test_the_simulator_refuses_what_was_not_cleaned(client: ScienceWorldClient) -> None:
    load(client, "find-animal", 0)
    assert say(client, "look around.") == (UNKNOWN, 0)
    assert say(client, '"look around"') == (UNKNOWN, 0)
    assert say(client, normalize_action('"Look around."'))[0].startswith("This room is called")


def test_the_simulator_understands_more_than_it_lists(client: ScienceWorldClient) -> None:
    load(client, "find-animal", 0)
    assert "examine agent" not in client.valid_actions()
    assert correct_action("examine agent", "ordered", client.valid_actions) == CorrectedAction(
        "examine agent", changed=False
    )
    assert say(client, "examine agent")[0] != UNKNOWN


def ask(client: ScienceWorldClient) -> int:
    """Bring about a question; the moves so far."""
    load(client, "grow-fruit", 0)
    client.step("teleport to kitchen")
    result = client.step("pick up apple seed")
    assert parse_question(result.text) == ("pick up apple seed (in seed jar, in kitchen)",) * 5
    assert client.valid_actions() == ("0", "1", "2", "3", "4")
    return result.moves


@pytest.mark.parametrize("said", ["3.", "Pick up apple seed", "pick up apple seed (in seed jar, in kitchen)"])
def test_the_simulator_takes_our_answers(client: ScienceWorldClient, said: str) -> None:
    before = ask(client)
    answers = ("pick up apple seed (in seed jar, in kitchen)",) * 5
    told = correct_action(said, "exact", never, answers).action
    assert say(client, told, before) == ("You move the apple seed to the inventory.", 1)


@pytest.mark.parametrize("said", ["look around", "9", " 3", "3.", ""])
def test_all_else_ends_the_question_and_costs_a_move(client: ScienceWorldClient, said: str) -> None:
    before = ask(client)
    text, moves = say(client, said, before)
    assert text.startswith("Unknown action.")
    assert moves == 1
    assert say(client, "3", before) == (UNKNOWN, 1)
    assert len(client.valid_actions()) > 100
