"""Iterations in sequence, or asynchronously: the next ones sample while the learner works on earlier ones."""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections import deque
from typing import TYPE_CHECKING, Any

from trailnotes.errors import RunError
from trailnotes.training.iteration import Iteration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from trailnotes.training.run import TrainingRun

    Method = Callable[[Iteration], Awaitable[None]]
    PendingIterations = deque[tuple[Iteration, asyncio.Task[None]]]  # the oldest first


async def run_method(method: Method, run: TrainingRun) -> None:
    """Carry out iterations until the run is finished.

    With `rollout.max_async_iterations = k` iteration i plays as soon as i - 1 has been played and i - 1 - k has ended:
    at most k updates lie between the weights that play it and those that learn from it. When the run is finished, the
    current iteration comes to its end. Iterations beyond it are dropped before they change anything:
    a resumed run plays them again.

    Raises:
        RunError: a method that does not carry an iteration to its end.
    """
    if run.config.rollout.max_async_iterations:
        await _run_overlapped(method, run, run.config.rollout.max_async_iterations)
        return
    while not run.is_finished:
        iteration = Iteration(run, run.count.iteration)
        await _start_iteration(iteration)
        await method(iteration)
        _require_ended(iteration)


async def _run_overlapped(method: Method, run: TrainingRun, ahead: int) -> None:
    under_way: PendingIterations = deque()
    number, newest = run.count.iteration, None
    try:
        while True:
            if len(under_way) > ahead:
                await _await_iteration(*under_way[0])
                if under_way.popleft()[0].is_last:
                    return
            if run.is_finished:
                break
            iteration = Iteration(run, number, before=newest)
            if not await _wait_unless_finished(_start_iteration(iteration), under_way):
                return
            under_way.append((iteration, asyncio.ensure_future(method(iteration))))
            if not await _wait_unless_finished(iteration.played.wait(), under_way):
                return
            number, newest = number + 1, iteration
        for each in under_way:  # whose turn it is changes the run already: it comes to its end
            await _await_iteration(*each)
            if each[0].is_last:
                return
    finally:
        for _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)


async def _start_iteration(iteration: Iteration) -> None:
    await iteration.run.weights.acquire()
    iteration.begin()


async def _wait_unless_finished(awaited: Coroutine[Any, Any, object], under_way: PendingIterations) -> bool:
    """Wait for `awaited`; False if the last iteration has ended first. Errors of iterations are raised."""
    waiting = asyncio.ensure_future(awaited)
    try:
        while True:
            await asyncio.wait({waiting, *(t for _, t in under_way if not t.done())}, return_when=FIRST_COMPLETED)
            for iteration, task in under_way:
                if task.done():
                    await _await_iteration(iteration, task)
            if waiting.done():
                waiting.result()  # raises what it raised
                return True
            if any(iteration.is_last for iteration, _ in under_way):
                return False
    finally:
        waiting.cancel()


async def _await_iteration(iteration: Iteration, task: asyncio.Task[None]) -> None:
    await task
    _require_ended(iteration)


def _require_ended(iteration: Iteration) -> None:
    if not iteration.ended.is_set():
        raise RunError("the method returned before its iteration had ended: finish with `await iteration.end(...)`")
