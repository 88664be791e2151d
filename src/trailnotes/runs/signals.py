"""Signals that ask a process to end: SIGINT (Ctrl-C), SIGTERM, and SIGHUP, which a closed terminal sends."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence

from trailnotes.errors import Interrupted


@contextlib.contextmanager
def interrupt_on_signals(numbers: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGHUP)) -> Iterator[None]:
    """Interrupt this process on these signals as on Ctrl-C, so that it cleans up."""
    with _install_handlers(numbers, _raise_interrupted):
        yield


@contextlib.contextmanager
def explain_interrupt(kept: str) -> Iterator[None]:
    """Add `kept` to the interrupts of the block."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if str(stop):
            raise
        raise Interrupted(getattr(stop, "number", signal.SIGINT), kept) from stop


@contextlib.contextmanager
def request_stop_on_signals(ask: Callable[[], object]) -> Iterator[list[int]]:
    """Call `ask` on the first signal, whose number is then in the list; the second raises `Interrupted` at once.

    Plain handlers, not those of the event loop, which does not run while the learner computes.
    """
    received: list[int] = []

    def first(number: int, frame: object) -> None:
        if received:
            _raise_interrupted(number, frame)
        received.append(number)
        ask()

    with _install_handlers((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), first):
        yield received


async def run_until_signal(server: Coroutine[object, object, None]) -> None:
    """Await a server until it ends; raise `Interrupted` where a signal comes first, and at once at the second.

    The loop handles the first, so that no task loses it or is cut in the middle. Only the main thread handles any.
    """
    import asyncio  # not at every start of the command line

    loop = asyncio.get_running_loop()
    serving, stop = loop.create_task(server), loop.create_future()
    try:
        with request_stop_on_signals(lambda: loop.call_soon_threadsafe(stop.set_result, None)) as received:
            await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
        if received:
            raise Interrupted(received[0])
        serving.result()
    finally:
        serving.cancel()


@contextlib.contextmanager
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
