"""Memory-mapped arrays on disk, shared by any number of processes."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from trailnotes.errors import ConfigError, RunError
from trailnotes.storage.files import parse_json, write_text_atomic

META = "meta.json"
T = TypeVar("T")


class MappedFolder:
    """Folder of files, mapped read-only, with a ``meta.json`` that lists their sizes.

    Nobody writes into such a folder: a new one replaces it.
    """

    def __init__(self, folder: Path, kind: str, version: int, facts: Mapping[str, type]) -> None:
        self.folder = folder
        self.meta = read_meta(folder, kind, version, facts)
        for name, expected in self.meta["files"].items():
            path = folder / name
            size = path.stat().st_size if path.exists() else 0
            if size != expected:
                hint = self.meta.get("again", "make it again")
                raise ConfigError(f"{path} has {size} bytes instead of {expected}: it was cut or replaced; {hint}")
        self._handles: list[int] = []
        self._closing = weakref.finalize(self, _close, self._handles)

    def open_file(self, name: str) -> int:
        """Open one file and return its descriptor, which `close` or the last reference to this object closes."""
        handle = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC)
        self._handles.append(handle)
        return handle

    def map_array(self, name: str) -> NDArray[Any]:
        mapped = np.load(self.folder / name, mmap_mode="r", allow_pickle=False)
        return np.asarray(mapped)  # a plain view: slices of numpy's own class for maps cost several times as much

    def close(self) -> None:
        """Close the files, once or more; arrays that were handed out stay valid."""
        self._closing()


class NamedFolder:
    """Content of a `MappedFolder`, whose ``meta.json`` has its name."""

    def __init__(self, files: MappedFolder) -> None:
        self._files, self.folder, self.meta = files, files.folder, files.meta
        self.name = str(files.meta["name"])  # hash of the content: equal names mean equal content


def _close(handles: list[int]) -> None:
    for handle in handles:
        os.close(handle)


def read_meta(folder: Path, kind: str, version: int, facts: Mapping[str, type]) -> dict[str, Any]:
    try:
        meta = parse_json((folder / META).read_bytes())
    except OSError as error:
        raise ConfigError(f"{folder} is no {kind}: it has no {META} ({error.strerror})") from error
    except ValueError:
        meta = None
    if not isinstance(meta, dict) or meta.get("kind") != kind or not isinstance(meta.get("files"), dict):
        raise ConfigError(f"{folder} is no {kind}: {META} says something else")
    hint = meta.get("again", "make it again")
    if meta.get("version") != version:
        reads = f"and this Trailnotes reads version {version}"
        raise ConfigError(f"{folder} is a {kind} of version {meta.get('version')}, {reads}: {hint}")
    for name, wanted in facts.items():
        if not isinstance(meta.get(name), wanted):
            raise ConfigError(f"{folder / META} is damaged, it does not tell {name!r}: {hint}")
    return meta


def write_meta(folder: Path, kind: str, version: int, names: list[str], facts: Mapping[str, Any]) -> None:
    """Write the ``meta.json`` of a finished folder: the sizes of the files `names`, and `facts`."""
    sizes = {name: (folder / name).stat().st_size for name in names}
    meta = {"kind": kind, "version": version, "files": sizes, **facts}
    write_text_atomic(folder / META, json.dumps(meta, ensure_ascii=False, indent=1) + "\n")


@contextmanager
def write_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `folder` when the block ends without an error."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already: name another folder, or delete it first")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
            made = Path(temporary) / "made"  # with the usual permissions: those of `temporary` are for its owner alone
            made.mkdir()
            yield made
            made.replace(folder)
    except (OSError, sqlite3.OperationalError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunError(f"cannot write {folder} ({why}): free space or name another folder") from error


def open_or_write(folder: Path, write: Callable[[Mapping[str, str]], T], open_written: Callable[[Path], T]) -> T:
    """Open a folder of the user's cache, or write it; several processes may, and the first to finish gives its own.

    `write` gets a fact of ``meta.json``: what to do about a damaged folder.
    """
    try:
        if not folder.is_dir():
            return write({"again": "delete its folder, and it is made again"})
    except (ConfigError, RunError, OSError) as error:
        if isinstance(error, OSError) or not folder.is_dir():  # else another process was faster
            raise RunError(f"{error} (set TRAILNOTES_CACHE to another folder)") from error
    return open_written(folder)


def allocate(path: Path, dtype: Any, length: int) -> np.memmap[Any, Any]:
    """Create a ``.npy`` file of `length` items, mapped for writing.

    It reserves its space now: a disk that fills up under a map would end the process without a word.
    """
    array: np.memmap[Any, Any] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(length,))
    with path.open("rb+") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array
