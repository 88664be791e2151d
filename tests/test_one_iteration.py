"""How many files a reader must open to follow one iteration of EMPO2."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import trailnotes
from tinyrun import tiny_config, train_in_process
from trailnotes.config import methods

SRC = str(Path(trailnotes.__file__).parent)
WORKER = {"envs/workers/main.py"}  # entered in processes of its own


def is_importing(frame: FrameType | None) -> bool:
    """Whether the call is made by the body of a module of ours, or is that body."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(SRC):
            return True
        frame = frame.f_back
    return False


def files_of_one_iteration(start: Path, directory: Path, num_workers: int) -> set[str]:
    """Files in which a function is called while the method runs, in this process and all of its threads.

    What a first import runs is no part of it: which imports are first depends on the tests before this one.
    """
    from trailnotes.algorithms.empo2 import METHOD, empo2

    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(SRC) and name[len(SRC) + 1 :] not in entered and not is_importing(frame):
            entered.add(name.removeprefix(f"{SRC}/"))

    async def watched(run: Any) -> None:
        sys.setprofile(note)
        threading.setprofile(note)
        try:
            await empo2(run)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(methods.loaded, "empo2", replace(METHOD, home=watched))
        config = tiny_config(start, train={"iterations": 1}, env={"num_workers": num_workers})
        train_in_process(config, directory)
    return entered


def test_one_iteration_opens_few_files(start_model: Path, tmp_path: Path) -> None:
    files_of_one_iteration(start_model, tmp_path / "first", 0)  # fills caches, which other tests may have done or not
    inside = files_of_one_iteration(start_model, tmp_path / "inside", 0)
    workers = files_of_one_iteration(start_model, tmp_path / "workers", 1)
    entered = {name for name in inside | workers | WORKER if name != "moved.py"}  # asked by any import
    assert {"algorithms/empo2.py", "runs/training.py", "learner/losses.py"} <= entered
    assert len(entered) <= 43, "\n".join(sorted(entered))
