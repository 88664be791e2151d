"""What is asked of a ScienceWorld simulator: typed, thin calls, with no round trip that is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from trailnotes.errors import EnvError
from trailnotes_worlds.scienceworld.jvm import GOLD_HEAP, HEAP, Reference, ScienceWorldSimulator, SimulatorLostError
from trailnotes_worlds.scienceworld.tasks import resolve_simplifications, resolve_task, validate_variation

__all__ = [
    "GOLD_PATH_FINDER",
    "LOOK",
    "GoldPathFinder",
    "ScienceWorldClient",
    "SimulatorLostError",
    "Solution",
    "StepResult",
    "close_gold_path_finder",
    "find_gold_path",
]

LOOK = "look around"  # the first action of every episode: free, and the first observation
GOLD_TIMEOUT = 120.0  # seconds: the simulator needs up to 9 of them for its longest gold paths, on a free machine


@dataclass(frozen=True, slots=True)
class StepResult:
    """The simulator's answer to one action."""

    text: str
    score: float  # so far: 0..1, or -1 when the task has been failed
    completed: bool
    moves: int  # so far, in the simulator's own count: looking is free, waiting is more than one


class ScienceWorldClient:
    """One simulator in a Java process of its own. Every call raises as `Simulator.call` does."""

    def __init__(self, java: str = "", timeout: float = 30.0, heap: str = HEAP) -> None:
        """Start the process. Raises as `Simulator` does."""
        self.simulator = ScienceWorldSimulator(java, timeout, heap)

    @property
    def alive(self) -> bool:
        """Whether it can be called."""
        return self.simulator.alive

    def load(self, name: str, variation: int, simplifications: str, *, gold: bool = False) -> None:
        """Begin an episode (35 ms).

        Args:
            name: of the task.
            variation: in the range of the task.
            simplifications: labels between commas; no "easy".
            gold: find a gold path, too: up to 9 s and some 100 MB.

        Raises:
            EnvError: the simulator refuses; it says so only in its answers.
        """
        answer = str(self.simulator.call("load", name, variation, simplifications, gold))
        if answer.startswith("ERROR"):
            raise EnvError(f"the simulator cannot load {name}, variation {variation}: {answer}")

    def step(self, action: str) -> StepResult:
        """Take one action; any text is answered."""
        call = self.simulator.call
        text, score = str(call("step", action)), cast("float", call("getScore"))
        return StepResult(text, score, bool(call("getCompleted")), cast("int", call("getNumMoves")))

    def look(self) -> str:
        """What the agent sees. Not a step."""
        return str(self.simulator.call("freeActionLook"))

    def inventory(self) -> str:
        """What the agent carries. Not a step."""
        return str(self.simulator.call("freeActionInventory"))

    def task_description(self) -> str:
        """The goal in words."""
        return str(self.simulator.call("getTaskDescription"))

    def action_templates(self) -> tuple[str, ...]:
        """All kinds of action, with OBJ for an object: ``"focus on OBJ"``."""
        return self._list_strings("getPossibleActions")

    def objects(self) -> tuple[str, ...]:
        """Names of what the agent can see and reach."""
        return self._list_strings("getPossibleObjects")

    def valid_actions(self) -> tuple[str, ...]:
        """All actions that can be taken now, some hundreds, in the simulator's order (10 to 30 ms)."""
        return self._list_strings("getValidActionObjectCombinations")

    def gold_path(self) -> tuple[str, ...]:
        """Actions that solve the task loaded with `gold`; some may be left over after the last that counts."""
        return self._list_strings("getGoldActionSequence")

    def close(self) -> None:
        """End the process. Twice is fine."""
        self.simulator.close()

    def _list_strings(self, method: str) -> tuple[str, ...]:
        """The elements of a list that stays in Java, joined there: an answer for each element takes long."""
        elements = cast("Reference", self.simulator.call(method))
        text = str(self.simulator.call("join", "\n", elements, of="java.lang.String"))
        self.simulator.release(elements)
        return tuple(text.split("\n")) if text else ()


@dataclass(frozen=True, slots=True)
class Solution:
    """An episode that reaches the full score, up to the last action that counts."""

    task_description: str
    turns: tuple[tuple[str, str], ...]  # what was seen, what was done then

    @property
    def actions(self) -> tuple[str, ...]:
        """What was done."""
        return tuple(action for _, action in self.turns)


class GoldPathFinder:
    """Finds solutions in a simulator of its own, with a larger heap, started when a new one is asked for."""

    def __init__(self, java: str = "", timeout: float = GOLD_TIMEOUT) -> None:
        self.java, self._timeout = java, timeout
        self._client: ScienceWorldClient | None = None
        self._found: dict[tuple[str, int, str], Solution] = {}

    def find_solution(self, task: str, variation: int, simplification: str | Sequence[str] = "easy") -> Solution:
        """The simulator's own solution of a task (up to 9 s, and nothing when asked again).

        Args:
            task: name or id.
            variation: of the task.
            simplification: as for `simplifications`; the solution is right for these alone.

        Raises:
            ConfigError: there is no such task, variation or simplification.
            EnvError: the simulator found no path that solves it.
        """
        name = resolve_task(task)
        setup = (name, validate_variation(name, variation), resolve_simplifications(name, simplification))
        if setup not in self._found:
            if self._client is None or not self._client.alive:
                self._client = ScienceWorldClient(self.java, self._timeout, GOLD_HEAP)
            self._found[setup] = _solve(self._client, *setup)
        return self._found[setup]

    def close(self) -> None:
        """End its simulator; what was found stays known. Twice is fine."""
        if self._client:
            self._client.close()
        self._client = None


def _solve(client: ScienceWorldClient, name: str, variation: int, labels: str) -> Solution:
    client.load(name, variation, labels, gold=True)
    path = client.gold_path()
    client.load(name, variation, labels)
    seen, turns = client.step(LOOK), []
    for action in path:
        turns.append((seen.text, action))
        seen = client.step(action)
        if seen.completed:
            return Solution(client.task_description(), tuple(turns))
    raise EnvError(f"the simulator's gold path of {name}, variation {variation}, does not solve it")


GOLD_PATH_FINDER = GoldPathFinder()
"""Of this process: they are looked for once, and one simulator is enough for that."""


def find_gold_path(task: str, variation: int, simplification: str | Sequence[str] = "easy") -> list[str]:
    """The actions of a solution in `SOLUTIONS`. Call `close_gold_path_finder` after asking for the last one."""
    return list(GOLD_PATH_FINDER.find_solution(task, variation, simplification).actions)


def close_gold_path_finder() -> None:
    """End the simulator of `SOLUTIONS` (some 300 MB); the next one that is not known starts another."""
    GOLD_PATH_FINDER.close()
