"""Simulated Waymarks that pay for words instead of for winning; light, since each worker process imports them.

A model of random weights wins no game, so all returns would be equal and nothing would be learned. Here the CRC of an
action is its worth, and the same for everybody.
"""

from __future__ import annotations

import contextlib
import os
import signal
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from trailnotes.envs.waymarks.env import WaymarksSimulator
from trailnotes.types import Observation


class Paid(WaymarksSimulator):
    """Waymarks with a reward of 0, 1/4, 1/2 or 3/4 for each action."""

    def step(self, action: str) -> Observation:
        return replace(super().step(action), reward=zlib.crc32(action.encode()) % 4 / 4)


class Mortal(Paid):
    """`Paid` whose process dies in mid-episode, once for each of the files that `grave` does not hold yet."""

    def __init__(self, grave: str, deaths: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self._graves = [Path(grave) / str(number) for number in range(deaths)]

    def step(self, action: str) -> Observation:
        for grave in self._graves:
            with contextlib.suppress(FileExistsError):
                grave.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class WrongType(Paid):
    """Returns a tuple, as Gymnasium does."""

    def step(self, action: str) -> Any:
        return super().step(action), 0.0


class Raising(Paid):
    def step(self, action: str) -> Observation:
        raise KeyError("lamp")  # the line of the traceback
