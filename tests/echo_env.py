"""An environment that a worker process starts in no time, for tests that play many episodes."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import zlib
from pathlib import Path

from trailnotes.errors import EnvError
from trailnotes.types import Observation, Task

_INSTANCES = itertools.count()


class Echo:
    """Repeats what was said, and ends with every third word. What it pays is the same for everybody.

    Args:
        fails: whether every step does.
        grave: a folder; two steps, whosoever they are, kill the process and leave a file there.
    """

    def __init__(self, *, fails: bool = False, grave: str = "") -> None:
        self._fails = fails
        self._graves = [Path(grave) / name for name in ("first", "second")] if grave else []
        self._info = {"process": os.getpid(), "instance": next(_INSTANCES)}

    @staticmethod
    def tasks(split: str) -> list[Task]:
        return [Task(f"{split}/{letter}", "echo_env:Echo", split=split) for letter in "abc"]

    def reset(self, task: Task) -> Observation:
        return Observation("hello ?", instruction=task.id, info=self._info)

    def step(self, action: str) -> Observation:
        if self._fails:
            raise EnvError("the echo_env flew away")
        for grave in self._graves:
            with contextlib.suppress(FileExistsError):
                grave.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        worth = zlib.crc32(action.encode())
        return Observation(f"{action} ?", reward=worth % 4 / 4, terminated=worth % 3 == 0, info=self._info)

    def close(self) -> None:
        pass
