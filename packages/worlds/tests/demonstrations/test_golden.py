"""The first demonstrations of each world, as hashes of their texts: initial models were made from these data."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from trailnotes.config.schema import Config, EnvConfig, MemoryConfig, RolloutConfig, WarmstartConfig
from trailnotes.types import Completion, Observation, Step, Task, Trajectory
from trailnotes.warmstart.demonstrations import load_demonstrator
from trailnotes_worlds.demonstrations.recorded import RecordedGame

SHOP = {"products_per_page": 4}
COIN = {"params": {"numLocations": 11, "numDistractorItems": 0, "includeDoors": 0}, "view": "short", "num_games": 10}
GOLDEN: list[tuple[str, str, dict[str, Any], dict[str, float], str]] = [
    ("webshop", "terse", SHOP, {}, "52e119c3e4683d1f"),
    ("webshop", "full", SHOP, {}, "23f1aedd1d3c176c"),
    ("webshop", "terse", SHOP, {"advice": 0.3, "write": 0.2}, "2291caa0c489b6fd"),
    ("webshop", "full", SHOP, {"advice": 0.3, "write": 0.2}, "ee0363d36a5c6274"),
    ("wikihow", "terse", {"view": "short"}, {"advice": 0.3}, "0a28611ad7be9d5b"),
    ("sokoban", "terse", {"num_games": 6}, {"variations": 3}, "d6f07a0508409578"),
    ("textworld-express", "terse", COIN, {}, "e123f91d55e6bd5d"),
    ("scienceworld", "terse", {}, {}, "217ebaca792c9302"),
    ("scienceworld", "full", {}, {}, "c74fd86932aa9796"),
]


def episode(*actions: str, score: float, member: int) -> Trajectory:
    task = Task("scienceworld/find-animal/0", "scienceworld", options={"task": "find-animal", "variation": 0})
    first = Observation("a room", instruction="find it", max_score=100.0)
    steps = tuple(Step(first, (), Completion((), (), (), action), (), action, 0.0) for action in actions)
    final = replace(first, instruction=None, score=score)
    return Trajectory(task, steps, final, "terminated", score == 100, score, 100.0, member=member)


RECORDED = RecordedGame(
    episode("teleport to outside", "focus on bee", score=100.0, member=0),
    (
        episode("teleport to attic", "focus on door", score=-100.0, member=1),
        episode("look around", score=17.0, member=2),
    ),
)


@pytest.mark.parametrize(("env", "style", "options", "shares", "digest"), GOLDEN)
def test_demonstrations_are_those_of_before(
    env: str, style: Any, options: dict[str, Any], shares: dict[str, Any], digest: str
) -> None:
    if env == "textworld-express":
        pytest.importorskip("textworld_express", reason="needs the extra textworld-express")
    config = Config(
        env=EnvConfig(name=env, options=options),
        rollout=RolloutConfig(style=style, max_steps=15, max_context_tokens=20_000, max_observation_tokens=600),
        memory=MemoryConfig(top_k=3, max_tip_tokens=300),
        warmstart=WarmstartConfig(p_follow_tip=0.4, p_explore=0.5, **shares),
    )
    made = load_demonstrator(env, style)(config, lambda text: len(text.split()), 0)
    if env == "scienceworld":
        vars(made)["recordings"] = [RECORDED]  # in place of what the simulator would record
    found = hashlib.sha256()
    for demo in islice(made, 40):
        for place, message in enumerate(demo.messages):
            found.update(f"{message.role} {place in demo.taught}\n{message.content}\n".encode())
    assert found.hexdigest()[:16] == digest
