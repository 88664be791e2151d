"""An event loop for one coroutine, in a program and a notebook alike; signals that ask a process to end.

These are SIGINT (Ctrl-C), SIGTERM, and SIGHUP, which a closed terminal sends.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from trailnotes.errors import Interrupted

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
    try:
        outer = asyncio.get_running_loop()
    except RuntimeError:
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


# -- signals


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Interrupt this process on SIGTERM and SIGHUP as on Ctrl-C, so that it cleans up."""
    with _install_handlers((signal.SIGTERM, signal.SIGHUP), _raise_interrupted):
        yield


@contextmanager
def explain_interrupt(kept: str) -> Iterator[None]:
    """Add `kept` to the interrupts of the block."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if str(stop):
            raise
        raise Interrupted(getattr(stop, "number", signal.SIGINT), kept) from stop


@contextmanager
def request_stop_on_signals(ask: Callable[[], None]) -> Iterator[list[int]]:
    """Call `ask` on the first signal, whose number is then in the list; the second interrupts at once.

    Plain handlers, not those of the event loop, which does not run while the learner computes.

    Raises:
        Interrupted: a second one came.
    """
    received: list[int] = []

    def first(number: int, frame: object) -> None:
        if received:
            _raise_interrupted(number, frame)
        received.append(number)
        ask()

    with _install_handlers((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), first):
        yield received


@contextmanager
def _install_handlers(numbers: Sequence[signal.Signals], handler: Callable[[int, object], None]) -> Iterator[None]:
    """Install handlers in the main thread alone; under nohup SIGHUP stays ignored."""
    wanted = [n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        wanted = []
    before = {number: signal.signal(number, handler) for number in wanted}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _raise_interrupted(number: int, _frame: object) -> None:
    raise Interrupted(number)
