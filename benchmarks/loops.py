"""Whole episodes of Gymnasium and OpenEnv, by our adapters and in the bare loops of their packages: for `envs.py`.

A step takes microseconds in Gymnasium, and one clock a step would be measured along: what is timed here is an episode.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from statistics import median
from typing import Any, Protocol

from shared import cpu_seconds

from trailnotes.envs import list_env_tasks, make_env
from trailnotes.types import Task

STEPS = 50  # of an episode at most
GAMES = ("FrozenLake-v1", "Taxi-v4", "CliffWalking-v1")
SERVED = ("sokoban", "--env.options.num_games", "24")


class Player(Protocol):
    """One of the two that are compared."""

    def play(self, task: Task, draws: Sequence[int]) -> list[str]:
        """The texts of one episode; a draw, modulo the number of actions, is the action's place."""
        ...

    def told(self, text: str) -> str:
        """A text as both must have seen it; not timed."""
        ...

    def close(self) -> None:
        """End whatever it started."""
        ...


class Ours:
    """An adapter of this project, as an episode meets it."""

    def __init__(self, name: str, offered: Sequence[str] = (), **options: Any) -> None:
        self.env, self.offered = make_env(name, **options), offered

    def play(self, task: Task, draws: Sequence[int]) -> list[str]:
        """As `Player.play`."""
        env, seen = self.env, self.env.reset(task)
        texts = [seen.text]
        for draw in draws:
            offered = self.offered or seen.actions or ()
            seen = env.step(offered[draw % len(offered)])
            texts.append(seen.text)
            if seen.terminated or seen.truncated:
                break
        return texts

    def told(self, text: str) -> str:
        """As `Player.told`."""
        return text

    def close(self) -> None:
        """As `Player.close`."""
        self.env.close()


class Gymnasium:
    """What a loop over Gymnasium is at its shortest: reset, step, render; no checker around the environment."""

    def __init__(self, name: str) -> None:
        import gymnasium

        self.env = gymnasium.make(name, render_mode="ansi", disable_env_checker=True)
        self.number = int(getattr(self.env.action_space, "n"))  # noqa: B009 - of a discrete space, which toys have

    def play(self, task: Task, draws: Sequence[int]) -> list[str]:
        """As `Player.play`."""
        env, number = self.env, self.number
        env.reset(seed=task.seed)
        texts: list[Any] = [env.render()]
        for draw in draws:
            _, _, terminated, truncated, _ = env.step(draw % number)
            texts.append(env.render())
            if terminated or truncated:
                break
        return texts

    def told(self, text: str) -> str:
        """As `Player.told`."""
        from trailnotes_worlds.gymnasium.env import render_plain

        return render_plain(text)

    def close(self) -> None:
        """As `Player.close`."""
        self.env.close()


class OpenEnv:
    """The official client, in a loop of its own."""

    def __init__(self, url: str) -> None:
        from openenv.core import GenericEnvClient

        self.loop = asyncio.new_event_loop()
        self.client = GenericEnvClient(base_url=url)
        self.loop.run_until_complete(self.client.connect())

    def play(self, task: Task, draws: Sequence[int]) -> list[str]:
        """As `Player.play`."""
        return self.loop.run_until_complete(self._played(task, draws))

    async def _played(self, task: Task, draws: Sequence[int]) -> list[str]:
        seen = await self.client.reset(seed=task.seed)
        texts = [seen.observation["text"]]
        for draw in draws:
            offered = seen.observation["actions"]
            seen = await self.client.step({"action": offered[draw % len(offered)]})
            texts.append(seen.observation["text"])
            if seen.done:
                break
        return texts

    def told(self, text: str) -> str:
        """As `Player.told`."""
        return text

    def close(self) -> None:
        """As `Player.close`."""
        self.loop.run_until_complete(self.client.close())
        self.loop.close()


@contextmanager
def server() -> Iterator[str]:
    """Where a server of ours is, in a process whose time does not count."""
    command = [sys.executable, "-m", "trailnotes", "envs", "serve", *SERVED, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            ready = process.stdout.readline()
            if not ready.startswith("ready: "):
                raise RuntimeError(f"`{' '.join(command[1:])}` did not begin to serve: it says above why")
            yield ready.removeprefix("ready: ").split()[0]
        finally:
            process.terminate()


def relay(
    name: str, package: Callable[[], Player], ours: Callable[[], Player], tasks: list[Task], rounds: int
) -> dict[str, Any]:
    """Medians over `rounds`, in each of which both play all tasks, each first in turn. The first does not count."""
    measured = []
    with ExitStack() as stack:
        sides = [stack.enter_context(closing(make())) for make in (package, ours)]
        for turn in range(rounds + 1):
            rng = random.Random(turn)
            spent, steps = [[0.0, 0.0], [0.0, 0.0]], 0
            for number, task in enumerate(tasks):
                draws = [rng.randrange(1 << 16) for _ in range(STEPS)]
                seen: list[list[str]] = [[], []]
                for which in (0, 1) if (turn + number) % 2 else (1, 0):
                    wall, cpu = time.perf_counter(), cpu_seconds()
                    played = sides[which].play(task, draws)
                    spent[which][0] += cpu_seconds() - cpu
                    spent[which][1] += time.perf_counter() - wall
                    seen[which] = [sides[which].told(text) for text in played]
                if seen[0] != seen[1]:
                    raise AssertionError(f"{task.id} differs: {seen}")
                steps += len(seen[0]) - 1
            (their_cpu, their_wall), (our_cpu, our_wall) = spent
            measured.append(
                {
                    "steps": steps,
                    "ours_per_cpu_second": steps / our_cpu,
                    "package_per_cpu_second": steps / their_cpu,
                    "cpu_ratio": their_cpu / our_cpu,
                    "ours_per_second": steps / our_wall,
                    "package_per_second": steps / their_wall,
                    "wall_ratio": their_wall / our_wall,
                }
            )
    counted = measured[1:]
    steps = sum(row["steps"] for row in counted)
    return {"env": name, **{key: median(row[key] for row in counted) for key in counted[0]}, "steps": steps}


def gymnasium(game: str, quick: bool) -> dict[str, Any]:
    """The row of one of Gymnasium's toy texts."""
    from trailnotes_worlds.gymnasium.env import TOY_TEXTS

    options = {"id": game, "num_train": 4 if quick else 64}
    ours = partial(Ours, "gymnasium", TOY_TEXTS[game.partition("-v")[0]].actions, **options)
    tasks = list_env_tasks("gymnasium", "train", options)
    return relay(f"gymnasium, {game}", partial(Gymnasium, game), ours, tasks, 2 if quick else 9)


def openenv(quick: bool) -> dict[str, Any]:
    """The row of our client and the official one, with a session each of a server of ours."""
    import openenv.core  # noqa: F401 - what is not installed is found out before anything is started

    with server() as url:
        options = {"url": url, "num_train": 2 if quick else 24}
        ours = partial(Ours, "openenv", **options)
        tasks = list_env_tasks("openenv", "train", options)
        return relay("openenv", partial(OpenEnv, url), ours, tasks, 2 if quick else 5)
