"""Episodes of ScienceWorld that survive the death of the simulator: a new one replays the actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from trailnotes.errors import EnvError
from trailnotes_worlds.java.gateway import SimulatorLostError
from trailnotes_worlds.scienceworld.client import LOOK, ScienceWorldClient, StepResult

T = TypeVar("T")


class FaultTolerantGame:
    """Game that replaces a simulator that died, hangs or was interrupted.

    The simulator is deterministic, so the new one must repeat every answer of the old one, byte for byte. A forked
    child that inherits a game continues in a simulator of its own.
    """

    def __init__(self, java: str = "", timeout: float = 30.0, max_restarts: int = 2, *, shared: bool = False) -> None:
        self._java, self._timeout, self._max_restarts = java, timeout, max_restarts
        self._client: ScienceWorldClient | None = None
        self._shared = shared
        self._setup: tuple[str, int, str] | None = None
        self._played: list[tuple[str, StepResult]] = []
        self._listings: Counter[int] = Counter()  # actions played -> number of listings of the admissible actions
        self.restarts = 0  # in this episode

    def begin(self, name: str, variation: int, simplifications: str) -> StepResult:
        """Begin an episode, and return the answer to its first look."""
        self._setup, self._played, self.restarts = (name, variation, simplifications), [], 0
        self._listings.clear()

        def first_look(client: ScienceWorldClient) -> StepResult:
            client.load(name, variation, simplifications)
            return client.step(LOOK)

        result = self.query(first_look)
        self._played.append((LOOK, result))
        return result

    def step(self, action: str) -> StepResult:
        """Take one action."""
        result = self.query(lambda client: client.step(action))
        self._played.append((action, result))
        return result

    def valid_actions(self) -> tuple[str, ...]:
        """List all admissible actions. Raises as `step` does.

        The simulator draws a name for an object with several at each call, so a replay must repeat the calls, and no
        other game may draw: the first call moves the game to a process of its own.
        """
        if self._shared and self._client:
            self._client.close()
            self._client = None
        self._shared = False
        actions = self.query(lambda client: client.valid_actions())
        self._listings[len(self._played)] += 1
        return actions

    def query(self, question: Callable[[ScienceWorldClient], T]) -> T:
        """Ask a question without side effects, such as ``ScienceWorldClient.inventory``. Raises as `step` does."""
        while True:
            try:
                return question(self._get_client())
            except SimulatorLostError as error:
                if self.restarts >= self._max_restarts:
                    where = f"in {self.restarts + 1} simulators, after {len(self._played)} actions"
                    raise EnvError(f"{error} ({where} of {self._setup})") from error
                self.restarts += 1

    def close(self) -> None:
        if self._client:
            self._client.close()
        self._client = None
        self._setup = None

    def _get_client(self) -> ScienceWorldClient:
        if self._client is None or not self._client.alive:
            if self._setup is None:
                raise EnvError("no episode has begun: call reset before step")
            self._client = ScienceWorldClient(self._java, self._timeout, shared=self._shared)
            self._replay(self._client)
        return self._client

    def _replay(self, client: ScienceWorldClient) -> None:
        assert self._setup
        if self._played:
            client.load(*self._setup)
        for place, (action, before) in enumerate(self._played):
            now = client.step(action)
            if now != before:
                self.close()
                raise EnvError(
                    f"a new simulator differs from the lost one at action {place} ({action!r}) of {self._setup}: "
                    f"{now.text[:200]!r} is not {before.text[:200]!r}"
                )
            for _ in range(self._listings[place + 1]):
                client.valid_actions()
