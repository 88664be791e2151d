"""An episode of ScienceWorld that survives the death of its simulator: the actions are replayed in a new one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from trailnotes.errors import EnvError
from trailnotes_worlds.scienceworld.client import LOOK, ScienceWorldClient, SimulatorLostError, StepResult

T = TypeVar("T")


class FaultTolerantGame:
    """Plays one episode after another in one simulator, and replaces it when it dies, hangs or was interrupted.

    The simulator is deterministic, so the new one must give every answer of the old one again, byte for byte. A
    forked child that inherits a game continues in a simulator of its own.
    """

    def __init__(self, java: str = "", timeout: float = 30.0, max_restarts: int = 2) -> None:
        """Prepare; the simulator is started by the first episode.

        Args:
            java: as for `find_java`.
            timeout: seconds after which a simulator that does not answer is given up.
            max_restarts: new simulators in one episode; after that it fails.
        """
        self._java, self._timeout, self._max_restarts = java, timeout, max_restarts
        self._client: ScienceWorldClient | None = None
        self._setup: tuple[str, int, str] | None = None
        self._played: list[tuple[str, StepResult]] = []
        self._listings: Counter[int] = Counter()  # times that the admissible actions were listed, by actions played
        self.restarts = 0  # in this episode

    def begin(self, name: str, variation: int, simplifications: str) -> StepResult:
        """Begin an episode; the answer to its first look.

        Raises:
            ConfigError: Java cannot be started at all.
            MissingExtraError: the extra is not installed.
            EnvError: the simulator was lost too often, or refuses.
        """
        self._setup, self._played, self.restarts = (name, variation, simplifications), [], 0
        self._listings.clear()

        def first_look(client: ScienceWorldClient) -> StepResult:
            client.load(name, variation, simplifications)
            return client.step(LOOK)

        result = self.query(first_look)
        self._played.append((LOOK, result))
        return result

    def step(self, action: str) -> StepResult:
        """Take one action.

        Raises:
            EnvError: the simulator was lost too often, or a new one gave other answers than the lost one.
        """
        result = self.query(lambda client: client.step(action))
        self._played.append((action, result))
        return result

    def valid_actions(self) -> tuple[str, ...]:
        """All actions that can be taken now. Raises as `step` does.

        If an object has several names, the simulator draws one each time, so a replay must ask just as often.
        """
        actions = self.query(lambda client: client.valid_actions())
        self._listings[len(self._played)] += 1
        return actions

    def query(self, question: Callable[[ScienceWorldClient], T]) -> T:
        """Ask something that changes nothing, for example ``Client.inventory``. Raises as `step` does."""
        while True:
            try:
                return question(self._get_client())
            except SimulatorLostError as error:
                if self.restarts >= self._max_restarts:
                    where = f"in {self.restarts + 1} simulators, after {len(self._played)} actions"
                    raise EnvError(f"{error} ({where} of {self._setup})") from error
                self.restarts += 1

    def close(self) -> None:
        """End the simulator. Twice is fine."""
        if self._client:
            self._client.close()
        self._client = None
        self._setup = None

    def _get_client(self) -> ScienceWorldClient:
        """The simulator; if none is alive, a new one that has been brought to where the episode is."""
        if self._client is None or not self._client.alive:
            if self._setup is None:
                raise EnvError("no episode has begun: call reset before step")
            self._client = ScienceWorldClient(self._java, self._timeout)
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
