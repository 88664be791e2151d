from __future__ import annotations

import signal
import threading

import pytest

from trailnotes.errors import Interrupted
from trailnotes.runs.signals import interrupt_on_signals, request_stop_on_signals


@pytest.mark.usefixtures("heeds_hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_ends_a_process_as_ctrl_c_does(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt) as caught, interrupt_on_signals():
        signal.raise_signal(number)
    assert isinstance(caught.value, Interrupted)
    assert caught.value.number == number
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("heeds_hangup")
def test_the_first_signal_asks_and_any_second_one_interrupts() -> None:
    asked: list[int] = []
    with request_stop_on_signals(lambda: asked.append(1)) as received:
        signal.raise_signal(signal.SIGHUP)
        assert (asked, received) == ([1], [signal.SIGHUP])
        with pytest.raises(Interrupted) as caught:
            signal.raise_signal(signal.SIGINT)
    assert (caught.value.number, received) == (signal.SIGINT, [signal.SIGHUP])


def test_what_nohup_asks_for_is_kept() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt_on_signals(), request_stop_on_signals(lambda: None) as received:
            signal.raise_signal(signal.SIGHUP)
        assert not received
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_leave_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def look() -> None:
        with interrupt_on_signals(), request_stop_on_signals(lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    seen: list[object] = []
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]
