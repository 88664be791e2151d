"""Environments for tests of pools: they do what the action says, good or bad."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task

_INSTANCES = itertools.count()


class Puppet:
    """Obeys its actions."""

    def __init__(self, greeting: str = "hello") -> None:
        self._greeting = greeting
        self._number = next(_INSTANCES)
        self._playing = False

    @staticmethod
    def tasks(split: str, num: int = 3) -> list[Task]:
        if split not in {"train", "test"}:
            raise ConfigError(f"puppets have no split {split!r}")
        first = 0 if split == "train" else 100
        return [Task(f"{split}-{index}", "odd_envs:Puppet", first + index, split) for index in range(num)]

    def reset(self, task: Task) -> Observation:
        self._playing = True
        text = f"{self._greeting} {task.id} {task.seed} {dict(task.options)}"
        return Observation(text, instruction="obey", actions=("pid", "end"), max_score=2.0)

    def step(self, action: str) -> Observation:
        if not self._playing:
            raise EnvError("the episode is over: call reset first")
        verb, _, rest = action.partition(" ")
        method = getattr(self, f"do_{verb}", None)
        return method(rest) if method else Observation(action, reward=0.5, score=0.5, max_score=2.0, actions=("end",))

    def close(self) -> None:
        self._playing = False

    def do_end(self, rest: str) -> Observation:
        self._playing = False
        return Observation("the end", 2.0, terminated=True, success=True, score=2.0, max_score=2.0)

    def do_pid(self, rest: str) -> Observation:
        return Observation(str(os.getpid()), info={"instance": self._number, "group": os.getpgrp(), "list": [1]})

    def do_modules(self, rest: str) -> Observation:
        return Observation(" ".join(name for name in rest.split() if name in sys.modules))

    def do_print(self, rest: str) -> Observation:
        print("\x00\x00\x00\x05noise " * 1000, flush=True)
        os.write(1, b"raw noise")
        sys.stderr.write("warning\n" * 50_000)  # more than a pipe holds
        return Observation("printed")

    def do_large(self, rest: str) -> Observation:
        return Observation("é" * int(rest))

    def do_sleep(self, rest: str) -> Observation:
        time.sleep(float(rest))
        return Observation("awake")

    def do_freeze(self, rest: str) -> Observation:
        ctypes.PyDLL(None).usleep(int(rest) * 1_000_000)  # without releasing the interpreter
        return Observation("awake")

    def do_spin(self, rest: str) -> Observation:
        while True:
            pass

    def do_exit(self, rest: str) -> Observation:
        sys.stderr.write("Traceback\nValueError: the last straw\n\n")
        sys.stderr.flush()
        os._exit(int(rest))

    def do_segfault(self, rest: str) -> Observation:
        os.kill(os.getpid(), signal.SIGSEGV)
        return Observation("still there")

    def do_quit(self, rest: str) -> Observation:
        sys.exit(rest)

    def do_raise(self, rest: str) -> Observation:
        raise ValueError(f"two\nlines {rest}")

    def do_nonsense(self, rest: str) -> Any:
        return rest

    def do_count(self, rest: str) -> Observation:
        return Observation("here", actions=3)  # type: ignore[arg-type]

    def do_object(self, rest: str) -> Observation:
        return Observation("here", info={"object": object()})

    def do_child(self, rest: str) -> Observation:
        return Observation(str(subprocess.Popen(["sleep", "100"]).pid))  # never waited for, as careless code does


class Broken:
    """Cannot be made."""

    def __init__(self) -> None:
        raise ValueError("no luck")


class Deadly:
    """Takes its process along when it is made, and counts how often."""

    def __init__(self, tally: str) -> None:
        with Path(tally).open("a") as file:
            file.write("x")
        sys.stderr.write("cannot allocate luck\n")
        sys.stderr.flush()
        os._exit(7)
