"""What an environment is: three methods and a list of tasks."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from trailnotes.types import Observation, Task


@runtime_checkable
class Env(Protocol):
    """A text environment. Synchronous, single-threaded, one episode at a time; it may be reset any number of times.

    A class that a user registers is constructed with the options of the config's ``[env.options]`` as keyword
    arguments. Besides these methods it has a static or class method ``tasks(split, **options) -> list[Task]``: the
    same list in every process, forever.
    """

    def reset(self, task: Task) -> Observation:
        """Start `task`; the observation carries the `instruction`. The same task gives the same text."""
        ...

    def step(self, action: str) -> Observation:
        """Take one action. Any string is allowed; after the end it raises `EnvError`."""
        ...

    def close(self) -> None:
        """Free everything. Twice is fine."""
        ...
