"""What is told at the start of an episode of ScienceWorld, from task texts and from the simulator itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.config.schema import RolloutConfig
from trailnotes.errors import ConfigError
from trailnotes.rollout.conversation import Conversation
from trailnotes.types import Task
from trailnotes_worlds.scienceworld.briefing import (
    MAX_CHARS,
    MAX_TURNS,
    build_worked_examples,
    parse_focus_objects,
    pick_example_variations,
    shorten_turns,
)
from trailnotes_worlds.scienceworld.env import ScienceWorldEnv
from trailnotes_worlds.scienceworld.tasks import NUM_VARIATIONS, get_simulator_split

# Sentences of the simulator's task texts, one for each way of asking for a focus.
SENTENCES = {
    "Your task is to boil orange juice. For compounds without a boiling point, combusting the substance is also "
    "acceptable. First, focus on the substance. Then, take actions.": ("the substance (orange juice)",),
    "Your task is to change the state of matter of ice cream. First, focus on the substance.": (
        "the substance (ice cream)",
    ),
    "Your task is to melt tin. First, focus on the substance. Then, take actions.": ("the substance (tin)",),
    "Your task is to find a(n) non-living thing. First, focus on the thing. Then, move it to the red box.": (
        "the thing (non-living thing)",
    ),
    "Your task is to use chemistry to create the substance 'salt water'. When you are done, focus on the salt water.": (
        "the salt water (when you are done)",
    ),
    "When you are part-way done, focus on the intermediate (secondary color) paint you created.  When you are "
    "completely done, focus on the green paint.": (
        "the intermediate (secondary color) paint you created (when you are part-way done)",
        "the green paint (when you are completely done)",
    ),
    "Your task is to grow a apple. To complete the task, focus on the grown apple.": (
        "the grown apple (to complete the task)",
    ),
    "Your task is to focus on the 4 life stages of the turtle, starting from earliest to latest.": (
        "the 4 life stages of the turtle, starting from earliest to latest",
    ),
    "Your task is to find the animal with the longest life span, then the shortest life span. First, focus on the "
    "animal with the longest life span.  Then, focus on the animal with the shortest life span. The animals are in "
    "the 'outside' location.": ("the animal with the longest life span", "the animal with the shortest life span"),
    "The animals are in the 'outside' location.  Focus on the animal with the longest life span.": (
        "the animal with the longest life span",
    ),
    "First, focus on the thermometer. Next, focus on the lead. If the melting point of lead is above 50.0 degrees "
    "celsius, focus on the red box. If the melting point of lead is below -10.5 degrees celsius, focus on the green "
    "box. The boxes are located around the kitchen.": (
        "the thermometer",
        "the lead",
        "the red box (if the melting point of lead is above 50.0 degrees celsius)",
        "the green box (if the melting point of lead is below -10.5 degrees celsius)",
    ),
    "Your task is to turn on the red light bulb. First, focus on the red light bulb. Then, create a circuit.": (
        "the red light bulb",
    ),
    "Your task is to wait.": (),
}


@pytest.mark.parametrize(("text", "objects"), SENTENCES.items())
def test_objects_are_named_as_the_task_names_them_with_their_condition(text: str, objects: tuple[str, ...]) -> None:
    assert parse_focus_objects(text) == objects


# --- examples


@pytest.mark.parametrize("task", NUM_VARIATIONS)
def test_examples_are_other_variations_of_the_training_split(task: str) -> None:
    splits = get_simulator_split(task)
    for split, variations in splits.items():
        chosen = pick_example_variations(task, variations[0], 2)
        assert len(set(chosen) - {variations[0]}) == 2
        assert set(chosen) <= set(splits["train"])
        assert chosen == ([1, 2] if split == "train" else [0, 1])


def test_more_examples_than_training_variations_are_refused() -> None:
    assert pick_example_variations("identify-life-stages-2", 0, 3) == [1, 2, 3]
    with pytest.raises(ConfigError, match="there are 3 other training variations; ask for fewer"):
        pick_example_variations("identify-life-stages-2", 0, 4)


def test_long_solutions_lose_their_middle_and_long_observations_their_end() -> None:
    turns = [(f"seen\n\t{i}", f"act {i}") for i in range(7)]
    assert shorten_turns(turns, max_turns=7) == [[f"seen {i}", f"act {i}"] for i in range(7)]
    assert shorten_turns(turns, max_turns=3) == [
        ["seen 0", "act 0"], ["seen 1", "act 1"], ["(4 turns later) seen 6", "act 6"],
    ]  # fmt: skip
    assert shorten_turns([("abcdefghij klm", "go")], max_chars=12) == [["abcdefgh ...", "go"]]
    assert shorten_turns([("abcdefghij kl ", "go")], max_chars=13) == [["abcdefghij kl", "go"]]


def test_each_variation_is_played_once_and_no_other_is_looked_at() -> None:
    played: list[int] = []

    def play(variation: int) -> tuple[str, list[tuple[str, str]]]:
        played.append(variation)
        return f"task {variation}", [("hall", "go east")] * (MAX_TURNS + 5)

    first, second = build_worked_examples("boil", 0, 2, play)
    assert played == [1, 2]
    assert (first["instruction"], second["instruction"]) == ("task 1", "task 2")
    assert len(first["turns"]) == MAX_TURNS
    assert build_worked_examples("boil", 0, 0, play) == []


# --- against the simulator

BOXES = ("red box", "green box", "blue box", "orange box", "yellow box", "purple box")


@pytest.fixture(scope="module")
def env() -> Iterator[ScienceWorldEnv]:
    made = ScienceWorldEnv()
    yield made
    made.close()


@pytest.mark.slow
def test_every_object_of_every_task_text_is_found(env: ScienceWorldEnv) -> None:
    for name, num in NUM_VARIATIONS.items():
        for variation in (0, num - 1):
            first = env.reset(Task("x", "scienceworld", options={"task": name, "variation": variation}))
            text = first.instruction or ""
            objects = parse_focus_objects(text)
            assert len(objects) == text.lower().count("focus on") > 0
            assert first.briefing is not None
            assert all(each in first.briefing["focus"] for each in objects)
            assert {"the thing", "the substance"}.isdisjoint(objects), text


def test_examples_solve_training_variations_of_the_task_and_never_the_one_that_is_played() -> None:
    env = ScienceWorldEnv(examples=1)
    try:
        for variation, boxes in ((0, {"green box"}), (225, {"red box"})):  # training, shown 1; test, shown 0
            task = Task("x", "scienceworld", options={"task": "find-non-living-thing", "variation": variation})
            first = env.reset(task)
            assert first.briefing is not None
            (example,) = first.briefing["examples"]
            assert {box for box in BOXES if box in example["instruction"]} == boxes
            assert not boxes & {box for box in BOXES if box in (first.instruction or "")}
            seen, done = zip(*example["turns"], strict=True)
            assert any(action.startswith("focus on") for action in done)
            assert done[-1].startswith("move")
            assert done[-1].endswith(*boxes)
            assert all(0 < len(text) <= MAX_CHARS + len("(99 turns later) ") for text in seen)
    finally:
        env.close()


def test_the_first_turn_leaves_room_for_thirty_steps(env: ScienceWorldEnv) -> None:
    """A word is 1.3 to 1.4 of Qwen's tokens here, so the bound is under an eighth of the 4,500 of an episode."""
    for name in ("measure-melting-point-known-substance", "power-component", "chemistry-mix"):
        first = env.reset(Task("x", "scienceworld", options={"task": name, "variation": 0}))
        live = Conversation(RolloutConfig(), MemoryConfig(), lambda text: len(text.split()))
        live.start(first.instruction or "")
        live.observe(first)
        turn = live.plain[-1].content
        assert "What actions look like: activate OBJ; " in turn
        assert "Inventory: In your inventory, you see: an orange" in turn
        assert "To be focused on, in this order: the " in turn
        assert len(turn.split()) < 380
