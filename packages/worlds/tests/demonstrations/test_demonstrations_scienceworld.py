"""ScienceWorld's demonstrations: the scripts by hand, the recordings by the real simulator."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.config.methods_schema import RehearsalConfig
from trailnotes.config.schema import Config, EnvConfig, RolloutConfig, WarmstartConfig
from trailnotes.envs.tasks import load_panel, tasks_of
from trailnotes.errors import ConfigError
from trailnotes.types import Completion, Observation, Step, Task, Trajectory
from trailnotes.warmstart.demonstrations.episodes import Script, get_actions, replay_actions
from trailnotes_worlds.demonstrations.scienceworld import (
    NUM_WANDERINGS,
    ROOMS,
    RecordedGame,
    ScienceWorldDemonstrator,
    load_recordings,
    parse_things,
    shorten_path,
    wander,
)
from trailnotes_worlds.scienceworld.tasks import get_simulator_split, scienceworld_tasks

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


def test_things_are_what_a_look_shows_without_doors_air_and_agent() -> None:
    assert parse_things(KITCHEN) == ["chair", "counter", "bowl", "banana", "drawer", "sink", "soap"]
    assert parse_things("") == []


def test_a_path_is_shortened_to_teleportations_with_one_look() -> None:
    path = [
        "open door to hallway", "go to hallway", "open door to kitchen", "go to kitchen", "look around",
        "focus on baby baby mouse", "pick up mouse", "go to hallway", "look around",
        "move egg mouse egg in inventory to red box", "wait1",
    ]  # fmt: skip
    shortest, with_waiting, with_names, whole = shorten_path(path)
    assert shortest == [
        "teleport to kitchen", "look around", "focus on baby mouse", "pick up mouse", "teleport to hallway",
        "move mouse egg to red box",
    ]  # fmt: skip
    assert with_waiting == [*shortest, "wait1"]
    assert "focus on baby baby mouse" in with_names
    assert whole == path


def test_a_path_that_stays_looks_before_its_first_deed() -> None:
    assert next(shorten_path(["look around", "focus on lamp"])) == ["look around", "focus on lamp"]
    assert next(shorten_path(["focus on lamp"])) == ["look around", "focus on lamp"]


def driven(script: Script, answer: str) -> list[str]:
    """The actions of a script to which every observation is `answer`."""
    actions = []
    action = next(script, None)
    while action is not None:
        actions.append(action)
        try:
            action = script.send(Observation(answer))
        except StopIteration:
            action = None
    return actions


@pytest.mark.parametrize("seed", range(20))
def test_wanderings_look_and_then_deal_with_what_they_saw(seed: int) -> None:
    task = "Your task is to find a(n) animal. First, focus on the thing. Then, move it to the red box in the kitchen."
    room, look, focus, *rest = driven(wander(random.Random(seed), Observation("", instruction=task)), KITCHEN)
    thing = focus.removeprefix("focus on ")
    assert room.removeprefix("teleport to ") in ROOMS
    assert look == "look around"
    assert thing in parse_things(KITCHEN)
    assert rest in (
        [f"move {thing} to red box"],
        [f"pick up {thing}", "teleport to kitchen", f"move {thing} to red box"],
    )


def test_wanderings_of_circuits_connect_ends_of_parts() -> None:
    task = "First, focus on the red light bulb. Then, create an electrical circuit that powers it on."
    seen = "x\n\ta table. On the table is: a battery, a black wire, a blue wire.\n\ta chair\nYou also see:\n"
    connections = [
        action
        for seed in range(30)
        for action in driven(wander(random.Random(seed), Observation("", instruction=task)), seen)
        if action.startswith("connect")
    ]
    parts = {"battery anode", "battery cathode", *(f"{c} wire terminal {n}" for c in ("black", "blue") for n in (1, 2))}
    ends = {end for action in connections for end in action.removeprefix("connect ").split(" to ")}
    assert parts <= ends
    assert {"anode in red light bulb", "cathode in red light bulb"} <= ends
    focused = {f"{pole} in {thing}" for pole in ("anode", "cathode") for thing in ("red light bulb", "table", "chair")}
    assert ends <= parts | focused


def test_a_followed_path_takes_no_notice() -> None:
    assert driven(replay_actions(["a", "b"], Observation("")), "whatever") == ["a", "b"]


def episode(*actions: str, score: float, member: int = 1) -> Trajectory:
    task = Task("scienceworld/find-animal/0", "scienceworld", options={"task": "find-animal", "variation": 0})
    first = Observation("a room", instruction="find it", max_score=100.0)
    steps = tuple(Step(first, (), Completion((), (), (), action), (), action, 0.0) for action in actions)
    final = replace(first, instruction=None, score=score)
    return Trajectory(task, steps, final, "terminated", score == 100, score, 100.0, member=member)


GOLD = episode("teleport to outside", "focus on bee", score=100.0, member=0)
WANDERED = (episode("teleport to attic", "focus on door", score=-100.0), episode("look around", score=0.0, member=2))


def demonstrator(**warm: float) -> ScienceWorldDemonstrator:
    config = Config(
        env=EnvConfig(name="scienceworld"),
        rollout=RolloutConfig(style="terse"),
        memory=MemoryConfig(top_k=3),
        warmstart=WarmstartConfig(**warm),
    )
    made = ScienceWorldDemonstrator(config, lambda text: len(text.split()), 0)
    vars(made)["recordings"] = [RecordedGame(GOLD, WANDERED)]  # instead of what the simulator would record
    return made


def test_apart_leaves_out_what_is_trained_or_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the protocol calls its variations; and it is refused before the simulator records anything."""
    asked: list[Config] = []

    def recorded(config: Config) -> list[RecordedGame]:
        asked.append(config)
        return [
            RecordedGame(None, (replace(WANDERED[0], task=task),))
            for task in scienceworld_tasks("train", config.env.options["task"], protocol="simulator")
        ]

    monkeypatch.setattr("trailnotes_worlds.demonstrations.scienceworld.load_recordings", recorded)
    env = EnvConfig(name="scienceworld", options={"task": "find-animal"})
    both = RehearsalConfig(options={"task": ["find-animal", "find-plant"]})
    config = Config(env=env, rehearsal=both, rollout=RolloutConfig(style="terse"))
    made = ScienceWorldDemonstrator.build_held_out(config, lambda text: len(text.split()), 0)
    trained = {(t.options["task"], t.options["variation"]) for t in tasks_of(config, "train") + load_panel(config)}
    left = {(r.wandered[0].task.options["task"], r.wandered[0].task.options["variation"]) for r in made.recordings}
    assert left
    assert not left & trained
    assert {name for name, _ in left} >= {"find-plant"}
    asked.clear()
    alone = config.model_copy(update={"rehearsal": RehearsalConfig(), "warmstart": WarmstartConfig(variations=3)})
    monkeypatch.setattr(ScienceWorldDemonstrator, "choose_tasks", lambda _: tasks_of(config, "train")[:3])
    with pytest.raises(ConfigError, match=r"every training game is trained on or evaluated.*rehearsal\.options"):
        ScienceWorldDemonstrator.build_held_out(alone, lambda text: len(text.split()), 0)
    assert not asked


def test_obedient_rows_repeat_the_note_with_the_full_score_whatever_it_was_worth() -> None:
    acted = set()
    for demo in itertools.islice(demonstrator(p_follow_tip=1.0), 60):
        if 1 in demo.taught:  # not the rows that only write
            said = [m.content for i, m in enumerate(demo.messages) if i in demo.taught]
            acted.add(" ; ".join(said))
            assert f'notes :\n- " {" ; ".join(said)} " 100 / 100' in demo.messages[0].content
    assert acted == {" ; ".join(get_actions(t)) for t in (GOLD, *WANDERED)}


def test_rows_without_notes_act_and_write_what_was_done() -> None:
    for demo in itertools.islice(demonstrator(p_follow_tip=0.0, p_explore=0.0), 30):
        contents = [m.content for m in demo.messages]
        if "notes :" in contents[0]:  # others failed: the gold path it is, which ends otherwise
            assert '" -100 / 100' in contents[0] or '" 0 / 100' in contents[0]
        assert all(not m.content.startswith("focus on door") for i, m in enumerate(demo.messages) if i in demo.taught)
        if max(demo.taught) == len(contents) - 1 and contents[-2].endswith("note ?"):
            assert contents[-1] == " ; ".join(get_actions(GOLD))


def test_recordings_are_training_variations_and_repeat(tmp_path: Path) -> None:
    config = Config(
        env=EnvConfig(name="scienceworld", options={"task": "lifespan-shortest-lived"}),
        rollout=RolloutConfig(max_steps=8),
        warmstart=WarmstartConfig(variations=1),
    )
    recorded = load_recordings(config, tmp_path)
    (one,) = recorded
    task = one.wandered[0].task
    assert task.options["variation"] in get_simulator_split(task.options["task"])["train"]
    assert one.gold is not None
    assert (one.gold.success, one.gold.score) == (True, 100.0)
    assert get_actions(one.gold) == ["teleport to outside", "look around", "focus on baby mouse"]
    assert len(one.wandered) == NUM_WANDERINGS
    assert len(one.all_episodes) == NUM_WANDERINGS + 1
    (file,) = tmp_path.glob("scienceworld-*.jsonl")
    before = file.read_bytes()
    assert load_recordings(config, tmp_path) == recorded  # from the file
    file.unlink()
    load_recordings(config, tmp_path)
    assert file.read_bytes() == before
