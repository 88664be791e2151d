"""Facts given at reset: checked where they are built, and the same on every way that they travel."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from trailnotes.envs.check import check_env
from trailnotes.envs.workers.main import decode_frames, encode, unpack_observation
from trailnotes.errors import EnvError
from trailnotes.storage.records import trajectory_from_json, trajectory_to_json
from trailnotes.types import BRIEFING, Observation, Task, Trajectory

EXAMPLE = {"instruction": "find the coin", "turns": [["a hall", "go east"], ["a nook\n\ta coin", "take coin"]]}
WHOLE: dict[str, Any] = {
    "action_formats": ["go DIRECTION", "take OBJ"],
    "inventory": "a lamp",
    "focus": "the coin",
    "examples": [EXAMPLE],
}


@pytest.mark.parametrize("briefing", [None, {}, {"focus": "x"}, WHOLE, MappingProxyType(WHOLE)], ids=repr)
def test_a_briefing_survives_the_wire_and_the_records(briefing: Any) -> None:
    first = Observation("a hall", instruction="find the coin", briefing=briefing)
    expected = Observation("a hall", instruction="find the coin", briefing=briefing and dict(briefing))
    [message] = decode_frames(bytearray(encode(first)))
    assert unpack_observation(message) == expected
    episode = Trajectory(Task("a", "b"), (), first, "truncated", False, 0.0)
    record = json.loads(json.dumps(trajectory_to_json(episode)))
    assert trajectory_from_json(record).final_observation == expected


@pytest.mark.parametrize("name", BRIEFING)
@pytest.mark.parametrize("wrong", [None, 3, {"a": 1}, [3], [["a", "b"]], [{**EXAMPLE, "turns": [["only one"]]}]])
def test_a_briefing_that_could_not_be_worded_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} of a briefing must be a"):
        Observation("a hall", briefing={name: wrong})


@pytest.mark.parametrize(
    "example",
    [{**EXAMPLE, "turns": "ab"}, {**EXAMPLE, "more": ""}, {"turns": []}, "go east"],
)
def test_an_example_of_another_shape_is_refused(example: Any) -> None:
    with pytest.raises(ValueError, match="examples of a briefing must be"):
        Observation("a hall", briefing={"examples": [example]})


def test_a_fact_that_no_prompt_words_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a mapping, not list"):
        Observation("a hall", briefing=["focus"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a briefing holds action_formats, .*, not 'weather'"):
        Observation("a hall", briefing={"weather": "fine"})


class Briefed:
    """Ends after one step."""

    at_step: Any = None
    at_reset: Any = WHOLE

    def reset(self, task: Task) -> Observation:
        self.over = False
        return Observation("a hall", instruction="wait", briefing=self.at_reset)

    def step(self, action: str) -> Observation:
        if getattr(self, "over", True):
            raise EnvError("call reset first")
        self.over = True
        return Observation("later", terminated=True, briefing=self.at_step)

    def close(self) -> None:
        self.over = True


class BriefedLater(Briefed):
    at_step: Any = WHOLE


class BriefedBadly(Briefed):
    at_reset: Any = MappingProxyType({"inventory": 3})


def test_check_env_wants_a_briefing_at_reset_alone() -> None:
    tasks = [Task("a", "test_briefing:Briefed")]
    assert check_env(Briefed, tasks) == ("the class lists no tasks: splits were not checked",)
    with pytest.raises(EnvError, match="step with 'look' has a briefing: it belongs to reset alone"):
        check_env(BriefedLater, tasks)
    with pytest.raises(EnvError, match=r"reset of task 'a' raised .*inventory of a briefing must be a str"):
        check_env(BriefedBadly, tasks)
