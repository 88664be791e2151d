"""Client of TextWorldExpress, with one round trip a step: the package's own client makes two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trailnotes.errors import ConfigError, EnvError
from trailnotes.storage.files import parse_json
from trailnotes_worlds.java.simulator import JavaProgram, Simulator, find_jars

EXTRA: Final = "textworld-express"
TITLE: Final = "TextWorldExpress"
SERVER_CLASS: Final = "textworldexpress.runtime.PythonInterface"
HEAP: Final = "64m"
# Java's defaults: with many short steps the second compiler pays, unlike with ScienceWorld.
JIT_OPTIONS: Final = (
    "-XX:Tier4InvocationThreshold=5000",
    "-XX:Tier4MinInvocationThreshold=600",
    "-XX:Tier4CompileThreshold=15000",
    "-XX:Tier4BackEdgeThreshold=40000",
)


@dataclass(frozen=True, slots=True)
class GameState:
    text: str
    look: str  # description of the room; "" in games without rooms
    inventory: str
    actions: tuple[str, ...]  # admissible ones, each once, in the simulator's order
    score: float  # so far: up to 1; -1 for a failed task
    succeeded: bool
    failed: bool


class TextWorldExpressClient:
    """Client of one simulator in its own Java process. Every call raises as `Simulator.call` does."""

    def __init__(self, java: str = "", timeout: float = 30.0) -> None:
        """Start the Java process (half a second). Raises as `Simulator` and `find_jars` do."""
        jars = find_jars(TITLE, "textworld_express", EXTRA, "textworld-express.jar")
        self.simulator = Simulator(JavaProgram(TITLE, jars, SERVER_CLASS, EXTRA, JIT_OPTIONS), java, timeout, HEAP)
        self._loaded = ("", "")

    def begin(self, game: str, params: Mapping[str, int], fold: str, seed: int, *, gold: bool = False) -> GameState:
        wanted = (game, ",".join(f"{key}={value}" for key, value in params.items()))
        if wanted != self._loaded:
            self._loaded = ("", "")
            refusal = str(self.simulator.call("load", *wanted))
            if refusal:
                raise ConfigError(f"TextWorldExpress refuses {game} with params = {dict(params)}: {refusal.strip()}")
            self._loaded = wanted
        state = parse_state(self.simulator.call("generateNewGameJSON", seed, fold, gold))
        if state.text.startswith("ERROR"):
            raise ConfigError(f"TextWorldExpress makes no {game} with params = {dict(params)}: {state.text.strip()}")
        return state

    def step(self, action: str) -> GameState:
        return parse_state(self.simulator.call("stepJSON", action))

    def task_description(self) -> str:
        return " ".join(str(self.simulator.call("getTaskDescription")).split())

    def gold_path(self) -> tuple[str, ...]:
        """Return actions that solve a game begun with `gold`; of some games a different random walk each time."""
        return self.simulator.list_strings("getGoldActionSequence")

    def close(self) -> None:
        self.simulator.close()


def parse_state(answer: object) -> GameState:
    """Parse the state in an answer. Raises `EnvError` for any other answer."""
    try:
        facts = parse_json(str(answer))
        return GameState(
            facts["observation"].strip(),
            facts["look"].strip(),
            facts["inventory"].strip(),
            tuple(dict.fromkeys(facts["validActions"])),
            float(facts["score"]),
            bool(facts["tasksuccess"]),
            bool(facts["taskfailure"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnvError(f"TextWorldExpress answered without a state: {str(answer)[:200]!r}") from error
