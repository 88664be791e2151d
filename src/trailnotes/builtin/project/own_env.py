"""An environment of one's own: a lock with 64 settings and three tries, more than luck can do in one episode.

Each try is answered by "higher" or "lower". A note of the last answers makes the next episode easier. Use it by
``env.name = "own_env:Lock"`` in a config (started in this folder), or offer it from a package of yours::

    [project.entry-points."trailnotes.envs"]
    lock = "own_env:Lock"
"""

from __future__ import annotations

import random

from trailnotes.envs import check_env
from trailnotes.errors import EnvError
from trailnotes.types import Observation, Task


class Lock:
    """Guess the number that opens the lock."""

    def __init__(self, settings: int = 64, tries: int = 3) -> None:
        self._settings, self._tries = settings, tries
        self._left = 0

    @staticmethod
    def tasks(split: str) -> list[Task]:
        """Five locks to learn from and five of each other split; a task is all that an episode depends on."""
        start = {"train": 0, "validation": 100, "test": 200}[split]
        return [Task(f"lock-{seed}", "own_env:Lock", seed, split) for seed in range(start, start + 5)]

    def reset(self, task: Task) -> Observation:
        """Close the lock again."""
        self._secret = random.Random(task.seed).randrange(self._settings)
        self._left = self._tries
        return Observation(f"the dial goes to {self._settings - 1}.", instruction=f"open {task.id}: say a number")

    def step(self, action: str) -> Observation:
        """Try one setting."""
        if self._left == 0:
            raise EnvError("the episode is over: call reset first")
        self._left -= 1
        try:
            guess = int(action)
        except ValueError:
            return Observation("that is no number.", truncated=self._left == 0)
        if guess == self._secret:
            self._left = 0
            return Observation("it opens.", reward=1.0, terminated=True, success=True, score=1.0)
        return Observation("higher." if guess < self._secret else "lower.", truncated=self._left == 0)

    def close(self) -> None:
        """Nothing to free."""


if __name__ == "__main__":
    check_env(Lock)
    print("The lock keeps the contract.")
