"""What `benchmarks/scienceworld.py` calls CPU seconds, and what Java was told about its compilers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from trailnotes_worlds.java.simulator import OPTIONS, find_java

FOLDER = Path(__file__).parents[4] / "benchmarks"
BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint(), input()"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, under a name that is not the package's."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    spec = importlib.util.spec_from_file_location("benchmark_of_scienceworld", FOLDER / "scienceworld.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_cpu_seconds_are_those_of_python_and_of_the_child(benchmark: ModuleType) -> None:
    """A wall clock says nothing of a peer with many threads on a busy machine."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        clock = benchmark.Clock(child.pid)
        assert clock.time("step", child.stdout.readline) == b"\n"
        started = time.process_time()
        while time.process_time() < started + 0.1:  # Python's, but of nobody's call
            pass
        assert clock.cpu - clock.python >= 0.29
        own = clock.python
        clock.time("start", lambda: sum(range(200_000)))
        assert clock.python > own
        child.stdin.write(b"\n")
    assert {kind: len(seconds) for kind, seconds in clock.wall.items()} == {"start": 1, "step": 1}


def test_the_second_compiler_starts_late_and_the_first_as_usual() -> None:
    """Else it takes a second core from the other simulators; and a word on stdout would be taken for the port."""
    command = [find_java(), *OPTIONS, "-XX:+PrintFlagsFinal", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    flags = {words[1]: words[3] for line in done.stderr.splitlines() if len(words := line.split()) > 3}
    assert (flags["Tier3InvocationThreshold"], flags["Tier4InvocationThreshold"]) == ("200", "50000")
    assert flags["TieredStopAtLevel"] == "4"
    assert done.stdout == ""
