"""An environment that a worker process starts in no time, for tests that play many episodes."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import zlib
from pathlib import Path

from trailnotes.types import Observation, Task

_INSTANCES = itertools.count()


class Echo:
    """Repeats the action and pays by it; every third word ends the episode.

    `kills` is a folder: the first two steps kill their process and leave a file there.
    """

    def __init__(self, *, kills: str = "") -> None:
        self._kills = [Path(kills) / name for name in ("first", "second")] if kills else []
        self._info = {"process": os.getpid(), "instance": next(_INSTANCES)}

    @staticmethod
    def tasks(split: str) -> list[Task]:
        return [Task(f"{split}/{letter}", "echo_env:Echo", split=split) for letter in "abc"]

    def reset(self, task: Task) -> Observation:
        return Observation("hello ?", instruction=task.id, info=self._info)

    def step(self, action: str) -> Observation:
        for path in self._kills:
            with contextlib.suppress(FileExistsError):
                path.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        worth = zlib.crc32(action.encode())
        return Observation(f"{action} ?", reward=worth % 4 / 4, terminated=worth % 3 == 0, info=self._info)

    def close(self) -> None: ...
