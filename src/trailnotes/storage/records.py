"""Trajectories as JSON: whole episodes, nothing cut.

A record omits defaults, prompt token ids (only their number comes back, as `Completion.usage`) and retrieval keys of
tips.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from trailnotes.types import Completion, Observation, Step, Task, Tip, Trajectory

_FIELDS = ("mode", "member", "outcome", "success", "score", "max_score", "error", "context_full")
_STEP_FIELDS = ("action", "reward", "reward_intrinsic", "policy_version", "other_tokens")


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """Convert an episode to JSON values; the intrinsic reward is before its coefficient."""
    return {
        "task": task_to_json(trajectory.task), **{name: getattr(trajectory, name) for name in _FIELDS},
        "return": trajectory.episode_return, "steps": [_step_to_json(step) for step in trajectory.steps],
        "final_observation": _collect_non_defaults(trajectory.final_observation),
    }  # fmt: skip


def trajectory_from_json(record: Mapping[str, Any]) -> Trajectory:
    """Rebuild an episode; prompt ids and keys of tips are empty."""
    return Trajectory(
        task=Task(**record["task"]), steps=tuple(map(_step_from_json, record["steps"])),
        final_observation=_observation_from_json(record["final_observation"]),
        **{name: record[name] for name in _FIELDS},
    )  # fmt: skip


def task_to_json(task: Task) -> dict[str, Any]:
    """Convert a task to a record that ``Task(**record)`` accepts."""
    return _collect_non_defaults(task)


def completion_to_json(completion: Completion) -> dict[str, Any]:
    """Convert a completion to JSON values, with the tokens read and sampled for it."""
    stored = _collect_non_defaults(completion, leave_out=("prompt_ids", "usage"))
    return {"completion": stored, "tokens": completion.num_tokens, "prompt_tokens": completion.num_prompt_tokens}


def completion_from_json(record: Mapping[str, Any]) -> Completion:
    """Rebuild a completion without prompt ids; `usage` holds their number."""
    stored = record["completion"]
    ids = {name: tuple(stored.get(name, ())) for name in ("token_ids", "logprobs")}
    usage = (record["prompt_tokens"], record["tokens"])
    return Completion(**{**stored, **ids, "prompt_ids": (), "usage": usage})


def _step_to_json(step: Step) -> dict[str, Any]:
    return {
        "observation": _collect_non_defaults(step.observation),
        "tips": [_collect_non_defaults(tip, leave_out=("key", "created")) for tip in step.tips],
        **{name: getattr(step, name) for name in _STEP_FIELDS}, **completion_to_json(step.completion),
        "plain_prompt_tokens": len(step.plain_prompt_ids) or step.num_plain_tokens,  # null: not known
    }  # fmt: skip


def _step_from_json(record: Mapping[str, Any]) -> Step:
    return Step(
        observation=_observation_from_json(record["observation"]),
        tips=tuple(Tip(key="", **tip) for tip in record["tips"]), completion=completion_from_json(record),
        plain_prompt_ids=(), num_plain_tokens=record.get("plain_prompt_tokens"),
        **{name: record[name] for name in _STEP_FIELDS if name in record},
    )  # fmt: skip


def _observation_from_json(record: Mapping[str, Any]) -> Observation:
    actions = record.get("actions")
    return Observation(**{**record, "actions": None if actions is None else tuple(actions)})


def _collect_non_defaults(value: Any, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    result = {}
    for field in fields(value):
        item = getattr(value, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name not in leave_out and item != default:
            result[field.name] = dict(item) if isinstance(item, Mapping) else item
    return result
