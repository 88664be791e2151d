"""The watchdog: nobody is waited for without a limit, and who it is that lets a run wait is said before it is reached.

Ray itself notices what is dead. This is for what lives and does not answer: an actor that hangs, is stopped, or finds
no place.
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
    """One wait, from now on.

    Args:
        who: gives the name of who is waited for, and where it is.
        limit: seconds.
        setting: the key that the limit comes from.
        then: what happens at the limit.
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
        """At half of the limit, say once who is waited for.

        Raises:
            ClusterError: the limit is over.
        """
        passed = time.monotonic() - self._since
        if passed >= self.limit:
            raise ClusterError(self.timeout_message)
        if passed >= self.limit / 2 and not self._said:
            self._said = True
            logger.warning(
                "waiting for %s since %s: after %s = %g s %s", self.who(), self._began, self._setting, self.limit,
                self._then,
            )  # fmt: skip

    @property
    def timeout_message(self) -> str:
        """One line, once the limit is over."""
        return f"{self.who()} did not answer within {self._setting} = {self.limit:g} s (asked at {self._began})"


def get_result(answer: Any, patience: Deadline) -> Any:
    """What the reference `answer` of Ray comes to; as `ray.get`, but never without end.

    Raises:
        ClusterError: the limit is over, or the actor is lost.
        TrailnotesError: what the actor raised.
    """
    import ray

    while not ray.wait([answer], timeout=patience.seconds_left)[0]:
        patience.check()
    with _translate_errors(patience):
        return ray.get(answer)


async def await_result(answer: Any, patience: Deadline) -> Any:
    """`get_result` for an event loop, which goes on meanwhile."""
    future = asyncio.wrap_future(answer.future())
    while not future.done():
        await asyncio.wait({future}, timeout=patience.seconds_left)
        if not future.done():
            patience.check()
    with _translate_errors(patience):
        return future.result()


@contextlib.contextmanager
def _translate_errors(patience: Deadline) -> Iterator[None]:
    """Ray's account of an error of ours, or of a lost actor, as the one line that matters."""
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
    """Why Ray lost an actor: a few words out of its account of many lines."""
    text = " ".join(str(error).split())
    found = re.search(r" because ((?:[^.]|\.\S)+)", text)
    return found[1] if found else text[:200]
