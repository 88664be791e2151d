"""Environments here, beside the loops of their own packages: steps a second, as a ratio.

TextWorldExpress: the package's client and ours, each with a Java of its own, play the same episodes with the same
actions in turn, first one and then the other first, step by step; what both see and offer must be equal. The actions
are drawn at random from those that are offered, and drawing them is not timed.

ScienceWorld: the same with the package's wrapper and our environment with the list of admissible actions, which the
package fetches in every step. Scores must be equal and not texts, since the package's Java orders lists and names
things otherwise whenever it starts; drawn are kinds of action that this leaves alone.

ALFWorld: the same with TextWorld's engine, which the package loads for each episode, in games that we make; once with a
new game in each episode, and once with each game four times, as a group of a training plays it.

Gymnasium: toy texts as they are drawn, beside reset, step and render of the package without its checker. OpenEnv: a
server of ours, in a process that does not count, played by our client and by the official one (`openenv-core`, which
has an environment of its own: run there with this repository's ``src`` on ``PYTHONPATH``). Whole episodes in turn,
since a clock for each step would be measured along; medians over rounds (`loops.py`).

The headline of each row is a ratio, ours over the package's, of CPU seconds (of Python and Java) and of wall seconds,
starts of episodes included. Sokoban is ours alone: its rows have a speed and no ratio.

    python benchmarks/envs.py --json envs.json
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import loops
from shared import console, cpu_seconds, finish, make_parser, print_table

from trailnotes.envs import list_env_tasks, make_env
from trailnotes.types import Task

LEAST = 0.8  # of the package's steps a second of CPU time
STEPS = {"alfworld": 15, "scienceworld": 30}  # of an episode at most
USUAL_STEPS = 50
STEADY = ("teleport to", "look around", "inventory", "open", "close", "wait")
SCIENCE = ("find-non-living-thing", "lifespan-longest-lived", "power-component", "boil")
KINDS = ("start", "step")
T = TypeVar("T")


class Seen(NamedTuple):
    """What both sides must say alike."""

    text: str
    offered: frozenset[str]
    over: bool


class Side(Protocol):
    """One of the two that are compared."""

    def start(self, task: Task) -> Seen:
        """Begin."""
        ...

    def step(self, action: str) -> Seen:
        """Take one action."""
        ...

    def close(self) -> None:
        """End whatever it started."""
        ...


class Ours:
    """An adapter of this project, as an episode meets it."""

    def __init__(self, name: str, **options: Any) -> None:
        self.env = make_env(name, max_steps=USUAL_STEPS + 1, **options)

    def start(self, task: Task) -> Seen:
        """As `Side.start`."""
        first = self.env.reset(task)
        return Seen(first.text, frozenset(first.actions or ()), False)

    def step(self, action: str) -> Seen:
        """As `Side.step`."""
        seen = self.env.step(action)
        return Seen(seen.text, frozenset(() if seen.done else seen.actions or ()), seen.done)

    def close(self) -> None:
        """As `Side.close`."""
        self.env.close()


class TextWorldExpress:
    """The client that comes with the games, with the Java that ours uses."""

    def __init__(self) -> None:
        from trailnotes_worlds.java.simulator import find_java

        os.environ["PATH"] = f"{Path(find_java()).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        from textworld_express import TextWorldExpressEnv

        self.env = TextWorldExpressEnv(envStepLimit=USUAL_STEPS)
        self.game = ""

    def start(self, task: Task) -> Seen:
        """As `Side.start`."""
        if task.options["game"] != self.game:
            self.game = task.options["game"]
            self.env.load(self.game, "")
        text, infos = self.env.reset(seed=task.seed, gameFold=task.options["fold"])
        return Seen(text.strip(), frozenset(infos["validActions"]), False)

    def step(self, action: str) -> Seen:
        """As `Side.step`."""
        text, _, _, infos = self.env.step(action)
        over = infos["tasksuccess"] or infos["taskfailure"]
        return Seen(text.strip(), frozenset(() if over else infos["validActions"]), over)

    def close(self) -> None:
        """As `Side.close`."""
        self.env.close()


class ScienceWorld:
    """The wrapper that comes with the simulator, with the Java and the resolve_simplifications of ours."""

    def __init__(self) -> None:
        from trailnotes_worlds.java.simulator import find_java

        os.environ["PATH"] = f"{Path(find_java()).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        from scienceworld import ScienceWorldEnv

        self.env = ScienceWorldEnv(envStepLimit=1000)

    def start(self, task: Task) -> Seen:
        """As `Side.start`."""
        from trailnotes_worlds.scienceworld.tasks import resolve_simplifications

        name = task.options["task"]
        self.env.load(name, task.options["variation"], resolve_simplifications(name, "easy"))
        _, infos = self.env.reset()
        return Seen("", steady(infos["valid"]), False)

    def step(self, action: str) -> Seen:
        """As `Side.step`."""
        _, _, over, infos = self.env.step(action)
        return Seen(str(infos["score"]), frozenset() if over else steady(infos["valid"]), over)

    def close(self) -> None:
        """As `Side.close`."""
        self.env.close()


class OurScienceWorld(Ours):
    """Ours, of which the scores are compared."""

    def __init__(self) -> None:
        super().__init__("scienceworld", actions="valid")

    def start(self, task: Task) -> Seen:
        """As `Side.start`."""
        return Seen("", steady(self.env.reset(task).actions), False)

    def step(self, action: str) -> Seen:
        """As `Side.step`."""
        seen = self.env.step(action)
        return Seen(f"{seen.score:.0f}", frozenset() if seen.done else steady(seen.actions), seen.done)


def steady(actions: Iterable[str] | None) -> frozenset[str]:
    """The admissible actions that the package names alike whenever its Java starts, and that end no task."""
    return frozenset(action for action in actions or () if action.startswith(STEADY))


class Alfworld:
    """TextWorld's engine under ALFWorld's names, as the package's own environment plays it, in games that we make."""

    def __init__(self) -> None:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs import PddlEnv

        infos = textworld.EnvInfos(admissible_commands=True, won=True)
        self.env = AlfredDemangler(PddlEnv(infos), shuffle=False)

    def start(self, task: Task) -> Seen:
        """As `Side.start`: load and reset, which is what the package does for each episode."""
        from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

        from trailnotes_worlds.alfworld.rooms import generate_game

        game = generate_game(task.options["plan"], task.options["type"], task.seed)
        grammar = Path(ALFRED_TWL2_PATH).read_text(encoding="utf-8").replace("UNKNOWN GOAL", game.task)
        domain = Path(ALFRED_PDDL_PATH).read_text(encoding="utf-8")
        self.env.load({"pddl_domain": domain, "grammar": grammar, "pddl_problem": game.problem})
        return self._seen(self.env.reset())

    def step(self, action: str) -> Seen:
        """As `Side.step`."""
        state, _, _ = self.env.step(action)
        return self._seen(state)

    def close(self) -> None:
        """As `Side.close`."""

    @staticmethod
    def _seen(state: Any) -> Seen:
        text = state.feedback.removeprefix("-= Welcome to TextWorld, ALFRED! =-\n\n")
        return Seen(text, frozenset(() if state["won"] else state["admissible_commands"]), state["won"])


class Clock:
    """What starts and steps of a side took: wall seconds, and CPU seconds of Python and of what it started for it."""

    def __init__(self, pids: set[int]) -> None:
        self.pids, self.wall, self.cpu, self.calls = pids, Counter[str](), Counter[str](), Counter[str]()

    def time(self, kind: str, call: Callable[[], T]) -> T:
        """The answer to `call`, a start or a step."""
        wall, cpu = time.perf_counter(), self._used()
        answer = call()
        self.wall[kind] += time.perf_counter() - wall
        self.cpu[kind] += self._used() - cpu
        self.calls[kind] += 1
        return answer

    def row(self, who: str) -> dict[str, float]:
        """Milliseconds of a start and a step, and steps a second over both."""
        means = {f"{who}_{kind}_cpu_ms": 1e3 * self.cpu[kind] / num for kind, num in self.calls.items()}
        steps = self.calls["step"]
        return means | {
            f"{who}_per_cpu_second": steps / self.cpu.total(),
            f"{who}_per_second": steps / self.wall.total(),
        }

    def _used(self) -> float:
        return cpu_seconds() + sum(map(cpu_seconds, self.pids))


def children() -> set[int]:
    """Processes that this one has started and not yet ended (Linux)."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in lists for pid in file.read_text(encoding="ascii").split()}


def opened(stack: ExitStack, make: Callable[[], Side], task: Task) -> tuple[Side, Clock]:
    """A side that has begun an episode, and the clock of it and of the processes that it has started for it."""
    before = children()
    side = stack.enter_context(closing(make()))
    side.start(task)
    return side, Clock(children() - before)


def play(sides: list[tuple[Side, Clock]], task: Task, rng: random.Random, turn: int) -> None:
    """One episode on all sides, step by step, each first in turn; they must agree."""
    seen = {clock.time("start", partial(side.start, task)) for side, clock in sides}
    for number in range(STEPS.get(task.env, USUAL_STEPS)):
        if len(seen) > 1:
            raise AssertionError(f"step {number} of {task.id} differs: {seen}")
        (only,) = seen
        if only.over:
            return
        action = rng.choice(sorted(only.offered))
        order = sides if (turn + number) % 2 else sides[::-1]
        seen = {clock.time("step", partial(side.step, action)) for side, clock in order}


def compare(name: str, makers: dict[str, Callable[[], Side]], tasks: list[Task], warmup: int) -> dict[str, Any]:
    """Steps a second of each side over `tasks`, of which the first `warmup` do not count."""
    rng = random.Random(0)
    with ExitStack() as stack:
        sides = {who: opened(stack, make, tasks[0]) for who, make in makers.items()}
        for turn, task in enumerate(tasks):
            if turn == warmup:
                sides = {who: (side, Clock(clock.pids)) for who, (side, clock) in sides.items()}
            play(list(sides.values()), task, rng, turn)
    clocks = {who: clock for who, (_, clock) in sides.items()}
    row: dict[str, Any] = {"env": name, "steps": clocks["ours"].calls["step"]}
    for who, clock in clocks.items():
        row |= clock.row(who)
    if "package" in clocks:
        ours, theirs = clocks["ours"], clocks["package"]
        row["cpu_ratio"] = theirs.cpu.total() / ours.cpu.total()
        row["wall_ratio"] = theirs.wall.total() / ours.wall.total()
        row |= {f"{kind}_ratio": theirs.cpu[kind] / ours.cpu[kind] for kind in KINDS}
    return row


def run(quick: bool, only: str) -> dict[str, Any]:
    """The rows whose names begin with `only`."""
    num, warmup = (3, 4) if quick else (40, 80)
    games = list_env_tasks("textworld-express", "train", {"game": "all", "num_games": num})
    random.Random(0).shuffle(games)
    games.sort(key=lambda task: task.seed)  # all games in turn, as a training draws them
    options = {"task": list(SCIENCE), "num_train": 2 if quick else 5}
    science = sorted(list_env_tasks("scienceworld", "train", options), key=lambda task: int(task.options["variation"]))
    rooms = list_env_tasks("alfworld", "train", {"num_games": 1})[: 2 if quick else 6]
    again = [task for task in rooms[:3] for _ in range(4)]
    wanted: list[tuple[str, type[Side] | None, list[Task], int]] = [
        ("textworld-express", TextWorldExpress, games, warmup),
        ("scienceworld", ScienceWorld, science, (1 if quick else 2) * len(SCIENCE)),
        ("alfworld", Alfworld, rooms, 1),
        ("alfworld, each game four times", Alfworld, again, 1),
    ]
    for difficulty in ("easy", "expert"):
        tasks = list_env_tasks("sokoban", "train", {"difficulty": difficulty, "num_games": 8 * num})
        wanted.append((f"sokoban, {difficulty}", None, tasks, warmup))
    measures: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, package, tasks, before in wanted:
        makers: dict[str, Callable[[], Side]] = {"package": package} if package else {}
        ours: Callable[[], Side] = OurScienceWorld if name == "scienceworld" else partial(Ours, tasks[0].env)
        measures[name] = partial(compare, name, {**makers, "ours": ours}, tasks, before)
    measures |= {f"gymnasium, {game}": partial(loops.gymnasium, game, quick) for game in loops.GAMES}
    measures["openenv"] = partial(loops.openenv, quick)
    rows, skipped = [], []
    for name, measure in measures.items():
        try:
            if name.startswith(only):
                rows.append(measure())
        except ImportError as error:
            skipped.append(f"{name}: {error}")
    return {"rows": rows, "skipped": skipped}


def report(result: dict[str, Any]) -> None:
    """Print the result."""

    def shown(row: dict[str, Any], key: str, form: str) -> str:
        return format(row[key], form) if key in row else "-"

    print_table(
        "environments beside their packages",
        ["environment", "steps", "ours /CPU s", "package /CPU s", "ratio, CPU", "ours /s", "package /s", "ratio, wall"],
        (
            [
                row["env"],
                shown(row, "steps", ",d"),
                shown(row, "ours_per_cpu_second", ",.0f"),
                shown(row, "package_per_cpu_second", ",.0f"),
                shown(row, "cpu_ratio", ".2f"),
                shown(row, "ours_per_second", ",.0f"),
                shown(row, "package_per_second", ",.0f"),
                shown(row, "wall_ratio", ".2f"),
            ]
            for row in result["rows"]
        ),
    )
    for row in result["rows"]:
        if "start_ratio" in row:
            parts = (f"{kind} {row[f'{who}_{kind}_cpu_ms']:.3g}" for who in ("package", "ours") for kind in KINDS)
            told = " and ".join(f"{row[f'{kind}_ratio']:.2f} of a {kind}" for kind in KINDS)
            console.print(f"{row['env']}: CPU ms of package and ours: {', '.join(parts)}; ratios {told}")
    for line in result["skipped"]:
        console.print(f"not measured: {line}")
    for row in result["rows"]:
        if row.get("cpu_ratio", 1.0) < LEAST:
            console.print(f"{row['env']} takes more CPU time than it may: at least {LEAST} of the package's speed")


if __name__ == "__main__":
    parser = make_parser(__doc__, "a few episodes: shows that it runs")
    parser.add_argument("--only", default="", metavar="NAME", help="the environments whose names begin so")
    arguments = parser.parse_args()
    finish(run(arguments.quick, arguments.only), report, arguments.json)
