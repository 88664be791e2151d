from __future__ import annotations

import json
from dataclasses import replace

from trailnotes.storage.files import encode_line, trajectory_from_json, trajectory_to_json
from trailnotes.types import Completion, Observation, Step, Task, Tip, Trajectory

TIP = Tip("maze/1", "go left twice", key="a long conversation", score=1.0, id=7, support=3, created="2026-01-01")


def episode() -> Trajectory:
    first = Observation("a hall", actions=("left", "right"), instruction="find the coin", info={"moves": 0})
    second = Observation("a nook " * 5000, reward=-0.25, score=0.5)
    return Trajectory(
        task=Task("maze/1", "maze", seed=3, split="validation", options={"depth": 6}),
        steps=(
            Step(first, (TIP,), Completion((1, 2, 3), (4, 5), (-0.1, -0.2), "left"), (1, 2), "left", -0.25, 0.5, 2),
            Step(second, (), Completion((1, 2, 3, 4, 5, 6), (7,), (-1 / 3,), "", "length"), (1, 2, 4, 5), "", 1.0),
        ),
        final_observation=Observation("the note says: left", reward=1.0, terminated=True, success=True, score=1.0),
        outcome="terminated", success=True, score=1.0, mode="off_policy", member=5,
    )  # fmt: skip


def test_a_record_has_both_rewards_apart_and_counts_for_prompts() -> None:
    record = trajectory_to_json(episode())
    first = record["steps"][0]
    assert record["return"] == 0.75
    assert first["tips"] == [{"namespace": "maze/1", "text": "go left twice", "score": 1.0, "id": 7, "support": 3}]
    assert (first["reward"], first["reward_intrinsic"], first["policy_version"]) == (-0.25, 0.5, 2)
    assert (first["tokens"], first["prompt_tokens"], first["plain_prompt_tokens"]) == (2, 3, 2)


def test_an_episode_comes_back_but_for_keys_and_prompts_of_which_the_length_is_left() -> None:
    original = episode()
    read = trajectory_from_json(json.loads(encode_line(trajectory_to_json(original))))
    steps = [
        replace(
            step,
            tips=tuple(replace(tip, key="", created="") for tip in step.tips),
            completion=replace(step.completion, prompt_ids=(), usage=usage),
            plain_prompt_ids=(),
            num_plain_tokens=plain,
        )
        for step, usage, plain in zip(original.steps, [(3, 2), (6, 1)], [2, 4], strict=True)  # tokens read and sampled
    ]
    assert read == replace(original, steps=tuple(steps))
    assert encode_line(trajectory_to_json(read)) == encode_line(trajectory_to_json(original)), "and as the same bytes"
