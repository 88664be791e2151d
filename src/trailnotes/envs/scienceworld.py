"""ScienceWorld: thirty families of school-science tasks in a simulated house."""

from __future__ import annotations

from typing import Any

from trailnotes.envs.scienceworld_jvm import Simulator
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task

EASY = "teleportAction,openDoors,selfWateringFlowerPots"
NUM_VARIATIONS = {"find-non-living-thing": 300}


def simplifications(name: str, preset: str) -> str:
    """What the simulator is told for a preset."""
    if preset != "easy":
        return preset
    electrical = "power-component" in name or "conductivity" in name
    return EASY if electrical else f"{EASY},noElectricalAction"


class ScienceWorldEnv:
    """Plays ScienceWorld."""

    def __init__(self, task: str = "", simplification: str = "easy", max_steps: int = 30, java: str = "") -> None:
        self._simplification, self._max_steps, self._java = simplification, max_steps, java
        self._simulator: Simulator | None = None
        self._steps_left = 0
        self._score = 0

    @staticmethod
    def tasks(split: str, task: str = "find-non-living-thing") -> list[Task]:
        """The paper's split of one task."""
        first = {"train": (0, 5), "validation": (150, 20), "test": (225, 20)}
        if split not in first:
            raise ConfigError(f"unknown split {split!r}")
        start, num = first[split]
        return [
            Task(f"scienceworld/{task}/{n}", "scienceworld", 0, split, {"task": task, "variation": n})
            for n in range(start, start + num)
        ]

    def reset(self, task: Task) -> Observation:
        """Start `task`."""
        if self._simulator is None:
            self._simulator = Simulator(self._java)
        server: Any = self._simulator.server
        name, variation = task.options["task"], task.options["variation"]
        server.load(name, variation, simplifications(name, self._simplification), False)
        self._steps_left, self._score = self._max_steps, 0
        look = server.step("look around")
        return Observation(look, instruction=server.getTaskDescription(), max_score=100.0)

    def step(self, action: str) -> Observation:
        """Take one action."""
        if self._simulator is None or not self._steps_left:
            raise EnvError("the episode is over: call reset before step")
        server: Any = self._simulator.server
        text = server.step(action.strip().rstrip(".!").strip())
        score = round(100 * server.getScore())
        over = bool(server.getCompleted()) or score < 0
        self._steps_left = 0 if over else self._steps_left - 1
        before, self._score = self._score, score
        return Observation(
            text,
            reward=float(score - before),
            terminated=over,
            truncated=not over and not self._steps_left,
            success=score == 100,
            score=float(score),
            max_score=100.0,
        )

    def close(self) -> None:
        """End the simulator."""
        if self._simulator:
            self._simulator.close()
        self._simulator = None
        self._steps_left = 0
