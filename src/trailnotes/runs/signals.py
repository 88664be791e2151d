"""Signals that ask a process to end: SIGINT (Ctrl-C), SIGTERM, and SIGHUP, which a closed terminal sends."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING

from trailnotes.errors import Interrupted

if TYPE_CHECKING:
    import asyncio


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


@contextlib.contextmanager
def wait_for_signal() -> Iterator[asyncio.Future[int]]:
    """Yield a future of the first signal's number; the loop handles it, so that no code of a request can lose it.

    The second interrupts at once. In another thread than the main one no signal is handled.
    """
    import asyncio  # not at every start of the command line

    loop = asyncio.get_running_loop()
    received: asyncio.Future[int] = loop.create_future()
    with request_stop_on_signals(lambda: loop.call_soon_threadsafe(received.set_result, numbers[0])) as numbers:
        yield received


def run_until_signal(server: Coroutine[object, object, None]) -> None:
    """Run a server in a loop of its own until it ends. No signal interrupts one of its tasks in the middle.

    Raises:
        Interrupted: a signal came first; it has cancelled the server.
    """
    import asyncio

    async def run() -> None:
        with wait_for_signal() as received:
            serving = asyncio.ensure_future(server)
            await asyncio.wait({serving, received}, return_when=asyncio.FIRST_COMPLETED)
            if received.done():
                raise Interrupted(received.result())
            serving.result()

    asyncio.run(run())


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
