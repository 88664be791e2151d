"""A step of ScienceWorld here, against `ScienceWorldEnv.step` of the simulator's own package.

One run, one machine, one Java: three simulators (the package's, ours, ours with the admissible actions fetched in every
step) take the same actions in turn, the first of them changing from step to step, after the same warm-up. The actions
are drawn at random from the admissible ones of eight tasks. The package fetches its list in every step, asked or not.
Then: how fast an episode starts, what the simulators hold in memory after 20 episodes, how many steps several make at
once, and whether a step becomes dearer in a long episode.

The headline is the ratio of CPU seconds a step, those of Java and of Python, starts of episodes included: it is what a
training pays that keeps all cores busy, and hardly depends on what else runs. The ratio of wall times is what one
episode on a free machine gains. It is larger, as the package also waits in each step without computing (40 ms for an
acknowledgement put off), and it falls when a core is busy, as the package's Java works on several at once.

    python benchmarks/scienceworld.py --json scienceworld.json
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from shared import console, cpu_seconds, finish, make_parser, print_table

if sys.path[0] == str(Path(__file__).parent):  # this file would be found in place of the package of its name
    del sys.path[0]

from trailnotes.envs import make_env
from trailnotes.types import Observation, Task
from trailnotes_worlds.scienceworld.jvm import find_java
from trailnotes_worlds.scienceworld.tasks import resolve_simplifications

FLOORS = {"cpu_ratio": 3.0, "cpu_ratio_with_actions": 1.7}  # at least
CEILINGS = {"start_ms": 100.0, "rss_mb": 200.0}  # at most
TASKS = (
    "find-non-living-thing",
    "lifespan-longest-lived",
    "power-component",
    "boil",
    "chemistry-mix",
    "test-conductivity",
    "grow-plant",
    "use-thermometer",
)
CYCLE = (  # of the long episode: each hundred steps hold each of them ten times
    "look around",
    "inventory",
    "teleport to kitchen",
    "look at cupboard",
    "open cupboard",
    "close cupboard",
    "teleport to greenhouse",
    "look in bee hive",
    "examine agent",
    "wait1",
)
EPISODES_BEFORE_RSS = 20

T = TypeVar("T")


@dataclass(frozen=True)
class Workload:
    """What is played."""

    warmup: int = 12  # episodes
    episodes: int = 16  # timed
    steps: int = 30
    long_steps: int = 500
    throughput_warmup: int = 24  # episodes of each of the four simulators
    throughput_repeats: int = 3


QUICK = Workload(warmup=2, episodes=4, steps=15, long_steps=200, throughput_warmup=1, throughput_repeats=1)


class Episode(NamedTuple):
    """A task and what is done in it."""

    task: str
    variation: int
    actions: tuple[str, ...]


class Side(Protocol):
    """One of the simulators that are compared."""

    pid: int

    def start(self, episode: Episode) -> str:
        """Begin; the first observation."""
        ...

    def step(self, action: str) -> float:
        """Take one action; the score, 0 to 100."""
        ...

    def close(self) -> None:
        """End the process."""
        ...


class Ours:
    """The adapter of this project, as an episode meets it."""

    def __init__(self, actions: str = "none", max_steps: int = 1000) -> None:
        before = children()
        self.env = make_env("scienceworld", actions=actions, max_steps=max_steps)
        self.start(Episode(TASKS[0], 0, ()))  # starts the process
        (self.pid,) = children() - before

    def start(self, episode: Episode) -> str:
        """As `Side.start`."""
        return self.begin(episode.task, episode.variation).text

    def begin(self, name: str, variation: int) -> Observation:
        """Reset the environment."""
        return self.env.reset(Task(name, "scienceworld", options={"task": name, "variation": variation}))

    def step(self, action: str) -> float:
        """As `Side.step`."""
        return float(self.env.step(action).score or 0.0)

    def close(self) -> None:
        """As `Side.close`."""
        self.env.close()


class Package:
    """The wrapper that comes with the simulator, with the same Java and the same simplifications."""

    def __init__(self) -> None:
        from scienceworld import ScienceWorldEnv

        java = Path(find_java()).parent
        os.environ["PATH"] = f"{java}{os.pathsep}{os.environ.get('PATH', '')}"
        before = children()
        self.env = ScienceWorldEnv(envStepLimit=1000)
        (self.pid,) = children() - before

    def start(self, episode: Episode) -> str:
        """As `Side.start`."""
        self.env.load(episode.task, episode.variation, resolve_simplifications(episode.task, "easy"))
        text, _ = self.env.reset()
        return str(text)

    def step(self, action: str) -> float:
        """As `Side.step`."""
        _, _, _, info = self.env.step(action)
        return float(info["score"])

    def close(self) -> None:
        """As `Side.close`."""
        self.env.close()


# --- measuring


def children() -> set[int]:
    """Processes that this one has started and not yet ended (Linux)."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in lists for pid in file.read_text(encoding="ascii").split()}


def rss_mb(pid: int) -> float:
    """Resident memory of a process in MiB, pages shared with other processes included."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def record(load: Workload) -> list[Episode]:
    """Random admissible actions, the same in every run; those that end a task are left out."""
    rng, episodes = random.Random(0), []
    with closing(Ours("valid")) as side:
        for index in range(load.warmup + load.episodes):
            name, variation = TASKS[index % len(TASKS)], index // len(TASKS)
            seen, taken = side.begin(name, variation), []
            while len(taken) < load.steps and not seen.terminated:
                allowed = [a for a in seen.actions or () if not a.startswith(("focus", "reset"))]
                taken.append(rng.choice(allowed))
                seen = side.env.step(taken[-1])
            episodes.append(Episode(name, variation, tuple(taken)))
    return episodes


def compiling(pid: int) -> float:
    """CPU seconds of Java's compiler threads so far (Linux)."""
    tasks = [task for task in Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text()[:3] in {"C1 ", "C2 "}]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class Clock:
    """What a side took: wall seconds of each start and step, CPU seconds of Python meanwhile, and of Java all along."""

    def __init__(self, pid: int) -> None:
        self.pid, self.java_before = pid, cpu_seconds(pid)
        self.wall: dict[str, list[float]] = {"start": [], "step": []}
        self.python = 0.0

    def time(self, kind: str, call: Callable[[], T]) -> T:
        """The answer to `call`, a start or a step."""
        wall, python = time.perf_counter(), cpu_seconds()
        answer = call()
        self.wall[kind].append(time.perf_counter() - wall)
        self.python += cpu_seconds() - python
        return answer

    @property
    def cpu(self) -> float:
        """CPU seconds of both."""
        return self.python + cpu_seconds(self.pid) - self.java_before


def play(sides: dict[str, Side], episode: Episode, clocks: dict[str, Clock]) -> int:
    """One episode on all sides, step by step; how many scores were the same on all."""
    names, agreed = list(sides), 0
    for name in names:
        clocks[name].time("start", partial(sides[name].start, episode))
    for place, action in enumerate(episode.actions):
        first = place % len(names)
        order = names[first:] + names[:first]
        scores = {clocks[name].time("step", partial(sides[name].step, action)) for name in order}
        agreed += len(scores) == 1
    return agreed


def compare(load: Workload) -> dict[str, Any]:
    """The three simulators in turn: milliseconds of a start and a step on the wall and of CPUs, and memory."""
    episodes = record(load)
    with ExitStack() as stack:
        sides: dict[str, Side] = {"package": Package(), "ours": Ours(), "ours with actions": Ours("valid")}
        for side in sides.values():
            stack.enter_context(closing(side))
        clocks: dict[str, Clock] = {}
        agreed, memory = 0, {}
        for index, episode in enumerate(episodes):
            if index in (0, load.warmup):  # what came before does not count
                clocks, agreed = {name: Clock(side.pid) for name, side in sides.items()}, 0
            agreed += play(sides, episode, clocks)
            if index + 1 == min(EPISODES_BEFORE_RSS, len(episodes)):
                memory = {name: rss_mb(side.pid) for name, side in sides.items()}
        cpu = {name: clock.cpu for name, clock in clocks.items()}
    num_steps = len(clocks["ours"].wall["step"])
    median = {name: {k: 1e3 * statistics.median(v) for k, v in clock.wall.items()} for name, clock in clocks.items()}
    rows = [
        {
            "side": name,
            "cpu_ms": 1e3 * cpu[name] / num_steps,
            "step_ms": median[name]["step"],
            "start_ms": median[name]["start"],
            "rss_mb": memory[name],
        }
        for name in sides
    ]
    theirs = median["package"]["step"]
    return {
        "cpu_ratio": cpu["package"] / cpu["ours"],
        "cpu_ratio_with_actions": cpu["package"] / cpu["ours with actions"],
        "wall_ratio": theirs / median["ours"]["step"],
        "wall_ratio_with_actions": theirs / median["ours with actions"]["step"],
        "start_ms": median["ours"]["start"],
        "rss_mb": max(memory["ours"], memory["ours with actions"]),
        "rows": rows,
        "steps": num_steps,
        "same_scores": agreed / num_steps,
    }


def throughput(load: Workload) -> list[dict[str, float]]:
    """Steps a second of 1, 2 and 4 simulators, a thread for each; the starts of their episodes count.

    They share nothing but the cores. One takes more than one of them while Java's compilers work beside it: that is
    the `cores` of the first row, and two simulators can be no faster than the cores of the machine over it.
    """
    episodes = [Episode(name, 0, CYCLE * 3) for name in TASKS]

    def work(side: Side, some: Sequence[Episode]) -> None:
        for episode in some:
            side.start(episode)
            for action in episode.actions:
                side.step(action)

    def run(sides: Sequence[Side], some: Sequence[Episode]) -> dict[str, float]:
        threads = [threading.Thread(target=work, args=(side, some)) for side in sides]
        clocks, python, compiled = [Clock(side.pid) for side in sides], cpu_seconds(), [compiling(s.pid) for s in sides]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall = time.perf_counter() - start
        cpu = cpu_seconds() - python + sum(clock.cpu for clock in clocks)
        steps = len(sides) * sum(len(episode.actions) for episode in some)
        in_compilers = sum(compiling(side.pid) for side in sides) - sum(compiled)
        return {
            "steps_per_second": steps / wall,
            "cpu_ms": 1e3 * cpu / steps,
            "compiler_ms": 1e3 * in_compilers / steps,
            "cores": cpu / wall,
        }

    with ExitStack() as stack:
        sides = [stack.enter_context(closing(Ours())) for _ in range(4)]
        run(sides, (episodes * load.throughput_warmup)[: load.throughput_warmup])
        found: dict[int, list[dict[str, float]]] = {1: [], 2: [], 4: []}
        for _ in range(load.throughput_repeats):
            for num, values in found.items():
                values.append(run(sides[:num], episodes[:4]))
    return [
        {"simulators": num, **{key: statistics.median(each[key] for each in values) for key in values[0]}}
        for num, values in found.items()
    ]


def long_episode(load: Workload) -> dict[str, float]:
    """Milliseconds of a step in the first and the last hundred of a long episode, the second in its simulator."""
    with closing(Ours()) as side:
        for _ in range(2):
            side.start(Episode(TASKS[0], 1, ()))
            seconds = []
            for place in range(load.long_steps):
                start = time.perf_counter()
                side.step(CYCLE[place % len(CYCLE)])
                seconds.append(time.perf_counter() - start)
    first, last = (1e3 * statistics.mean(part) for part in (seconds[:100], seconds[-100:]))
    return {"steps": load.long_steps, "first_hundred_ms": first, "last_hundred_ms": last, "growth": last / first}


def measure(load: Workload) -> dict[str, Any]:
    """Everything, one after the other."""
    return {
        **compare(load),
        "floors": FLOORS,
        "ceilings": CEILINGS,
        "throughput": throughput(load),
        "long_episode": long_episode(load),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "workload": vars(load),
    }


# --- telling


def report(result: dict[str, Any]) -> None:
    """Print the tables."""
    sides = [
        (row["side"], *(f"{row[name]:.1f}" for name in ("cpu_ms", "step_ms", "start_ms", "rss_mb")))
        for row in result["rows"]
    ]
    print_table(
        f"{result['steps']} steps of each, in turn; {100 * result['same_scores']:.1f} % of scores agree",
        ("simulator", "CPU ms a step", "wall ms a step", "wall ms a start", "MB"),
        sides,
    )
    for limits, word in ((FLOORS, "floor"), (CEILINGS, "at most")):
        for name, limit in limits.items():
            console.print(f"{name} {result[name]:.2f} ({word} {limit:g})")
    console.print(
        f"wall_ratio {result['wall_ratio']:.2f}, wall_ratio_with_actions {result['wall_ratio_with_actions']:.2f} "
        f"(at a load of {result['load_average']:.1f}; meant for a free machine)"
    )
    keys = ("simulators", "steps_per_second", "cpu_ms", "compiler_ms", "cores")
    print_table(
        f"several at once on {result['cores']} cores",
        ("simulators", "steps/s", "CPU ms a step", "of it compiling", "cores in use"),
        [tuple(f"{row[key]:.3g}" for key in keys) for row in result["throughput"]],
    )
    long = result["long_episode"]
    console.print(
        f"an episode of {long['steps']} steps: {long['first_hundred_ms']:.2f} ms a step in the first hundred, "
        f"{long['last_hundred_ms']:.2f} in the last"
    )


def main() -> None:
    """Parse the arguments, measure, print, and write."""
    parser = make_parser(__doc__, quick="fewer and shorter episodes, hardly warmed up")
    arguments = parser.parse_args()
    result = measure(QUICK if arguments.quick else Workload())
    finish(result, report, arguments.json)


if __name__ == "__main__":
    main()
