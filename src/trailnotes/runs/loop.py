"""An event loop from here to the end of one coroutine, in a program and in a notebook alike."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """What the coroutine returns or raises, from an event loop of its own.

    As `asyncio.run`, but it may also be called where a loop runs already, as in every cell of a notebook. That loop
    stands still meanwhile, as for any call that takes its time. The new loop runs in this very thread, since only the
    main thread may handle signals, and Ctrl-C must reach the coroutine.
    """
    with _suspend_outer_loop(), asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.get_loop().set_exception_handler(_handle_loop_exception)
        return runner.run(coroutine)


def _handle_loop_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A signal that ended the loop is told by whoever called it, not once more by each task that it met."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


@contextmanager
def _suspend_outer_loop() -> Iterator[None]:
    """Inside the block this thread runs no event loop, and no task of one.

    The four calls are those by which any event loop and its tasks say that they run or rest.
    """
    try:
        outer = asyncio.get_running_loop()
    except RuntimeError:
        yield
        return
    task = asyncio.current_task()
    if task is not None:
        asyncio.tasks._leave_task(outer, task)  # noqa: SLF001
    asyncio.events._set_running_loop(None)  # noqa: SLF001
    try:
        with _reset_sigint_handler():
            yield
    finally:
        asyncio.events._set_running_loop(outer)  # noqa: SLF001
        if task is not None:
            asyncio.tasks._enter_task(outer, task)  # noqa: SLF001


@contextmanager
def _reset_sigint_handler() -> Iterator[None]:
    """The outer loop's handler would cancel a task of that loop, which stands still; the new loop sets its own."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):  # or it is ignored
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
