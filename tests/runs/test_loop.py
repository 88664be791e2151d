"""`run_to_end` in a program and in a notebook, and signals that ask a process to end."""

from __future__ import annotations

import asyncio
import contextvars
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import trailnotes
from small import small_config
from trailnotes.errors import Interrupted
from trailnotes.runs.loop import run_to_end
from trailnotes.runs.signals import interrupt_on_signals, request_stop_on_signals, run_until_signal

WORD = contextvars.ContextVar("WORD", default="")


def in_notebook(call: Callable[[], Any]) -> Any:
    """`call` in a task of a running loop, which must be as it was afterwards."""

    async def cell() -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            return call()
        finally:
            assert (asyncio.get_running_loop(), asyncio.current_task()) == (loop, task)
            await asyncio.sleep(0)  # the loop goes on
            ticked = loop.create_future()
            loop.call_soon(ticked.set_result, True)
            assert await ticked

    return asyncio.run(cell())


@pytest.fixture(params=[lambda call: call(), in_notebook], ids=["in_program", "in_notebook"])
def place(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_run_to_end_returns_the_result_in_context(place: Any) -> None:
    async def word() -> str:
        text = [WORD.get()]
        await asyncio.sleep(0)
        assert asyncio.current_task() is not None
        return text[0]

    def call() -> str:
        WORD.set("tip")
        return run_to_end(word())

    assert contextvars.copy_context().run(place, call) == "tip"


async def fail() -> None:
    raise LookupError("inner")


def test_run_to_end_raises_and_nests(place: Any) -> None:
    async def outer() -> str:
        with pytest.raises(LookupError, match="inner"):
            run_to_end(fail())
        await asyncio.sleep(0)
        return "went on"

    assert place(lambda: run_to_end(outer())) == "went on"
    with pytest.raises(LookupError) as caught:
        place(lambda: run_to_end(fail()))
    assert caught.value.__context__ is None, "no traceback of another error comes first"


def test_ctrl_c_cancels_the_coroutine(place: Any) -> None:
    ended = []

    async def wait() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(2)
            ended.append("as if nothing had been")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        place(lambda: run_to_end(wait()))
    assert ended == ["cancelled"]
    assert signal.getsignal(signal.SIGINT) is before


def test_the_public_functions_work_in_a_notebook(start_model: Path, tmp_path: Path) -> None:
    config = small_config(model={"path": str(start_model)}, train={"iterations": 1}, eval={"num_tasks": 1})
    run, out = tmp_path / "run", tmp_path / "adapt"
    last = in_notebook(lambda: trailnotes.train(config, run))
    assert last == run / "checkpoints/step-000001/model"
    assert in_notebook(lambda: trailnotes.evaluate(config, run)).num_episodes == 1
    assert len(in_notebook(lambda: trailnotes.adapt(config, run, trials=1, out=out))) == 2


# -- signals


@pytest.mark.usefixtures("heeds_hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_interrupts(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt) as caught, interrupt_on_signals():
        signal.raise_signal(number)
    assert isinstance(caught.value, Interrupted)
    assert caught.value.number == number
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_cancels_a_server_outside_its_tasks(number: signal.Signals) -> None:
    ended = []

    async def work() -> None:
        signal.raise_signal(number)
        ended.append("the task it came in")

    async def serve() -> None:
        try:
            async with anyio.create_task_group() as group:  # which raises an exception group for its tasks' interrupts
                group.start_soon(work)
                await anyio.sleep_forever()
        finally:
            ended.append("the server")

    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught:
        run_to_end(run_until_signal(serve()))
    assert (caught.value.number, ended) == (number, ["the task it came in", "the server"])
    assert signal.getsignal(number) is before


def test_a_server_that_ends_by_itself() -> None:
    run_to_end(run_until_signal(asyncio.sleep(0)))
    with pytest.raises(LookupError, match="inner"):
        run_to_end(run_until_signal(fail()))


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt_on_signals(), request_stop_on_signals(lambda: None) as received:
            signal.raise_signal(signal.SIGHUP)
        assert not received
    finally:
        signal.signal(signal.SIGHUP, before)
