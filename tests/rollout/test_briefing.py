"""Facts given at reset: checked where they are built, and the same on every way that they travel."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from trailnotes.envs.workers.main import decode_frames, encode, unpack_observation
from trailnotes.storage.files import trajectory_from_json, trajectory_to_json
from trailnotes.types import BRIEFING, Observation, Task, Trajectory

EXAMPLE = {"instruction": "find the coin", "turns": [["a hall", "go east"], ["a nook\n\ta coin", "take coin"]]}
WHOLE = {"action_formats": ["go DIRECTION"], "inventory": "a lamp", "focus": "the coin", "examples": [EXAMPLE]}
WRONG = (None, 3, {"a": 1}, [3], [["a", "b"]], [{**EXAMPLE, "turns": [["only one"]]}], [{**EXAMPLE, "more": ""}])


@pytest.mark.parametrize("briefing", [None, {}, {"focus": "x"}, MappingProxyType(WHOLE)], ids=repr)
def test_a_briefing_survives_the_wire_and_the_records(briefing: Any) -> None:
    first = Observation("a hall", instruction="find the coin", briefing=briefing)
    expected = Observation("a hall", instruction="find the coin", briefing=briefing and dict(briefing))
    [message] = decode_frames(bytearray(encode(first)))
    assert unpack_observation(message) == expected
    record = json.loads(json.dumps(trajectory_to_json(Trajectory(Task("a", "b"), (), first, "truncated", False, 0.0))))
    assert trajectory_from_json(record).final_observation == expected


@pytest.mark.parametrize(
    ("name", "value"), [("weather", "fine"), *((name, value) for name in BRIEFING for value in WRONG)]
)
def test_what_no_prompt_can_word_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Observation("a hall", briefing={name: value})
    with pytest.raises(TypeError, match="mapping"):
        Observation("a hall", briefing=[name])  # type: ignore[arg-type]
