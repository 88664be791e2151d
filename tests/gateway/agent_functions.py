"""Agents of the tests: functions of a session that play simulated Waymarks, or misbehave."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import openai

from small import SETTINGS
from trailnotes.client import AgentSession
from trailnotes.envs import list_env_tasks, make_env
from trailnotes.rollout.conversation import parse_action
from trailnotes.types import Task

OPTIONS: Mapping[str, Any] = {"families": ["keys/granite"], "max_steps": 2}


def write_tasks(path: Path) -> Path:
    """The tasks of `Paid`, all splits, as the gateway reads them."""
    tasks = [
        task for split in ("train", "validation", "test") for task in list_env_tasks("paying:Paid", split, OPTIONS)
    ]
    lines = [{"id": t.id, "seed": t.seed, "split": t.split, "family": t.family, "game": dict(t.options)} for t in tasks]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def play(session: AgentSession) -> None:
    """Play one game as any program with the client of OpenAI would."""
    env = make_env("paying:Paid", **OPTIONS)
    said = session.task
    task = Task(
        said["id"], "paying:Paid", said["seed"], said.get("split", "train"), said["options"]["game"], said["family"]
    )
    observation = env.reset(task)
    messages: list[Any] = [{"role": "user", "content": observation.instruction}]
    with openai.OpenAI(base_url=session.base_url, api_key=session.api_key) as client:
        while not observation.done:
            messages.append({"role": "user", "content": observation.text})
            answer = client.chat.completions.create(model=session.model, messages=messages)
            text = answer.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": text})
            observation = env.step(parse_action(text, "line", SETTINGS["rollout"]["style"]))
            if not observation.done:
                session.report(observation.score, reward=observation.reward, done=False)
    session.report(
        observation.score, success=observation.success, reward=observation.reward, text=observation.text,
        truncated=observation.truncated,
    )  # fmt: skip


AGENTS: dict[str, Callable[[AgentSession], Any]] = {}
"""By the id of their task: what `dispatch` plays."""


def dispatch(session: AgentSession) -> Any:
    """Play as the agent that a test has named after the task."""
    return AGENTS[session.task["id"]](session)
