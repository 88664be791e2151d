"""Checkpoints that are either whole or absent.

``root/step-000010/`` is written under another name, hashed, flushed to disk and then renamed, so a killed process
leaves the last good one. ``manifest.json`` holds size and SHA-256 of every file, so a reader notices later damage.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trailnotes.errors import RunError
from trailnotes.storage.files import fsync_path, parse_json, write_text_atomic

if TYPE_CHECKING:
    import numpy.typing as npt

Arrays = Mapping[str, "npt.NDArray[Any]"]  # for a safetensors file
ComponentState = tuple[Arrays, dict[str, Any]]  # of one part of a run; what is no array is for a JSON file

FORMAT = 1
MANIFEST = "manifest.json"
META = "meta.json"
BEST = "best.json"
_DIRECTORY_NAME = re.compile(r"step-(\d{6,})")
_TEMP_PREFIX = ".aside-"  # prefix of directories being made or deleted; nothing reads them


class Checkpoint(NamedTuple):
    path: Path
    step: int
    problems: tuple[str, ...]  # what is wrong with it; () if it is whole


def save(root: Path, step: int, writer: Callable[[Path], None], meta: Mapping[str, Any] | None = None) -> Path:
    """Write the checkpoint of `step` as ``root/step-000010``, and return its directory.

    One of the same step is replaced; a kill exactly between the two renames would lose both, but no other. `writer`
    fills an empty directory; `meta` is JSON-able. After an `OSError` nothing has changed.
    """
    path = root / f"step-{step:06d}"
    for leftover in root.glob(f"{_TEMP_PREFIX}*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with atomic_directory(path) as draft:
        writer(draft)
        write_json(draft / META, dict(meta or {}))
        files = {
            file.relative_to(draft).as_posix(): {"size": file.stat().st_size, "sha256": _hash_file(file)}
            for file in sorted(draft.rglob("*")) if file.is_file()
        }  # fmt: skip
        write_json(draft / MANIFEST, {"format": FORMAT, "step": step, "files": files})
    return path


def is_checkpoint(path: Path) -> bool:
    """Tell whether a directory is laid out as a checkpoint, whole or damaged (see `verify`)."""
    return (path / "model").is_dir() and (path / META).is_file()


def load_meta(path: Path) -> dict[str, Any]:
    return read_json(path / META)


def scan(root: Path, contents: bool = True) -> list[Checkpoint]:
    """List all checkpoints below `root`, oldest first, each verified (see `verify`); deleted ones are left out."""
    found = [Checkpoint(path, step, tuple(verify(path, contents))) for step, path in _list_directories(root)]
    return [checkpoint for checkpoint in found if checkpoint.path.is_dir()]


def find_latest(root: Path, skip_damaged: bool = False) -> Path | None:
    """Return the newest whole checkpoint, or None; raises `RunError` for a newer damaged one unless `skip_damaged`."""
    damaged: list[Checkpoint] = []
    newest: Path | None = None
    for checkpoint in scan(root):
        newest, damaged = (newest, [*damaged, checkpoint]) if checkpoint.problems else (checkpoint.path, [])
    if damaged and not skip_damaged:
        named = "; ".join(f"{c.path} is damaged ({c.problems[0]})" for c in damaged)
        if newest is None:
            raise RunError(f"{named}. No whole checkpoint is left: start a new run directory")
        raise RunError(f"{named}. The last good one is {newest}: delete the damaged one to resume from there")
    return newest


def hold_checkpoint(path: Path) -> AbstractContextManager[bool]:
    """Keep `prune` from deleting a checkpoint inside the block, by a shared lock; yields whether it exists."""
    return _try_lock(path / MANIFEST, fcntl.LOCK_SH)


@contextmanager
def hold_latest(root: Path) -> Iterator[Path | None]:
    """Hold `find_latest` (which may raise) inside the block, choosing again where the chosen one was deleted."""
    while (path := find_latest(root)) is not None or _list_directories(root):
        if path is not None:
            with hold_checkpoint(path) as there:
                if there:
                    yield path
                    return
    yield None


def verify(path: Path, contents: bool = True) -> list[str]:
    """List the problems of a checkpoint; without `contents` only presence and size of the files count."""
    try:
        manifest = parse_json(text := (path / MANIFEST).read_bytes(), "drop")
        expected = {str(name): (int(f["size"]), str(f["sha256"])) for name, f in manifest["files"].items()}
        version = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{MANIFEST} cannot be read: {type(error).__name__}: {error}"]
    if version != FORMAT:
        return [f"{MANIFEST} has format {version}, this version reads {FORMAT}"]
    problems = []
    for name, (size, sha256) in expected.items():
        try:
            if (actual := (path / name).stat().st_size) != size:
                problems.append(f"{name} has {actual} bytes instead of {size}")
            elif contents and _hash_file(path / name) != sha256:
                problems.append(f"{name} differs from what was saved")
        except FileNotFoundError:
            problems.append(f"{name} is missing")
    if problems:
        with suppress(OSError):  # it is gone
            if (path / MANIFEST).read_bytes() != text:  # stripped meanwhile
                return verify(path, contents)
    return problems


def mark_best(root: Path, path: Path, score: float) -> None:
    write_json(root / BEST, {"checkpoint": path.name, "score": score})


def load_best(root: Path) -> Path | None:
    path = root / read_json(root / BEST)["checkpoint"] if (root / BEST).is_file() else None
    return path if path is not None and path.is_dir() else None


def prune(root: Path, keep_last: int) -> list[Path]:
    """Delete all but the newest `keep_last` checkpoints and the best one; damaged and locked ones stay, uncounted."""
    marked, removed = load_best(root), []
    whole = [c.path for c in scan(root, contents=False) if not c.problems]
    for path in [path for path in whole[:-keep_last] if path != marked and not verify(path)]:
        with _try_lock(path / MANIFEST, fcntl.LOCK_EX) as free:
            if free:
                _remove(path)
                removed.append(path)
    return removed


def strip(path: Path, names: Sequence[str]) -> bool:
    """Delete files and directories of a checkpoint, in order, after its manifest has forgotten them.

    So it is whole at any moment, and a later call deletes what a kill left. Returns False if a reader locks it.
    """
    with _try_lock(path / MANIFEST, fcntl.LOCK_EX) as free:
        if free:
            manifest = read_json(path / MANIFEST)
            left = {name: about for name, about in manifest["files"].items() if Path(name).parts[0] not in names}
            write_json(path / MANIFEST, manifest | {"files": left})
            for place in (path / name for name in names):
                shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    return free


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield an empty directory that becomes `path`, replacing what was there, when the block ends without an error.

    All files are flushed to disk before the rename. On an error nothing changes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f"{_TEMP_PREFIX}*-{path.name}"):
        shutil.rmtree(leftover, ignore_errors=True)
    draft = path.parent / f"{_TEMP_PREFIX}new-{path.name}"
    draft.mkdir()
    try:
        yield draft
        for child in sorted(draft.rglob("*"), reverse=True):
            fsync_path(child)
        fsync_path(draft)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    if path.exists():
        _remove(path, then=lambda: draft.rename(path))
    else:
        draft.rename(path)
    fsync_path(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically; raises ValueError on a number that JSON cannot express."""
    write_text_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read the object that `write_json` wrote; raises `RunError` if it is damaged."""
    try:
        return dict(parse_json(path.read_bytes()))
    except (OSError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): name another checkpoint, or start a new run") from error


def _list_directories(root: Path) -> list[tuple[int, Path]]:
    if not root.is_dir():
        return []
    named = ((_DIRECTORY_NAME.fullmatch(path.name), path) for path in root.iterdir())
    return sorted((int(match[1]), path) for match, path in named if match and path.is_dir())


@contextmanager
def _try_lock(file: Path, operation: int) -> Iterator[bool]:
    """Yield whether `file` still exists and could be locked at once; the block's end frees it."""
    try:
        writable = operation == fcntl.LOCK_EX and os.access(file, os.W_OK)  # some file systems ask for that
        descriptor = os.open(file, os.O_RDWR if writable else os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        except OSError:  # a file system without locks: as if there were no other process
            free = True
        else:
            free = file.exists() and os.path.samestat(os.fstat(descriptor), file.stat())
        yield free
    finally:
        os.close(descriptor)


def _remove(path: Path, then: Callable[[], Any] = lambda: None) -> None:
    """Rename `path` out of sight, do `then`, and only now delete, so that half a directory is never visible."""
    hidden = path.parent / f"{_TEMP_PREFIX}old-{path.name}"
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    then()
    shutil.rmtree(hidden, ignore_errors=True)


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
