"""An event loop for one coroutine, in a program and in a notebook alike."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a new event loop, and return its result.

    As `asyncio.run`, but also inside a running loop, as in a notebook's cell, which waits meanwhile. The new loop runs
    in this very thread, since only the main thread may handle signals, and Ctrl-C must reach the coroutine.
    """
    with _suspend_outer_loop(), asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.get_loop().set_exception_handler(_handle_loop_exception)
        return runner.run(coroutine)


def _handle_loop_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # The caller of the loop reports interrupts.
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


@contextmanager
def _suspend_outer_loop() -> Iterator[None]:
    """Suspend this thread's event loop, its task and its handler of SIGINT, which would cancel a task of that loop."""
    outer = asyncio._get_running_loop()  # noqa: SLF001 (the public function raises where there is none)
    if outer is None:
        yield
        return
    task, handler = asyncio.current_task(), signal.getsignal(signal.SIGINT)
    handles = threading.current_thread() is threading.main_thread() and callable(handler)  # else it is ignored
    if task is not None:
        asyncio.tasks._leave_task(outer, task)  # noqa: SLF001
    asyncio.events._set_running_loop(None)  # noqa: SLF001
    if handles:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if handles:
            signal.signal(signal.SIGINT, handler)
        asyncio.events._set_running_loop(outer)  # noqa: SLF001
        if task is not None:
            asyncio.tasks._enter_task(outer, task)  # noqa: SLF001
