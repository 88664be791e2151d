"""The other ranks as rank 0 knows them: whether they live, what they said before they failed, and their end.

What a rank is besides (a process of this machine, see `processes`, or an actor of a cluster) is told by a `RankHandle`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

GRACE = 5.0  # seconds that a follower has to say why it fails, and to end when it is told to
STUCK_SECONDS = 60.0  # seconds after a follower's death in which rank 0 should have noticed by itself
MAX_TEXT_CHARS = 300  # characters that are told of what a rank said
LOOPBACK = "lo"  # the interface that nobody beyond this machine can reach


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rank is of no more use."""

    text: str  # one line
    of_others: bool = False  # it lost a connection, or waited in vain: somebody else's trouble


class RankHandle(Protocol):
    """One rank above 0."""

    @property
    def where(self) -> str:
        """What follows its number in messages, such as " on node 10.0.0.7"; "" for this machine."""
        ...

    def failure(self) -> Failure | None:
        """What it said before it failed, or how it ended; None while it lives in silence."""
        ...

    def end(self, seconds: float) -> None:
        """Wait so long for it to end by itself; kill it if it does not."""
        ...


class RankMonitor:
    """Ranks 1 and up, which have been started.

    Args:
        ranks: by their numbers.
        seconds: that one may wait for another.
        store: gives what all meet over, as rank 0 sees it.
        interface: of the network, that rank 0 and the others talk through.
        tidy: called once all have ended.
    """

    def __init__(
        self,
        ranks: Mapping[int, RankHandle],
        seconds: float,
        store: Callable[[], Store],
        *,
        interface: str = LOOPBACK,
        tidy: Callable[[], None] = lambda: None,
    ) -> None:
        self.ranks, self.seconds, self.store, self.interface = dict(ranks), seconds, store, interface
        self._tidy = tidy
        self._busy = self._ended = False
        threading.Thread(target=self._watch, name="learner-watch", daemon=True).start()

    def describe_failure(self, error: BaseException) -> str:
        """One line that says which rank stopped the others, and why. Waits until those that can have said it.

        Args:
            error: as rank 0 met it: its own, or that of a connection that somebody else's end closed.
        """
        own = make_failure(error)
        if not own.of_others:
            return describe_rank_0_failure(error)
        until = time.monotonic() + GRACE
        while time.monotonic() < until and self._list_silent_ranks():
            time.sleep(0.05)
        for rank, follower in self.ranks.items():
            if (failure := follower.failure()) and not failure.of_others:
                return self._format_ranks([rank], failure.text)
        if silent := self._list_silent_ranks():
            hangs = f"hangs: nothing from it for learner.timeout = {self.seconds:g} s ({own.text})"
            return self._format_ranks(silent, hangs)
        return describe_rank_0_failure(error)

    def set_busy(self, busy: bool) -> None:
        """Say whether rank 0 is waiting for the others."""
        self._busy = busy

    def end(self, *, at_once: bool = False) -> None:
        """Wait for all to end, or, where they do not or need not, kill them."""
        if self._ended:
            return
        self._ended = True
        until = time.monotonic() + (0.0 if at_once else GRACE)
        for follower in self.ranks.values():
            follower.end(max(0.0, until - time.monotonic()))
        self._tidy()

    def _list_silent_ranks(self) -> list[int]:
        """The ranks that live and have said nothing."""
        return [rank for rank, follower in self.ranks.items() if follower.failure() is None]

    def _format_ranks(self, ranks: list[int], what: str) -> str:
        names = ", ".join(f"{rank}{self.ranks[rank].where}" for rank in ranks)
        return f"rank {names} of the learner {what}"

    def _watch(self) -> None:
        """End this process where it waits on a device for one that died: nccl alone would not tell it for long."""
        died: float | None = None
        while not self._ended:
            time.sleep(0.5)
            lost = {rank: failure for rank, one in self.ranks.items() if self._busy and (failure := one.failure())}
            died = (died or time.monotonic()) if lost else None
            if died and time.monotonic() - died > STUCK_SECONDS and not self._ended:
                causes = [self._format_ranks([rank], failure.text) for rank, failure in lost.items()]
                sys.stderr.write("trailnotes: " + "; ".join(causes) + "; resume from the last checkpoint\n")
                sys.stderr.flush()
                os._exit(1)


def describe_rank_0_failure(error: BaseException) -> str:
    """One line about an error of rank 0, where nothing is known of the others."""
    own = make_failure(error)
    if own.of_others:
        return f"the processes of the learner lost each other: {own.text}"
    return f"rank 0 of the learner failed: {own.text}"


def make_failure(error: BaseException) -> Failure:
    """What a rank has to say of an error that ends it."""
    text = " ".join(str(error).split())
    return Failure(
        f"{type(error).__name__}: {truncate_text(text)}" if text else type(error).__name__,
        is_communication_error(error),
    )


def is_communication_error(error: BaseException) -> bool:
    """Whether an error came out of what the ranks exchange, and so of somebody else's trouble.

    By the place that raised it, not by its words: gloo's are plain runtime errors. It is torch's distributed package,
    whatever of torch that package may call in its turn.
    """
    import torch

    if isinstance(error, torch.distributed.DistError):
        return True
    if type(error) is not RuntimeError:  # torch's own, such as for memory that is out, are kinds of it
        return False
    home = Path(torch.__file__).parent
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    innermost = [*takewhile(lambda file: file.is_relative_to(home), reversed(files))]
    return any(file.is_relative_to(home / "distributed") for file in innermost)


def to_json(failure: Failure) -> str:
    """For another process."""
    return json.dumps(asdict(failure))


def from_json(text: str) -> Failure:
    """What `to_json` wrote."""
    return Failure(**json.loads(text))


def truncate_text(text: str) -> str:
    """The beginning of a text, if it is long."""
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 3] + "..."
