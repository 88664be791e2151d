"""Iterations one after the other, or the next ones played while earlier ones are learned from (`rollout.ahead`)."""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections import deque
from typing import TYPE_CHECKING, Any

from trailnotes.errors import RunError
from trailnotes.training.iteration import Iteration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from trailnotes.training.training import TrainingRun

    Method = Callable[[Iteration], Awaitable[None]]
    UnderWay = deque[tuple[Iteration, asyncio.Task[None]]]  # the oldest first


async def train_by(method: Method, run: TrainingRun) -> None:
    """Carry out iterations until `run.finished`.

    With `rollout.ahead = k` iteration i is played as soon as i - 1 has been played and i - 1 - k has ended: at most k
    updates come between the weights that play it and those that learn from it. When the run is finished, the iteration
    whose turn it is comes to its end. What was played beyond that is dropped, before it has changed anything: a resumed
    run plays it again.

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
    under_way: UnderWay = deque()
    number, newest = run.count.iteration, None
    try:
        while True:
            if len(under_way) > ahead:
                await _ended(*under_way[0])
                if under_way.popleft()[0].is_last:
                    return
            if run.finished:
                break
            iteration = Iteration(run, number, before=newest)
            if not await _unless_over(_start(iteration), under_way):
                return
            under_way.append((iteration, asyncio.ensure_future(method(iteration))))
            if not await _unless_over(iteration.played.wait(), under_way):
                return
            number, newest = number + 1, iteration
        for each in under_way:  # whose turn it is changes the run already: it comes to its end
            await _ended(*each)
            if each[0].is_last:
                return
    finally:
        for _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)


async def _start(iteration: Iteration) -> None:
    """Whoever plays has the policy for itself, until it learns."""
    await iteration.run.start_playing()
    iteration.starts()


async def _unless_over(awaited: Coroutine[Any, Any, object], under_way: UnderWay) -> bool:
    """Wait for it, or until the last iteration has ended: False. What an iteration raises meanwhile is raised."""
    waiting = asyncio.ensure_future(awaited)
    try:
        while True:
            await asyncio.wait({waiting, *(t for _, t in under_way if not t.done())}, return_when=FIRST_COMPLETED)
            for iteration, task in under_way:
                if task.done():
                    await _ended(iteration, task)
            if waiting.done():
                waiting.result()  # raises what it raised
                return True
            if any(iteration.is_last for iteration, _ in under_way):
                return False
    finally:
        waiting.cancel()


async def _ended(iteration: Iteration, task: asyncio.Task[None]) -> None:
    await task
    _refuse_unended(iteration)


def _refuse_unended(iteration: Iteration) -> None:
    if not iteration.ended.is_set():
        raise RunError("the method returned before its iteration had ended: finish with `await iteration.end(...)`")
