"""The tasks of ``env.name = "gateway"``, from a file with one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from trailnotes.envs.base import require_text_list, require_type
from trailnotes.errors import ConfigError, EnvError
from trailnotes.storage.files import read_user_lines
from trailnotes.types import Observation, Task

FIELDS: Final = ("seed", "split", "family")  # of a task; every other one is the agent's


class GatewayEnv:
    """Your agent as it is, which calls its model through an OpenAI address (docs/guides/train-your-agent.md).

    Args:
        tasks: file with a task a line, {"id": ..., "split": "train", ...}; the agent gets all of it.
        command: starts an agent, once for each episode.
        agent: "module:function", called with its session in a thread of this process, instead of a command.
        scorer: "module:function", called with a task and its conversation; it returns the score in place of a report.
    """

    def __init__(self, tasks: str, command: list[str] | None = None, agent: str = "", scorer: str = "") -> None:
        require_type(str, "tasks", tasks)
        require_text_list("command", command or [])
        require_type(str, "agent", agent)
        require_type(str, "scorer", scorer)
        if bool(command) == bool(agent):
            raise ConfigError("env.options needs a command, or an agent (module:function), and not both")

    @staticmethod
    def tasks(split: str, tasks: str) -> list[Task]:
        """List the tasks of a split, in the order of the file; raises `ConfigError` where a line is not a task."""
        path = Path(require_type(str, "tasks", tasks))
        if not path.is_file():
            raise ConfigError(f'env.options.tasks: there is no file {path}; give it a task a line, {{"id": ...}}')
        listed: dict[str, Task] = {}
        splits: dict[str, str] = {}  # as first spelled, by the same in small letters
        for number, record in read_user_lines(path):
            task = _parse_task(record, path, number)
            if task.id in listed:
                raise ConfigError(f"{path}, line {number}: {task.id!r} is the id of an earlier task, too: name another")
            if (first := splits.setdefault(task.split.casefold(), task.split)) != task.split:
                raise ConfigError(f"{path}, line {number}: split {task.split!r} is {first!r} in an earlier line")
            listed[task.id] = task
        return [task for task in listed.values() if task.split == split]

    def reset(self, task: Task) -> Observation:
        """Refuse: an agent is started, not stepped."""
        raise EnvError(f"{task.id}: an agent of the gateway plays by itself, in `trailnotes train`, eval or adapt")

    def step(self, action: str) -> Observation:
        raise EnvError(f"an agent of the gateway takes no action {action[:40]!r}")

    def close(self) -> None: ...


def _parse_task(record: Any, path: Path, number: int) -> Task:
    if isinstance(record, dict) and isinstance(record.get("id"), str) and record["id"]:
        known = {name: record[name] for name in FIELDS if name in record}
        options = {name: value for name, value in record.items() if name not in {*FIELDS, "id"}}
        if all(type(value) is (int if name == "seed" else str) for name, value in known.items()):
            return Task(record["id"], "gateway", options=options, **known)
    raise ConfigError(
        f'{path}, line {number}: {json.dumps(record)[:60]} is no task such as {{"id": "one"}}, with texts as split and '
        "family and a whole number as seed"
    )
