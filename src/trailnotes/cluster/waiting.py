"""Time limits for answers of actors that live and do not answer: they hang, are stopped, or find no place.

Ray itself notices what is dead. At half of the limit a message names what the run waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from typing import TYPE_CHECKING, Any

from trailnotes.errors import ClusterError, TrailnotesError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)


class Deadline:
    """Time limit of one wait, in seconds from now on.

    `who` gives the name and place of what is waited for. `setting` is the key of the limit, `then` what happens at it.
    """

    def __init__(self, who: Callable[[], str], limit: float, setting: str, then: str = "the run stops") -> None:
        self.who, self.limit = who, limit
        self._setting, self._then = setting, then
        self._since = time.monotonic()
        self._began = time.strftime("%H:%M:%S")
        self._said = False

    @property
    def seconds_left(self) -> float:
        """Seconds until `check` is worth calling again: to half of the limit, then to its end."""
        passed = time.monotonic() - self._since
        return max(0.0, (self.limit if self._said else self.limit / 2) - passed)

    def check(self) -> None:
        """Warn once at half of the limit; raise `ClusterError` when it is over."""
        passed = time.monotonic() - self._since
        if passed >= self.limit:
            late = f"did not answer within {self._setting} = {self.limit:g} s (asked at {self._began})"
            raise ClusterError(f"{self.who()} {late}")
        if passed >= self.limit / 2 and not self._said:
            self._said = True
            logger.warning(
                "waiting for %s since %s: after %s = %g s %s", self.who(), self._began, self._setting, self.limit,
                self._then,
            )  # fmt: skip


def get_result(answer: Any, patience: Deadline) -> Any:
    """Get the value of the reference `answer` of Ray, as `ray.get`, within a time limit.

    Raises:
        ClusterError: the limit is over, or the actor is lost.
        TrailnotesError: raised by the actor.
    """
    import ray

    while not ray.wait([answer], timeout=patience.seconds_left)[0]:
        patience.check()
    with _translate_errors(patience):
        return ray.get(answer)


async def await_result(answer: Any, patience: Deadline) -> Any:
    """Await the value of a reference in an event loop, as `get_result`."""
    future = asyncio.wrap_future(answer.future())
    while not future.done():
        await asyncio.wait({future}, timeout=patience.seconds_left)
        if not future.done():
            patience.check()
    with _translate_errors(patience):
        return future.result()


@contextlib.contextmanager
def _translate_errors(patience: Deadline) -> Iterator[None]:
    """Raise our own error in Ray's wrapper, or the loss of an actor, as the one line that matters."""
    import ray

    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TrailnotesError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise ClusterError(f"{patience.who()} was lost: {extract_cause(error)}") from error


def extract_cause(error: Exception) -> str:
    """Extract why Ray lost an actor from its long message."""
    text = " ".join(str(error).split())
    found = re.search(r" because ((?:[^.]|\.\S)+)", text)
    return found[1] if found else text[:200]
