"""The memory file under several real processes, and under kill -9."""

from __future__ import annotations

import multiprocessing
import random
import time
from contextlib import closing, suppress
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

import memory_workers
from trailnotes.config.schema import MemoryConfig
from trailnotes.memory import open_memory
from trailnotes.memory.exchange import open_store


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trailnotes.memory", "memory_workers"])
    return context


def test_a_kill_in_mid_write_loses_at_most_the_write_in_flight(tmp_path: Path, processes: ForkServerContext) -> None:
    path, rng, kept = tmp_path / "memory.db", random.Random(0), 0
    open_memory(path, MemoryConfig()).close()
    for round_number in range(50):
        confirmed, confirm = processes.Pipe(duplex=False)
        with confirmed:
            worker = processes.Process(target=memory_workers.write_forever, args=(path, round_number, confirm))
            worker.start()
            confirm.close()
            confirmed.recv_bytes()  # it is writing
            time.sleep(rng.uniform(0, 0.02))
            worker.kill()
            worker.join()
            num_confirmed = 1
            with suppress(EOFError):  # the other end is gone
                while True:
                    confirmed.recv_bytes()
                    num_confirmed += 1

        with closing(open_store(path)) as store:  # checks the integrity of the file
            found = [tip for tip in store.load_tips() if tip.text.startswith(f"round {round_number} ")]
            total, gone, stats = len(store.load_tips()), store.load_retirements(), store.stats()
            assert stats["enabled"] == store.size("task") == min(total, memory_workers.CAPACITY)
            assert len(gone) == stats["retired"] == total - stats["enabled"], "room was made with the write, or not"
        num_batches, rest = divmod(len(found), memory_workers.BATCH)
        assert rest == 0, "half a transaction is visible"
        assert num_batches - num_confirmed in {0, 1}
        kept += len(found)
        assert total == kept, "a write of an earlier round was lost"


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path, processes: ForkServerContext) -> None:
    path, num_writers, num_tips = tmp_path / "memory.db", 4, 15
    start = processes.Barrier(num_writers)  # they also open the file, which is not there yet, at the same time
    writers = [
        processes.Process(target=memory_workers.write_some, args=(path, writer, num_tips, start))
        for writer in range(num_writers)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * num_writers

    with closing(open_store(path)) as store:
        texts = {(tip.namespace, tip.text) for tip in store.load_tips()}
        (shared,) = store.load_tips("shared")
        sequence = store.sequence
    expected = {(f"task {n % 2}", f"writer {w} tip {n}") for w in range(num_writers) for n in range(num_tips)}
    assert texts == expected | {("shared", "everybody says this")}
    assert shared.support == num_writers * num_tips, "a repeat was lost between reading and writing"
    assert shared.score == num_writers - 1
    assert sequence == 2 * num_writers * num_tips
