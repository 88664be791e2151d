"""Soak: simulators of ScienceWorld are killed (-9) or stopped (-STOP) while episodes run, and nothing may be lost.

500 episodes with four simulators in two worker processes, through the pool and the rollout that training uses. Once in
every 20 episodes, at a random step, a random Java process is killed or, the next time, stopped. Each task is played
twice with the same actions, at the same time, in two simulators: both must see the same, byte by byte, whether theirs
was lost in between or not. Exits with 1 if any check fails.

    python benchmarks/soak_scienceworld.py --json soak.json
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from shared import console, finish, make_parser, print_table

if sys.path[0] == str(Path(__file__).parent):  # scienceworld.py beside this file is not the package of that name
    del sys.path[0]

from trailnotes.config.schema import Config
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout import run_groups
from trailnotes.types import Message, Task, Trajectory
from trailnotes_worlds.scienceworld.tasks import NUM_VARIATIONS

TWINS = 2  # episodes of a task
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
ACTIONS = (
    *(f"teleport to {room}" for room in ("kitchen", "greenhouse", "workshop", "outside", "art studio", "foundry")),
    *("look around", "inventory", "wait1", "examine agent", "look in cupboard", "open cupboard", "open fridge"),
    *("pick up thermometer", "pick up metal pot", "move orange to inventory", "activate sink", "deactivate sink"),
    *("use thermometer on agent", "put down thermometer", "eat apple", "focus on the weather"),
)


@dataclass(frozen=True)
class Plan:
    """What is played, and how often it is disturbed."""

    episodes: int = 500
    every: int = 20  # episodes in a batch; one fault each
    simulators: int = 4
    workers: int = 2
    steps: int = 15  # of an episode
    timeout: float = 10.0  # seconds after which a silent simulator is given up; on a busy machine others are, too
    seed: int = 0

    def __post_init__(self) -> None:
        if self.every % TWINS or self.episodes % self.every:
            raise ValueError(f"episodes must be a multiple of every, and every of {TWINS}")


class Sample(NamedTuple):
    """What this process, its workers and the simulators hold. Memory in MiB."""

    ours_mb: float  # this process and its workers
    java_mb: float  # the mean simulator
    java_max_mb: float
    handles: int  # of this process and its workers
    simulators: int


@dataclass
class Outcome:
    """What came out of it."""

    ended: Counter[str] = field(default_factory=Counter)  # "task/member" of each episode that a group holds
    told: Counter[str] = field(default_factory=Counter)  # the same, as `progress` heard of it
    failed: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)  # tasks whose twins saw different things
    restarts: int = 0
    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0


# --- processes, as Linux shows them


def descendants(pid: int) -> Iterator[int]:
    """Children, their children, and so on; those too that have ended and were not waited for."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _text(file).split():
            yield int(child)
            yield from descendants(int(child))


def is_java(pid: int) -> bool:
    """Whether it is a simulator."""
    return "py4j.GatewayServer" in _text(Path(f"/proc/{pid}/cmdline")).split("\0")


def simulators() -> list[int]:
    """Our simulators, but for those that have been stopped."""
    return [pid for pid in descendants(os.getpid()) if is_java(pid) and "\nState:\tT" not in _status(pid)]


def take_sample() -> Sample:
    """As it is now."""
    pids = {os.getpid(), *descendants(os.getpid())}
    java = {pid for pid in pids if is_java(pid)}
    sizes = [size for pid in java if (size := _rss(pid))] or [0.0]
    handles = sum(_num_handles(pid) for pid in pids - java)
    return Sample(sum(_rss(pid) for pid in pids - java), statistics.mean(sizes), max(sizes), handles, len(java))


def _num_handles(pid: int) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has ended
        return 0


def _rss(pid: int) -> float:
    lines = (line.split() for line in _status(pid).splitlines())
    return sum(int(words[1]) for words in lines if words[0] == "VmRSS:") / 1024


def _status(pid: int) -> str:
    return _text(Path(f"/proc/{pid}/status"))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return ""


# --- playing


class Saboteur:
    """The script of the policy: it acts by what the conversation holds, and strikes once in every batch."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._rng = plan, random.Random(plan.seed)
        self._calls, self._moment = 0, -1
        self.struck: Counter[str] = Counter()
        self.seen: set[int] = set()  # simulators that were ever there

    def begin_batch(self) -> None:
        """Choose the moment of the next fault."""
        self._calls, self._moment = 0, self._rng.randrange(1, int(0.9 * self._plan.every * self._plan.steps))

    def __call__(self, messages: Sequence[Message]) -> str:
        """The next action: the same for the same conversation."""
        self._calls += 1
        if self._calls == self._moment:
            self._moment += not self._strike()  # if there is nobody at the moment, at the next step
        text = f"{len(messages)} {messages[0].content} {messages[-1].content}"
        return ACTIONS[int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") % len(ACTIONS)]

    def _strike(self) -> bool:
        there = simulators()
        self.seen.update(there)
        if not there:
            return False
        how = SIGNALS[self.struck.total() % len(SIGNALS)]
        os.kill(self._rng.choice(there), how)
        self.struck[how.name] += 1
        return True


def tasks_of(plan: Plan) -> list[Task]:
    """All thirty tasks in turn, each time another variation."""
    names, tasks = list(NUM_VARIATIONS), []
    for index in range(plan.episodes // TWINS):
        name = names[index % len(names)]
        options = {"task": name, "variation": index // len(names) % NUM_VARIATIONS[name]}
        tasks.append(Task(f"scienceworld/{name}/{options['variation']}", "scienceworld", 0, "test", options))
    return tasks


def settings(plan: Plan) -> Config:
    """A rollout as in training, with room for the scripted policy's one token a byte."""
    return Config.model_validate(
        {
            "env": {
                "name": "scienceworld",
                "options": {"max_steps": plan.steps, "timeout": plan.timeout, "max_restarts": 5},
                "num_workers": plan.workers,
                "max_envs": plan.simulators,
                "timeout": 120.0 + 3 * plan.timeout,
            },
            "rollout": {"max_steps": plan.steps, "max_context_tokens": 500_000, "max_observation_tokens": 10_000},
        }
    )


async def play(plan: Plan, saboteur: Saboteur) -> Outcome:
    """All batches, one after the other, in one pool."""
    config, outcome, start = settings(plan), Outcome(), time.monotonic()
    policy, tasks, size = ScriptedPolicy(saboteur), tasks_of(plan), plan.every // TWINS
    with EnvPool(config.env) as pool:
        for first in range(0, len(tasks), size):
            saboteur.begin_batch()
            batch = tasks[first : first + size]
            groups = await run_groups(
                policy, pool, batch, [["plain"] * TWINS] * len(batch), None, config, seed=first,
                progress=lambda episode: outcome.told.update([named(episode, first)]),  # noqa: B023 (called in this turn)
                on_error=lambda episode: outcome.failed.append(episode.error),
            )  # fmt: skip
            for group in groups:
                outcome.ended.update(named(episode, first) for episode in group.trajectories)
                outcome.restarts += sum(map(num_restarts, group.trajectories))
                if len({story(episode) for episode in group.trajectories}) != 1:
                    outcome.unlike.append(group.task.id)
            outcome.samples.append(take_sample())
            saboteur.seen.update(simulators())
    outcome.seconds = time.monotonic() - start
    return outcome


def named(episode: Trajectory, batch: int) -> str:
    """Which of all episodes it is."""
    return f"{batch}/{episode.task.id}/{episode.member}"


def num_restarts(episode: Trajectory) -> int:
    """Simulators that were lost under it."""
    observations = [*(step.observation for step in episode.steps), episode.final_observation]
    return sum(observation.info.get("restarts", 0) for observation in observations)


def story(episode: Trajectory) -> tuple[Any, ...]:
    """All that was seen, done and earned."""
    turns = [(step.observation.text, step.action, step.reward) for step in episode.steps]
    return (*turns, episode.final_observation.text, episode.outcome, episode.score)


# --- judging


def soak(plan: Plan) -> dict[str, Any]:
    """Play, and check what is left afterwards."""
    before, saboteur = take_sample(), Saboteur(plan)
    outcome = asyncio.run(play(plan, saboteur))
    after = take_sample()
    left = sum(1 for _ in descendants(os.getpid())) + sum(is_java(pid) for pid in saboteur.seen)
    checks = [*judge_episodes(plan, outcome, saboteur), *judge_memory(outcome.samples)]
    checks.append(check("processes left over", left, left == 0))
    checks.append(check("file handles left over", after.handles - before.handles, after.handles <= before.handles))
    return {
        "passed": all(row["ok"] for row in checks),
        "checks": checks,
        "faults": dict(saboteur.struck),
        "seconds": outcome.seconds,
        "errors": outcome.failed,
        "samples": [sample._asdict() for sample in outcome.samples],
        "plan": vars(plan),
    }


def judge_episodes(plan: Plan, outcome: Outcome, saboteur: Saboteur) -> list[dict[str, Any]]:
    """Nothing lost, doubled, failed or changed; and the faults were there."""
    struck, ended = saboteur.struck.total(), outcome.ended
    doubled = sum(count - 1 for count in (*ended.values(), *outcome.told.values()))
    return [
        check("episodes ended", ended.total(), ended.total() == plan.episodes),
        check("episodes lost", plan.episodes - len(ended), len(ended) == plan.episodes and ended == outcome.told),
        check("episodes doubled", doubled, doubled == 0),
        check("episodes failed", len(outcome.failed), not outcome.failed),
        check("twins that saw different things", len(outcome.unlike), not outcome.unlike),
        check("faults", struck, struck == plan.episodes // plan.every),
        check("simulators replaced", outcome.restarts, outcome.restarts >= struck - 1),  # the last may go unnoticed
    ]


def judge_memory(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """The last quarter against the second: what starts up is over by then."""
    most = max(sample.java_max_mb for sample in samples)
    checks = [check("MB of the largest simulator", round(most), most <= 200)]
    if len(samples) < 8:
        return checks
    quarter = len(samples) // 4
    for key, name in (
        ("ours_mb", "MB of us and our workers"),
        ("java_mb", "MB of a simulator"),
        ("handles", "handles"),
    ):
        early, late = (
            statistics.median(getattr(sample, key) for sample in part)
            for part in (samples[quarter : 2 * quarter], samples[-quarter:])
        )
        checks.append(check(f"{name}, second and last quarter", f"{early:.0f}, {late:.0f}", late <= 1.1 * early))
    return checks


def check(name: str, value: object, ok: bool) -> dict[str, Any]:
    """A row of the table."""
    return {"name": name, "value": value, "ok": ok}


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    plan = result["plan"]
    faults = ", ".join(f"{count} {name}" for name, count in result["faults"].items())
    print_table(
        f"{plan['episodes']} episodes, {plan['simulators']} simulators, {plan['workers']} workers, "
        f"{result['seconds']:.0f} s; {faults}",
        ("check", "value", ""),
        ((row["name"], str(row["value"]), "ok" if row["ok"] else "FAILED") for row in result["checks"]),
        left=("check", ""),
    )
    for error in result["errors"]:
        console.print(error, markup=False)
    console.print("PASS" if result["passed"] else "FAIL")


def main() -> int:
    """Parse the arguments, play, print, and write."""
    parser = make_parser(__doc__, quick="40 episodes")
    for name, default in vars(Plan()).items():
        parser.add_argument(f"--{name}", type=type(default), help=f"(default {default})")
    arguments = vars(parser.parse_args())
    file, quick = arguments.pop("json"), arguments.pop("quick")
    given = {name: value for name, value in arguments.items() if value is not None}
    result = soak(Plan(**{**({"episodes": 40} if quick else {}), **given}))
    finish(result, report, file)
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
