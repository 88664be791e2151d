"""Iterations one after the other, or the next ones played while earlier ones are learned from (`rollout.ahead`)."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from trailnotes.errors import RunError
from trailnotes.runs.iteration import Iteration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trailnotes.runs.training import TrainingRun

    Method = Callable[[Iteration], Awaitable[None]]


async def train_by(method: Method, run: TrainingRun) -> None:
    """Carry out iterations until `run.finished`.

    With `rollout.ahead = k` iteration i is played as soon as i - 1 has been played and i - 1 - k has ended: at most k
    updates come between the weights that play it and those that learn from it. What has been played when the run is
    finished, and not learned from, is dropped; so is what a resumed run would have to know of it: it plays it again.

    Raises:
        RunError: a method that does not carry an iteration to its end.
    """
    if run.config.rollout.ahead:
        await _side_by_side(method, run, run.config.rollout.ahead)
        return
    while not run.finished:
        iteration = Iteration(run, run.count.iteration)
        await _start(iteration)
        await method(iteration)
        _refuse_unended(iteration)


async def _side_by_side(method: Method, run: TrainingRun, ahead: int) -> None:
    under_way: deque[tuple[Iteration, asyncio.Task[None]]] = deque()
    number, newest = run.count.iteration, None
    try:
        while True:
            while len(under_way) > ahead:
                oldest, task = under_way[0]
                await task
                _refuse_unended(oldest)
                under_way.popleft()
            if run.finished:
                return
            iteration = Iteration(run, number, before=newest)
            await _start(iteration)
            task = asyncio.ensure_future(method(iteration))
            under_way.append((iteration, task))
            await _until_played(iteration, task)
            number, newest = number + 1, iteration
    finally:
        for _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)


async def _start(iteration: Iteration) -> None:
    """Whoever plays has the policy for itself, until it learns."""
    await iteration.run.start_playing()
    iteration.starts()


async def _until_played(iteration: Iteration, task: asyncio.Task[None]) -> None:
    played = asyncio.ensure_future(iteration.played.wait())
    try:
        await asyncio.wait({played, task}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        played.cancel()
    if task.done():
        task.result()  # raises what it raised


def _refuse_unended(iteration: Iteration) -> None:
    if not iteration.ended.is_set():
        raise RunError("the method returned before its iteration had ended: finish with `await iteration.end(...)`")
