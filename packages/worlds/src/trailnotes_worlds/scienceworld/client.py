"""Thin, typed calls of a ScienceWorld simulator, without superfluous round trips."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from trailnotes.errors import EnvError
from trailnotes_worlds.java.gateway import Reference, SimulatorLostError, Value
from trailnotes_worlds.java.simulator import JavaProgram, Simulator, find_jars
from trailnotes_worlds.scienceworld.tasks import resolve_simplifications, resolve_task, validate_variation

GAMES = 20  # that share one Java process
HEAP, SHARED_HEAP = "64m", "512m"  # live objects of a game take some 20 MB
GOLD_HEAP = "512m"  # the gold path of test-conductivity needs over 128 MB
SERVER = "scienceworld.runtime.pythonapi.PythonInterface"
COUNTER = "util.UniqueIdentifier"  # numbers the objects of all games of a process
DRAWING_TASKS = ("grow-", "mendelian-")  # in which plants, and the bees around them, draw at random
RESET = "reset task"  # drops the progress; admissible, but not shown, as in the published protocol
LOOK = "look around"  # the first action of every episode: free, and the first observation
GOLD_TIMEOUT = 120.0  # seconds: the simulator needs up to 9 for its longest gold paths, on a free machine


@dataclass(frozen=True, slots=True)
class StepResult:
    text: str
    score: float  # so far: 0..1, or -1 for a failed task
    completed: bool
    moves: int  # so far, in the simulator's own count: a look is free, waiting costs several


def find_scienceworld_jars() -> tuple[Path, Path]:
    return find_jars("ScienceWorld", "scienceworld", "scienceworld", "scienceworld.jar")


class ScienceWorldSimulator(Simulator):
    """Java process with one or several games of ScienceWorld, which share the generator of all its draws."""

    def __init__(self, java: str = "", timeout: float = 30.0, heap: str = HEAP) -> None:
        """Start the process (a second). Raises as `Simulator` and `find_jars` do."""
        program = JavaProgram("ScienceWorld", find_scienceworld_jars(), SERVER, "scienceworld")
        super().__init__(program, java, timeout, heap)
        self.settings = java, timeout
        self._idle = [self._server]
        self._num_games = 1  # idle ones included

    def borrow_game(self) -> Reference | None:
        """Take an idle game, or a new one; None if there are enough."""
        if not self._idle and self._num_games < GAMES:
            self._idle.append(self._guard_call(lambda: self._gateway.create(SERVER)))
            self._num_games += 1
        return self._idle.pop() if self._idle else None

    def return_game(self, game: Reference) -> None:
        """Take a game back; with the last one the process ends. It makes no call: a garbage collection may be it."""
        self._idle.append(game)
        if len(self._idle) == self._num_games:
            self.close()


_shared: list[ScienceWorldSimulator] = []  # of this process


def borrow_shared_game(java: str, timeout: float) -> tuple[ScienceWorldSimulator, Reference]:
    """Find room for a game in a running simulator of these settings, or start one. Raises as `Simulator` does."""
    _shared[:] = [simulator for simulator in _shared if simulator.alive]
    for simulator in _shared:
        if simulator.settings == (java, timeout) and (game := simulator.borrow_game()):
            return simulator, game
    simulator = ScienceWorldSimulator(java, timeout, SHARED_HEAP)
    _shared.append(simulator)
    game = simulator.borrow_game()
    assert game is not None
    return simulator, game


class ScienceWorldClient:
    """Client of one game. Every call raises as `Simulator.call` does."""

    def __init__(self, java: str = "", timeout: float = 30.0, heap: str = HEAP, *, shared: bool = False) -> None:
        """Start a Java process (a second), or with `shared` take a game in a running one (no time).

        What `objects` and `valid_actions` call an object with several names is drawn, by a generator of the whole
        process. Raises as `Simulator` does.
        """
        self._is_shared = shared
        if shared:
            self.simulator, self._game = borrow_shared_game(java, timeout)
        else:
            self.simulator = ScienceWorldSimulator(java, timeout, heap)
            game = self.simulator.borrow_game()
            assert game is not None
            self._game = game
        self._end = weakref.finalize(self, self.simulator.return_game, self._game)

    @property
    def alive(self) -> bool:
        return self._end.alive and self.simulator.alive

    def load(self, name: str, variation: int, simplifications: str, *, gold: bool = False) -> None:
        """Begin an episode (35 ms).

        The simulator numbers objects from 1 again, and takes two of one number for the same object. What other games of
        the process make later, such as water from a tap, needs new numbers: the count goes on from its highest value.
        """
        before = cast("int", self.simulator.call("count", of=COUNTER))
        answer = str(self._call("load", name, variation, simplifications, gold))
        if self._is_shared and before > cast("int", self.simulator.call("count", of=COUNTER)):
            self.simulator.call("count_$eq", before, of=COUNTER)
        if answer.startswith("ERROR"):
            raise EnvError(f"the simulator cannot load {name}, variation {variation}: {answer}")

    def step(self, action: str) -> StepResult:
        call = self._call
        text, score = str(call("step", action)), cast("float", call("getScore"))
        return StepResult(text, score, bool(call("getCompleted")), cast("int", call("getNumMoves")))

    def inventory(self) -> str:
        return str(self._call("freeActionInventory"))

    def task_description(self) -> str:
        return str(self._call("getTaskDescription"))

    def action_templates(self) -> tuple[str, ...]:
        """List the forms of actions but for `RESET`."""
        return tuple(form for form in self.simulator.list_strings("getPossibleActions", self._game) if form != RESET)

    def objects(self) -> tuple[str, ...]:
        return self.simulator.list_strings("getPossibleObjects", self._game)

    def valid_actions(self) -> tuple[str, ...]:
        """List all admissible actions, some hundreds, in the simulator's order (10 to 30 ms)."""
        return self.simulator.list_strings("getValidActionObjectCombinations", self._game)

    def gold_path(self) -> tuple[str, ...]:
        """Return actions that solve a task loaded with `gold`; superfluous ones may follow."""
        return self.simulator.list_strings("getGoldActionSequence", self._game)

    def close(self) -> None:
        self._end()

    def _call(self, method: str, *arguments: Value) -> Value:
        return self.simulator.call(method, *arguments, of=self._game)


@dataclass(frozen=True, slots=True)
class Solution:
    """Episode that reaches the full score, without superfluous actions."""

    task_description: str
    turns: tuple[tuple[str, str], ...]  # observation, next action

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(action for _, action in self.turns)


class GoldPathFinder:
    """Cache of solutions, with a simulator of its own and a larger heap for new ones."""

    def __init__(self) -> None:
        self.java = ""  # as env.options.java
        self._client: ScienceWorldClient | None = None
        self._found: dict[tuple[str, int, str], Solution] = {}

    def find_solution(self, task: str, variation: int, simplification: str | Sequence[str] = "easy") -> Solution:
        """Find the simulator's own solution of a task (up to 9 s; immediate at the second call)."""
        name = resolve_task(task)
        setup = (name, validate_variation(name, variation), resolve_simplifications(name, simplification))
        if setup not in self._found:
            if self._client is None or not self._client.alive:
                self._client = ScienceWorldClient(self.java, GOLD_TIMEOUT, GOLD_HEAP)
            self._found[setup] = _solve(self._client, *setup)
        return self._found[setup]

    def close(self) -> None:
        """End its simulator (some 300 MB) but keep the solutions. A second call is harmless."""
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


GOLD_PATH_FINDER = GoldPathFinder()  # of this process: one simulator is enough


T = TypeVar("T")


class FaultTolerantGame:
    """Game that replaces a simulator that died, hangs or was interrupted.

    The simulator is deterministic, so the new one must repeat every answer of the old one, byte for byte. A forked
    child that inherits a game continues in a simulator of its own.
    """

    def __init__(self, java: str = "", timeout: float = 30.0, max_restarts: int = 2, *, shared: bool = False) -> None:
        self._java, self._timeout, self._max_restarts = java, timeout, max_restarts
        self._client: ScienceWorldClient | None = None
        self._shared = shared
        self._setup: tuple[str, int, str] | None = None
        self._played: list[tuple[str, StepResult]] = []
        self._listings: Counter[int] = Counter()  # actions played -> number of listings of the admissible actions
        self.restarts = 0  # in this episode

    def begin(self, name: str, variation: int, simplifications: str) -> StepResult:
        """Begin an episode, and return the answer to its first look."""
        self._setup, self._played, self.restarts = (name, variation, simplifications), [], 0
        self._listings.clear()
        draws = name.startswith(DRAWING_TASKS) or "openContainers" in simplifications
        if draws or "selfWateringFlowerPots" not in simplifications:  # which all games of a process share
            self._isolate()

        def first_look(client: ScienceWorldClient) -> StepResult:
            client.load(name, variation, simplifications)
            return client.step(LOOK)

        result = self.query(first_look)
        self._played.append((LOOK, result))
        return result

    def step(self, action: str) -> StepResult:
        if "hive" in action:  # bees that are let out draw where they fly
            self._isolate()
        result = self.query(lambda client: client.step(action))
        self._played.append((action, result))
        return result

    def valid_actions(self) -> tuple[str, ...]:
        """List all admissible actions. Raises as `step` does.

        The simulator draws a name for an object with several at each call, so a replay must repeat the calls, and no
        other game may draw: the first call moves the game to a process of its own.
        """
        self._isolate()
        actions = self.query(lambda client: client.valid_actions())
        self._listings[len(self._played)] += 1
        return actions

    def _isolate(self) -> None:
        """Move the game to a process of its own, from the next call on: its draws would depend on other games."""
        if self._shared and self._client:
            self._client.close()
            self._client = None
        self._shared = False

    def query(self, question: Callable[[ScienceWorldClient], T]) -> T:
        """Ask a question without side effects, such as ``ScienceWorldClient.inventory``. Raises as `step` does."""
        while True:
            try:
                return question(self._get_client())
            except SimulatorLostError as error:
                if self.restarts >= self._max_restarts:
                    where = f"in {self.restarts + 1} simulators, after {len(self._played)} actions"
                    raise EnvError(f"{error} ({where} of {self._setup})") from error
                self.restarts += 1

    def close(self) -> None:
        if self._client:
            self._client.close()
        self._client = None
        self._setup = None

    def _get_client(self) -> ScienceWorldClient:
        if self._client is None or not self._client.alive:
            if self._setup is None:
                raise EnvError("no episode has begun: call reset before step")
            self._client = ScienceWorldClient(self._java, self._timeout, shared=self._shared)
            self._replay(self._client)
        return self._client

    def _replay(self, client: ScienceWorldClient) -> None:
        assert self._setup
        if self._played:
            client.load(*self._setup)
        for place, (action, before) in enumerate(self._played):
            now = client.step(action)
            if now != before:
                error = EnvError(
                    f"a new simulator differs from the lost one at action {place} ({action!r}) of {self._setup}: "
                    f"{now.text[:200]!r} is not {before.text[:200]!r}"
                )
                self.close()
                raise error
            for _ in range(self._listings[place + 1]):
                client.valid_actions()
