"""Checkpoints: whole or absent, whatever happens while they are written."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trailnotes.errors import RunError
from trailnotes.storage import checkpoint

CONTENT = {"weights.bin": b"w" * 1000, "model/config.json": b"{}", "empty": b""}


def writer(mark: str = "") -> Callable[[Path], None]:
    def write(path: Path) -> None:
        (path / "model").mkdir()
        for name, data in CONTENT.items():
            (path / name).write_bytes(data + mark.encode())

    return write


def names(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir())


def test_a_saved_checkpoint_is_whole(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 10, writer(), meta={"iteration": 10, "best": None})
    assert path == tmp_path / "step-000010" == checkpoint.find_latest(tmp_path)
    assert {name: (path / name).read_bytes() for name in CONTENT} == CONTENT
    assert checkpoint.load_meta(path) == {"iteration": 10, "best": None}
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["step"] == 10
    assert manifest["files"]["weights.bin"]["size"] == 1000
    assert set(manifest["files"]) == {*CONTENT, "meta.json"}
    assert names(tmp_path) == ["step-000010"]


DAMAGE = {
    "weights.bin has 400 bytes instead of 1000": ("weights.bin", b"w" * 400),
    "weights.bin differs": ("weights.bin", b"w" * 999 + b"v"),
    "model/config.json is missing": ("model/config.json", None),
    "manifest.json cannot be read: JSON": ("manifest.json", b'{"format": 1, "fi'),
    "manifest.json cannot be read: File": ("manifest.json", None),
    "manifest.json cannot be read: Type": ("manifest.json", b"[]"),
    "format 2, this version reads 1": ("manifest.json", b'{"format": 2, "files": {}}'),
}


def damage(path: Path, problem: str) -> None:
    name, data = DAMAGE[problem]
    (path / name).unlink()
    if data is not None:
        (path / name).write_bytes(data)


@pytest.mark.parametrize("problem", DAMAGE)
def test_a_damaged_checkpoint_is_named_with_the_last_good_one(problem: str, tmp_path: Path) -> None:
    good, bad = (checkpoint.save(tmp_path, step, writer()) for step in (1, 2))
    damage(bad, problem)
    with pytest.raises(RunError) as caught:
        checkpoint.find_latest(tmp_path)
    assert all(text in str(caught.value) for text in (str(bad), problem, str(good)))
    assert checkpoint.find_latest(tmp_path, skip_damaged=True) == good
    checkpoint.save(tmp_path, 3, writer())
    assert checkpoint.find_latest(tmp_path) == tmp_path / "step-000003"  # older damage does not matter


@pytest.mark.parametrize("again", [False, True])
def test_an_error_while_writing_changes_nothing(again: bool, tmp_path: Path) -> None:
    kept = checkpoint.save(tmp_path, 1, writer("old"))

    def fails(path: Path) -> None:
        writer()(path)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, 1 if again else 2, fails)
    assert names(tmp_path) == ["step-000001"]
    assert checkpoint.find_latest(tmp_path) == kept
    assert (kept / "empty").read_text() == "old"


def save_and_die(root: Path, die_at: int) -> None:
    """In a process of its own: save and prune, killed at the `die_at`-th call that touches the disk."""
    calls = itertools.count(1)

    def mortal(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            if next(calls) == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return called

    for name in ("fsync", "mkdir", "rename", "replace", "unlink", "rmdir"):  # every way in which the module does it
        setattr(os, name, mortal(getattr(os, name)))
    for name in ("write_bytes", "rename", "replace", "mkdir"):
        setattr(Path, name, mortal(getattr(Path, name)))
    checkpoint.save(root, 2, writer(), {"step": 2})
    checkpoint.prune(root, keep_last=1)


def test_a_kill_at_any_write_leaves_whole_checkpoints_alone(tmp_path: Path) -> None:
    for step in (0, 1):
        checkpoint.save(tmp_path, step, lambda p: (p / "old").write_text("old") and None)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "trailnotes.storage.checkpoint"])
    for die_at in range(1, 100):
        process = context.Process(target=save_and_die, args=(tmp_path, die_at))
        process.start()
        process.join(60)
        assert all(not c.problems for c in checkpoint.scan(tmp_path))
        newest = checkpoint.find_latest(tmp_path)
        assert newest.name in {"step-000001", "step-000002"}
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert die_at > 15
    assert names(tmp_path) == ["step-000002"]  # what the killed ones left behind is gone


def test_pruning_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    paths = [checkpoint.save(tmp_path, step, writer()) for step in range(7)]
    checkpoint.mark_best(tmp_path, paths[1], 0.75)
    damage(paths[0], "weights.bin differs")
    gone = checkpoint.prune(tmp_path, keep_last=2)
    assert gone == [paths[2], paths[3], paths[4]]
    assert [p for p in paths if p.exists()] == [paths[0], paths[1], paths[5], paths[6]]  # 0 is evidence
    assert checkpoint.prune(tmp_path, keep_last=2) == []


STATE = ("state.json", "state.bin", "parts")


def test_a_stripped_checkpoint_is_whole_without_its_parts(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        writer()(path)
        (path / "state.json").write_text("{}")
        (path / "parts").mkdir()
        (path / "parts" / "0").write_text("0")

    path, other = (checkpoint.save(tmp_path, step, write, {"step": step}) for step in (1, 2))
    assert checkpoint.strip(path, STATE)
    assert not [name for name in STATE if (path / name).exists()]
    assert checkpoint.verify(path) == []
    assert checkpoint.load_meta(path) == {"step": 1}
    assert {p.name for p in other.iterdir()} == {p.name for p in path.iterdir()} | {"state.json", "parts"}
    assert checkpoint.strip(path, STATE), "twice is fine"


def test_the_best_is_remembered(tmp_path: Path) -> None:
    assert checkpoint.load_best(tmp_path) is None
    path = checkpoint.save(tmp_path, 1, writer())
    checkpoint.mark_best(tmp_path, path, 0.5)
    assert checkpoint.load_best(tmp_path) == path
    assert checkpoint.find_latest(tmp_path) == path
    (tmp_path / "best.json").write_text('{"checkpoint": "step-000009", "score": 1}')
    assert checkpoint.load_best(tmp_path) is None
    (tmp_path / "best.json").write_text("{")
    with pytest.raises(RunError, match=r"best\.json"):
        checkpoint.load_best(tmp_path)


def test_a_locked_checkpoint_outlives_pruning(tmp_path: Path) -> None:
    first, second, third = (checkpoint.save(tmp_path, step, writer()) for step in (1, 2, 3))
    with checkpoint.hold_checkpoint(first) as there, checkpoint.hold_checkpoint(first) as again:
        assert there
        assert again
        assert checkpoint.prune(tmp_path, keep_last=1) == [second]
        assert not checkpoint.strip(first, STATE)
        assert not checkpoint.verify(first)
    assert checkpoint.prune(tmp_path, keep_last=1) == [first]
    assert names(tmp_path) == [third.name]
