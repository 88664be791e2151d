"""Trackers of our own for tests: one that writes down what it is shown, and those that fail in every way."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trailnotes.storage.files import append_jsonl, read_jsonl
from trailnotes_lab.tracking.base import About, Table


class Recorder:
    """Writes a line for each call into the run directory."""

    id = "known"

    def __init__(self, about: About) -> None:
        self._path = about.directory / f"{type(self).__name__}.jsonl"
        self._say("made", about.id, about.name, dict(about.settings))

    def curves(self, iteration: int, values: Mapping[str, float]) -> None:
        self._say("curves", iteration, dict(values))

    def text(self, iteration: int, name: str, text: str) -> None:
        self._say("text", iteration, name, text)

    def table(self, name: str, table: Table) -> None:
        self._say("table", name, table.columns, table.rows)

    def close(self, *, finished: bool) -> None:
        self._say("close", finished)

    def _say(self, *words: Any) -> None:
        append_jsonl(self._path, [{"call": [*words]}])


class Forgetful(Recorder):
    id = ""


class FailsAtOnce(Recorder):
    def __init__(self, about: About) -> None:
        raise ValueError("no key in the environment: log in first")


class FailsLater(Recorder):
    def curves(self, iteration: int, values: Mapping[str, float]) -> None:
        if iteration:
            raise ConnectionError(f"no route to https://me:{os.environ['ODD_TOKEN']}@tracker.example")
        super().curves(iteration, values)


class Dies(Recorder):
    def text(self, iteration: int, name: str, text: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Prints(Recorder):
    """What packages print is nobody's business, whatever they do to their streams."""

    def curves(self, iteration: int, values: Mapping[str, float]) -> None:
        print("*" * 100_000, flush=True)
        os.write(2, b"!" * 100_000)
        super().curves(iteration, values)


class Waits(Recorder):
    """Says so once nobody counts the seconds of a call any more."""

    def curves(self, iteration: int, values: Mapping[str, float]) -> None:
        super().curves(iteration, values)
        if iteration == 2:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while signal.getitimer(signal.ITIMER_REAL)[0]:
            time.sleep(0.01)
        self._say("rests")


class Hangs(Recorder):
    def curves(self, iteration: int, values: Mapping[str, float]) -> None:
        super().curves(iteration, values)
        while True:
            time.sleep(100)


def calls(directory: Path, kind: str, tracker: str = "Recorder") -> list[list[Any]]:
    """What a tracker was shown, without the first word."""
    return [line["call"][1:] for line in read_jsonl(directory / f"{tracker}.jsonl") if line["call"][0] == kind]


def damage(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"id": 3, "iterations": "many", "more": None}))
