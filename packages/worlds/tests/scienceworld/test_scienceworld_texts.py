"""ScienceWorld's tasks, actions and briefings: by hand, and against the simulator itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trailnotes.errors import ConfigError
from trailnotes.types import Task
from trailnotes_worlds.scienceworld import tasks as sw
from trailnotes_worlds.scienceworld.actions import (
    MODES,
    CorrectedAction,
    correct_action,
    match_in_order,
    normalize_action,
    parse_question,
)
from trailnotes_worlds.scienceworld.briefing import (
    MAX_CHARS,
    parse_focus_objects,
    pick_example_variations,
    shorten_turns,
)
from trailnotes_worlds.scienceworld.client import ScienceWorldClient
from trailnotes_worlds.scienceworld.env import ScienceWorldEnv

BOUNDS = {  # last of train, dev and test, as simulator 1.2.3 gave them
    "boil melt freeze change-the-state-of-matter-of": (13, 20, 29),
    "use-thermometer": (269, 404, 539),
    "measure-melting-point-known-substance": (217, 326, 435),
    "measure-melting-point-unknown-substance": (149, 224, 299),
    "power-component power-component-renewable-vs-nonrenewable-energy": (9, 14, 19),
    "test-conductivity": (449, 674, 899),
    "test-conductivity-of-unknown-substances": (299, 449, 599),
    "find-living-thing find-non-living-thing find-plant find-animal": (149, 224, 299),
    "grow-plant grow-fruit": (61, 92, 125),
    "chemistry-mix": (15, 23, 31),
    "chemistry-mix-paint-secondary-color chemistry-mix-paint-tertiary-color": (17, 26, 35),
    "lifespan-longest-lived lifespan-shortest-lived lifespan-longest-lived-then-shortest-lived": (61, 92, 124),
    "identify-life-stages-1": (5, 8, 13),
    "identify-life-stages-2": (3, 5, 9),
    "inclined-plane-determine-angle": (83, 125, 167),
    "inclined-plane-friction-named-surfaces": (691, 1037, 1385),
    "inclined-plane-friction-unnamed-surfaces": (79, 119, 161),
    "mendelian-genetics-known-plant": (59, 89, 119),
    "mendelian-genetics-unknown-plant": (239, 359, 479),
}
CIRCUIT = (
    "connect battery anode to red wire terminal 1", "connect red wire terminal 1 to battery anode",
    "connect red wire terminal 1 to battery cathode", "connect red wire terminal 2 to light bulb", "focus on agent",
    "focus on red wire", "go to kitchen", "look around", "look at red wire", "open door to kitchen",
    "open door to workshop", "pick up red wire",
)  # fmt: skip
QUESTION = (
    "Ambiguous request: Please enter the number for the action you intended (or blank to cancel):\n"
    "0:\tpick up orange (in sink, in kitchen)\n"
    "1:\tpick up orange (in bowl, in counter, in kitchen)\n"
    "2:\tpick up orange juice (in wood cup, in fridge, in kitchen)\n"
)
WORDS = sorted({word for action in CIRCUIT for word in action.split()} | {"the", "lamp", "kitchn", "blue"})
PHRASES = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)


@pytest.fixture(scope="module")
def client() -> Iterator[ScienceWorldClient]:
    client = ScienceWorldClient()
    yield client
    client.close()


def test_the_simulators_split_by_hand() -> None:
    bounds = {name: own for names, own in BOUNDS.items() for name in names.split()}
    assert bounds.keys() == sw.NUM_VARIATIONS.keys()
    for name, (train, dev, test) in bounds.items():
        parts = {"train": range(train + 1), "validation": range(train + 1, dev + 1), "test": range(dev + 1, test + 1)}
        assert sw.get_simulator_split(name) == parts
        assert sw.NUM_VARIATIONS[name] == test + 1
    assert [len(sw.scienceworld_tasks(split, "all", "simulator")) for split in sw.SPLITS] == [3592, 1796, 1819]


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(sw.NUM_VARIATIONS))
def test_the_simulator_agrees(client: ScienceWorldClient, name: str) -> None:
    client.load(name, 0, sw.resolve_simplifications(name))
    assert client.simulator.call("getTaskMaxVariations", name) == sw.NUM_VARIATIONS[name]
    for part, own in zip(("Train", "Dev", "Test"), sw.get_simulator_split(name).values(), strict=True):
        reference: Any = client.simulator.call(f"getVariations{part}")
        assert client.simulator.call("toString", of=reference) == str(list(own))


def test_the_papers_protocol() -> None:
    parts = [list(part) for part in sw.get_paper_split("find-plant").values()]
    assert parts == [list(range(5)), list(range(150, 170)), list(range(225, 245))]
    tasks = sw.scienceworld_tasks("test", "4-3")
    assert [task.id for task in tasks] == [f"scienceworld/find-plant/{variation}" for variation in range(225, 245)]
    assert dict(tasks[0].options) == {"task": "find-plant", "variation": 225}
    assert [len(sw.scienceworld_tasks(split, "panel")) for split in sw.SPLITS] == [89, 261, 265]
    limits = {name: limit for name, limit in sw.RELEASE_STEP_LIMITS.items() if limit != 30}
    assert sorted(limits.values()) == [60, 60, 80, 80, 80, 100, 120]
    assert sw.scienceworld_tasks("train", "boil", step_limits="release")[0].options["max_steps"] == 100


def test_the_interleaved_split_by_hand() -> None:
    """power-component has 20 variations: six thirds, and of the fourteen others ten are trained."""
    options = {"task": "power-component", "protocol": "interleaved", "num_train": 10}
    parts = {split: sw.scienceworld_tasks(split, **options) for split in sw.SPLITS}  # type: ignore[arg-type]
    assert {split: [task.options["variation"] for task in tasks] for split, tasks in parts.items()} == {
        "train": [0, 1, 3, 6, 7, 10, 12, 13, 16, 18], "validation": [4, 9, 15, 19], "test": [2, 5, 8, 11, 14, 17]
    }  # fmt: skip
    assert parts["test"][0].id == "scienceworld/power-component/2"


@pytest.mark.parametrize("name", sorted(sw.NUM_VARIATIONS))
def test_interleaved_splits_are_disjoint_and_of_the_numbers_asked_for(name: str) -> None:
    whole = sw.NUM_VARIATIONS[name]
    parts = sw.get_interleaved_split(name, 4, 20, 20)
    drawn = [variation for part in parts.values() for variation in part]
    assert len(drawn) == len(set(drawn))
    assert set(drawn) <= set(range(whole))
    assert all(list(part) == sorted(part) for part in parts.values())
    assert [len(part) for part in parts.values()] == [4, min(20, whole - whole // 3 - 4), min(20, whole // 3)]


def test_simplifications() -> None:
    common = "teleportAction,openDoors,selfWateringFlowerPots"
    assert sw.resolve_simplifications("boil", ["easy"]) == f"{common},noElectricalAction"
    assert sw.resolve_simplifications("3-1", "openDoors, teleportAction ,openDoors") == "teleportAction,openDoors"
    assert sw.resolve_simplifications("boil", "none") == sw.resolve_simplifications("boil", []) == ""
    for name in sw.NUM_VARIATIONS:
        electrical = name.startswith(("power-component", "test-conductivity"))
        assert ("noElectricalAction" in sw.resolve_simplifications(name)) != electrical


def never() -> NoReturn:
    raise AssertionError("the list of admissible actions is slow, and was not needed")


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        *((text, "look around") for text in (
            "look around", "Look Around", "  look \t around\n", "look around!?", '"look around."', "`look around`",
            "\u201cLook around.\u201d", "look around)", "look\x00around", "look around \ud800",
        )),
        *((text, text) for text in ("action: look around", "> look around", "look, around", "l'ook around", "(wait")),
        ("...", ""),
    ],
)  # fmt: skip
def test_exact_cleans_case_blanks_and_final_punctuation(text: str, cleaned: str) -> None:
    assert correct_action(text, "exact", never) == CorrectedAction(cleaned, changed=False)


@pytest.mark.long
def test_cleaning_spoils_no_admissible_action(client: ScienceWorldClient) -> None:
    for task in ("power-component", "grow-fruit", "use-thermometer"):
        client.load(task, 0, sw.resolve_simplifications(task))
        listed = client.valid_actions()
        assert len(listed) > 100
        assert [normalize_action(action) for action in listed] == list(listed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", "2"),
        (" 0. ", "0"),
        ("1: pick up orange (in bowl, in counter, in kitchen)", "1"),
        ("Pick up orange juice.", "2"),
        ("pick up orange", "0"),  # two answers are worded so without their places: the first
        ("pick up the juice", {"exact": "pick up the juice", "jaccard": "0", "ordered": "2"}),
    ],
)
def test_answers_are_a_number_or_the_words_of_one(mode: str, text: str, number: Any) -> None:
    wanted = number[mode] if isinstance(number, dict) else number
    assert correct_action(text, mode, never, parse_question(QUESTION)).action == wanted


@pytest.mark.parametrize(
    ("text", "jaccard", "ordered"),
    [
        ("please open the door to kitchen", "open door to kitchen", "please open the door to kitchen"),
        ("connect red wire terminal 1 to battery anode", CIRCUIT[0], CIRCUIT[1]),  # sets have no order
        ("connect the red wire terminal 1 to the battery anode", CIRCUIT[0], CIRCUIT[1]),
        ("connect red wire terminal 1 to battery cathod", CIRCUIT[0], CIRCUIT[2]),
        ("open door to kichen", CIRCUIT[9], CIRCUIT[9]),
        ("go kitchen", CIRCUIT[6], CIRCUIT[6]),
        ("focs on red wire", CIRCUIT[5], CIRCUIT[5]),
        ("focus on lamp", CIRCUIT[4], "focus on lamp"),  # "focus on agent" would end the episode
        ("examine red wire", CIRCUIT[5], "examine red wire"),  # the simulator understands it, though it lists it not
        ("activate red wire", CIRCUIT[5], "activate red wire"),
        ("xyzzy", CIRCUIT[0], "xyzzy"),
        ("", CIRCUIT[0], ""),
    ],
)
def test_replacements_of_both_modes(text: str, jaccard: str, ordered: str) -> None:
    for mode, wanted in (("jaccard", jaccard), ("ordered", ordered)):
        assert correct_action(text, mode, lambda: CIRCUIT) == CorrectedAction(wanted, changed=wanted != text)


@settings(deadline=None)
@given(PHRASES, st.lists(PHRASES.filter(bool), max_size=12))
def test_ordered_repeated_changes_nothing_more(text: str, valid: list[str]) -> None:
    chosen = match_in_order(text, valid)
    assert chosen in valid or chosen == text
    assert match_in_order(chosen, valid) == chosen
    assert text not in valid or chosen == text


SENTENCES = {  # one for each way of asking for a focus
    "Your task is to boil orange juice. For compounds without a boiling point, combusting the substance is also "
    "acceptable. First, focus on the substance. Then, take actions.": ("the substance (orange juice)",),
    "Your task is to change the state of matter of ice cream. First, focus on the substance.": (
        "the substance (ice cream)",
    ),
    "Your task is to find a(n) non-living thing. First, focus on the thing. Then, move it to the red box.": (
        "the thing (non-living thing)",
    ),
    "When you are part-way done, focus on the intermediate (secondary color) paint you created.  When you are "
    "completely done, focus on the green paint.": (
        "the intermediate (secondary color) paint you created (when you are part-way done)",
        "the green paint (when you are completely done)",
    ),
    "Your task is to focus on the 4 life stages of the turtle, starting from earliest to latest.": (
        "the 4 life stages of the turtle, starting from earliest to latest",
    ),
    "First, focus on the thermometer. Next, focus on the lead. If the melting point of lead is above 50.0 degrees "
    "celsius, focus on the red box. The boxes are located around the kitchen.": (
        "the thermometer", "the lead", "the red box (if the melting point of lead is above 50.0 degrees celsius)",
    ),
    "Your task is to wait.": (),
}  # fmt: skip


@pytest.mark.parametrize(("text", "objects"), SENTENCES.items())
def test_focus_objects_of_a_task(text: str, objects: tuple[str, ...]) -> None:
    assert parse_focus_objects(text) == objects


def test_examples_are_other_variations_of_the_training_split() -> None:
    for name in sw.NUM_VARIATIONS:
        for split, variations in sw.get_simulator_split(name).items():
            assert pick_example_variations(name, variations[0], 2) == ([1, 2] if split == "train" else [0, 1])
    with pytest.raises(ConfigError, match="examples = 4"):
        pick_example_variations("identify-life-stages-2", 0, 4)


def test_long_examples_are_shortened() -> None:
    turns = [(f"seen\n\t{i}", f"act {i}") for i in range(7)]
    assert shorten_turns(turns, max_turns=7) == [[f"seen {i}", f"act {i}"] for i in range(7)]
    short = [["seen 0", "act 0"], ["seen 1", "act 1"], ["(4 turns later) seen 6", "act 6"]]
    assert shorten_turns(turns, max_turns=3) == short
    assert shorten_turns([("abcdefghij klm", "go")], max_chars=12) == [["abcdefgh ...", "go"]]


@pytest.mark.long
def test_examples_are_solved_training_variations() -> None:
    env = ScienceWorldEnv(examples=1)
    try:
        for variation, box in ((0, "green box"), (225, "red box")):  # training, shown 1; test, shown 0
            options = {"task": "find-non-living-thing", "variation": variation}
            first = env.reset(Task("x", "scienceworld", options=options))
            assert first.briefing is not None
            (example,) = first.briefing["examples"]
            assert box in example["instruction"]
            assert box not in (first.instruction or "")
            seen, done = zip(*example["turns"], strict=True)
            assert done[-1].endswith(box)
            assert all(0 < len(text) <= MAX_CHARS + len("(99 turns later) ") for text in seen)
    finally:
        env.close()
