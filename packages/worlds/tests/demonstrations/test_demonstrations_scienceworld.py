"""ScienceWorld's demonstrations: scripts and tips by hand, recordings by the real simulator."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from trailnotes.config.builtin import BUILTIN
from trailnotes.config.schema import Config, EnvConfig, RolloutConfig, WarmstartConfig
from trailnotes.config.toml import load_config
from trailnotes.envs.tasks import load_tasks, select_unused
from trailnotes.rollout.conversation import quoted
from trailnotes.types import Observation
from trailnotes.warmstart.demonstrations.episodes import Script, get_actions
from trailnotes_worlds.demonstrations import scienceworld
from trailnotes_worlds.demonstrations.scienceworld_english import (
    EnglishScienceWorld,
    format_attempt_tip,
    parse_listed_actions,
)
from trailnotes_worlds.scienceworld.tasks import get_simulator_split, resolve_tasks

SMOLLM2 = BUILTIN / "configs/smollm2"

PATHS = (
    ("focus on ant",),
    ("teleport to outside", "look around", "focus on baby brown bear"),
    ("focus on book (moby dick)", "move book (moby dick) to red box"),
    ("connect battery anode to black wire terminal 1", "connect black wire terminal 2 to cathode in red light bulb"),
    ("pour cup containing blue paint in art studio in jug", "mix jug", "wait1", "focus on 2nd green paint"),
)
KITCHEN = """This room is called the kitchen. In it, you see: 
\tthe agent
\ta substance called air
\ta chair. On the chair is: nothing.
\ta counter. On the counter is: a bowl (containing a red apple, a banana), a drawer.
\ta sink, which is turned off. In the sink is: nothing.
\ta substance called soap
You also see:
\tA door to the bathroom (that is open)
"""  # noqa: W291 (the simulator's own blank)


def test_things_of_a_look() -> None:
    assert scienceworld.parse_things(KITCHEN) == ["chair", "counter", "bowl", "banana", "drawer", "sink", "soap"]
    assert scienceworld.parse_things("") == []


def test_a_path_is_shortened_to_teleportations_with_one_look() -> None:
    path = [
        "open door to hallway", "go to hallway", "open door to kitchen", "go to kitchen", "look around",
        "focus on baby baby mouse", "pick up mouse", "go to hallway", "look around",
        "move egg mouse egg in inventory to red box", "wait1",
    ]  # fmt: skip
    shortest, with_waiting, with_names, whole = scienceworld.shorten_path(path)
    assert shortest == [
        "teleport to kitchen", "look around", "focus on baby mouse", "pick up mouse", "teleport to hallway",
        "move mouse egg to red box",
    ]  # fmt: skip
    assert with_waiting == [*shortest, "wait1"]
    assert "focus on baby baby mouse" in with_names
    assert whole == path


def driven(script: Script, answer: str) -> list[str]:
    """The actions of a script to which every observation is `answer`."""
    actions = [next(script)]
    with suppress(StopIteration):
        while True:
            actions.append(script.send(Observation(answer)))
    return actions


@pytest.mark.parametrize("seed", range(20))
def test_wanderings_look_and_then_deal_with_what_they_saw(seed: int) -> None:
    task = "Your task is to find a(n) animal. First, focus on the thing. Then, move it to the red box in the kitchen."
    room, look, focus, *rest = driven(
        scienceworld.wander(random.Random(seed), Observation("", instruction=task)), KITCHEN
    )
    thing = focus.removeprefix("focus on ")
    assert room.removeprefix("teleport to ") in scienceworld.ROOMS
    assert look == "look around"
    assert thing in scienceworld.parse_things(KITCHEN)
    assert rest in (
        [f"move {thing} to red box"],
        [f"pick up {thing}", "teleport to kitchen", f"move {thing} to red box"],
    )


@pytest.mark.parametrize("actions", PATHS)
@pytest.mark.parametrize("score", [-100.0, 0.0, 58.0, 100.0])
def test_every_wording_can_be_parsed(actions: tuple[str, ...], score: float) -> None:
    rng, texts = random.Random(0), set()
    for _ in range(400):
        text = format_attempt_tip(actions, score, rng)
        assert parse_listed_actions(text) == actions, text
        assert parse_listed_actions(quoted(text)) == actions, "as a prompt shows it"
        assert ("full score" in text or f"{score:g}" in text) or score == 100
        texts.add(text)
    assert len(texts) > 20


@pytest.mark.parametrize("task", [{}, {"task": "power-component"}])
def test_the_warm_start_shows_no_held_out_game_of_any_protocol(task: dict[str, str]) -> None:
    options = {**task, "protocol": "interleaved", "num_train": 10}
    config = Config(env=EnvConfig(name="scienceworld", options=options), warmstart=WarmstartConfig(variations=30))
    shown = {task.id for task in scienceworld.ScienceWorldDemonstrator.choose_tasks(config)}
    assert {each.split("/")[1] for each in shown} == {task.get("task", "find-non-living-thing")}
    for split in ("validation", "test"):
        assert not shown & {task.id for task in load_tasks(config, split)}


def test_warm_start_and_evaluation_share_no_task() -> None:
    """No variation of the three tasks, in no split, nor of the one that a trained agent adapts to."""
    start = load_config(SMOLLM2 / "scienceworld-warmstart.toml")
    shown = {task.id for task in EnglishScienceWorld.choose_tasks(start)}
    assert shown
    for name in ("find-non-living-thing", "lifespan-longest-lived", "use-thermometer", "test-conductivity"):
        options = f'{{task = "{name}", protocol = "simulator"}}'
        config = load_config(SMOLLM2 / "scienceworld.toml", ["--env.options", options])
        examined = {task.id for split in ("train", "validation", "test") for task in load_tasks(config, split)}
        assert len(examined) > 100
        assert not examined & shown
        assert not {*resolve_tasks(name)} & {*resolve_tasks(start.env.options["task"])}
    assert select_unused(EnglishScienceWorld.choose_tasks(start), config)


@pytest.mark.long
def test_recordings_are_training_variations_and_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAILNOTES_CACHE", str(tmp_path))
    config = Config(
        env=EnvConfig(name="scienceworld", options={"task": "lifespan-shortest-lived"}),
        rollout=RolloutConfig(max_steps=8),
        warmstart=WarmstartConfig(variations=1),
    )
    (one,) = scienceworld.ScienceWorldDemonstrator(config, len, 0).recordings
    task = one.wandered[0].task
    assert task.options["variation"] in get_simulator_split(task.options["task"])["train"]
    assert (one.gold.success, one.gold.score) == (True, 100.0)
    assert get_actions(one.gold) == ["teleport to outside", "look around", "focus on baby mouse"]
    assert len(one.wandered) == scienceworld.NUM_WANDERINGS
    assert len(one.all_episodes) == scienceworld.NUM_WANDERINGS + 1
    (file,) = tmp_path.rglob("scienceworld-*.jsonl")
    before = file.read_bytes()
    assert scienceworld.ScienceWorldDemonstrator(config, len, 0).recordings == [one]  # from the file
    file.unlink()
    assert scienceworld.ScienceWorldDemonstrator(config, len, 0).recordings == [one]
    assert file.read_bytes() == before
