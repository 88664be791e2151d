"""ScienceWorld's simulator in a Java process of its own."""

from __future__ import annotations

from pathlib import Path

from trailnotes_worlds.java import simulator
from trailnotes_worlds.java.simulator import START_LIMIT, JavaProgram, Reference, SimulatorLostError, find_java

__all__ = [
    "GOLD_HEAP",
    "HEAP",
    "Reference",
    "ScienceWorldSimulator",
    "SimulatorLostError",
    "find_java",
    "find_scienceworld_jars",
]

HEAP, GOLD_HEAP = "64m", "512m"  # live objects take 20 to 25 MB; the gold path of test-conductivity needs over 128 MB
SERVER_CLASS = "scienceworld.runtime.pythonapi.PythonInterface"


def find_scienceworld_jars() -> tuple[Path, Path]:
    """The jars of py4j and of ScienceWorld. Raises as `simulator.find_jars` does."""
    return simulator.find_jars(
        "ScienceWorld", "scienceworld", "scienceworld", "scienceworld.jar", "object_type_ids.tsv"
    )


class ScienceWorldSimulator(simulator.Simulator):
    """A Java process with one ScienceWorld in it. Not for two threads at a time; of no use in a forked child."""

    def __init__(
        self, java: str = "", timeout: float = 30.0, heap: str = HEAP, start_limit: float = START_LIMIT
    ) -> None:
        """Start it (a second). Raises as `simulator.Simulator` and `find_jars` do."""
        program = JavaProgram("ScienceWorld", find_scienceworld_jars(), SERVER_CLASS, "scienceworld")
        super().__init__(program, java, timeout, heap, start_limit)
