"""Trackers of our own for tests: one that writes down what it is shown, and those that fail in every way."""

from __future__ import annotations

import json
import os
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


class Exits(Recorder):
    def text(self, iteration: int, name: str, text: str) -> None:
        raise SystemExit("gone")


class FailsLater(Recorder):
    def curves(self, iteration: int, values: Mapping[str, float]) -> None:
        if iteration:
            raise ConnectionError(f"no route to https://me:{os.environ['ODD_TOKEN']}@tracker.example")
        super().curves(iteration, values)


def calls(directory: Path, kind: str, tracker: str = "Recorder") -> list[list[Any]]:
    """What a tracker was shown, without the first word."""
    return [line["call"][1:] for line in read_jsonl(directory / f"{tracker}.jsonl") if line["call"][0] == kind]


def damage(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"id": 3, "iterations": "many", "more": None}))
