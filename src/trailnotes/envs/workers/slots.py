"""Many environments of one kind, side by side in one process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from trailnotes.envs import env_class, make_env
from trailnotes.envs.base import Env
from trailnotes.envs.boundary import boundary
from trailnotes.errors import EnvError
from trailnotes.types import Observation, Task

Operation = Literal["open", "reset", "step", "drop"]


class Slots:
    """Instances of one environment, by number. All errors are those of `boundary`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._options = dict(options)
        self._envs: dict[int, Env] = {}
        with boundary(f"import of {name}"):
            env_class(name)

    def run(self, operation: Operation, slot: int, argument: Task | str | None = None) -> Observation | None:
        """One of the operations below, by name: how a message is carried out."""
        match operation, argument:
            case "reset", Task():
                return self.reset(slot, argument)
            case "step", str():
                return self.step(slot, argument)
            case "open", None:
                self.open(slot)
            case "drop", None:
                self.drop(slot)
            case _:
                raise EnvError(f"an environment cannot {operation} with a {type(argument).__name__}")
        return None

    def open(self, slot: int) -> None:
        """Make the instance `slot`."""
        with boundary(f"making {self._name}"):
            self._envs[slot] = make_env(self._name, **self._options)

    def reset(self, slot: int, task: Task) -> Observation:
        """Start `task` in instance `slot`."""
        with boundary(f"reset of task {task.id}"):
            return _checked(self._envs[slot].reset(task))

    def step(self, slot: int, action: str) -> Observation:
        """Take one action in instance `slot`."""
        with boundary(f"step of {self._name}"):
            return _checked(self._envs[slot].step(action))

    def drop(self, slot: int) -> None:
        """Close the instance `slot`; one that was never opened is fine."""
        env = self._envs.pop(slot, None)
        if env is not None:
            with boundary(f"close of {self._name}"):
                env.close()

    def close(self) -> None:
        """Close all instances, whatever they raise."""
        for slot in list(self._envs):
            with suppress(Exception):
                self.drop(slot)


def _checked(observation: object) -> Observation:
    if not isinstance(observation, Observation):
        raise EnvError(f"an environment must answer with an Observation, not {type(observation).__name__}")
    return observation
