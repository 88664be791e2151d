"""Memory-mapped arrays on disk, shared by any number of processes."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trailnotes.errors import ConfigError, RunError
from trailnotes.storage.files import parse_json, write_text_atomic

META = "meta.json"


class MappedFolder:
    """Folder of files, mapped read-only, with a ``meta.json`` that lists their sizes.

    Every file stays open: `require_unchanged` notices at little cost that one was cut or written over in place, which
    reading the map alone would answer with a bus error or with nonsense. A file that was replaced by another of its
    name does no harm, since the map keeps the old one. `close`, or the last reference, closes the files.

    Args:
        folder: the folder to map.
        kind: kind that its ``meta.json`` must name.
        version: version that it must have.
        facts: name -> type of each further entry that ``meta.json`` must have.

    Raises:
        ConfigError: a file is missing or has another size, or `meta.json` has another kind or version.
    """

    def __init__(self, folder: Path, kind: str, version: int, facts: Mapping[str, type]) -> None:
        self.folder = folder
        self.meta = read_meta(folder, kind, version, facts)
        self._open: dict[Path, tuple[int, tuple[int, int]]] = {}  # path -> (file descriptor, (size, time of change))
        self._closing = weakref.finalize(self, _close, self._open)

    def open_file(self, name: str) -> int:
        """Return the descriptor of one file, and open it if need be."""
        self._require_open()
        path = self.folder / name
        if path not in self._open:
            try:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise ConfigError(f"{path} cannot be read ({error.strerror}): {get_rebuild_hint(self.meta)}") from error
            stamp = _get_stamp(handle)
            self._open[path] = handle, stamp
            if (size := stamp[0]) != (expected := self.meta["files"].get(name)):
                hint = get_rebuild_hint(self.meta)
                raise ConfigError(f"{path} has {size} bytes instead of {expected}: it was cut or replaced; {hint}")
        return self._open[path][0]

    def map_array(self, name: str) -> NDArray[Any]:
        """Map the array of one ``.npy`` file."""
        handle = self.open_file(name)
        try:
            mapped = _map_npy(handle)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.folder / name} is damaged ({error}): {get_rebuild_hint(self.meta)}") from error
        return np.asarray(mapped)  # a plain view: slices of numpy's own class for maps cost several times as much

    def require_unchanged(self) -> None:
        """Validate that no file has changed since it was opened.

        Raises:
            ConfigError: one has changed.
            ValueError: the files are closed.
        """
        self._require_open()
        for path, (handle, stamp) in self._open.items():
            if _get_stamp(handle) != stamp:
                hint = get_rebuild_hint(self.meta)
                raise ConfigError(f"{path} was changed while it was in use: {hint}, and start again")

    def close(self) -> None:
        """Close the files, once or more; arrays that were handed out stay valid."""
        self._closing()

    def _require_open(self) -> None:
        if not self._closing.alive:
            raise ValueError(f"{self.folder} is closed: open it again")


class NamedFolder:
    """Content of a `MappedFolder`, whose ``meta.json`` has its name."""

    def __init__(self, files: MappedFolder) -> None:
        self._files = files

    @property
    def name(self) -> str:
        """Hash of the content: equal names mean equal content."""
        return str(self._files.meta["name"])

    @property
    def folder(self) -> Path:
        """Folder of the files."""
        return self._files.folder

    @property
    def meta(self) -> Mapping[str, Any]:
        """Content of ``meta.json``."""
        return self._files.meta


def _close(opened: dict[Path, tuple[int, tuple[int, int]]]) -> None:
    for handle, _ in opened.values():
        os.close(handle)
    opened.clear()


def _map_npy(handle: int) -> np.memmap[Any, Any]:
    """Map an open ``.npy`` file. `numpy.load` maps by path, where another file may be by now."""
    with open(handle, "rb", closefd=False) as file:
        file.seek(0)
        major, _ = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, in_columns, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError("it holds objects")
        return np.memmap(file, dtype, "r", file.tell(), shape, "F" if in_columns else "C")


def read_meta(folder: Path, kind: str, version: int, facts: Mapping[str, type]) -> dict[str, Any]:
    """Read the ``meta.json`` of a folder.

    Raises:
        ConfigError: there is none, it has another kind or version, or lacks one of `facts`.
    """
    path = folder / META
    try:
        meta = parse_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{folder} is no {kind}: it has no {META} ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {get_rebuild_hint({})}") from error
    if not isinstance(meta, dict) or meta.get("kind") != kind or not isinstance(meta.get("files"), dict):
        raise ConfigError(f"{folder} is no {kind}: {META} says something else")
    if meta.get("version") != version:
        raise ConfigError(
            f"{folder} is a {kind} of version {meta.get('version')}, and this Trailnotes reads version {version}: "
            f"{get_rebuild_hint(meta)}"
        )
    for name, wanted in facts.items():
        if not isinstance(meta.get(name), wanted):
            raise ConfigError(f"{path} is damaged, it does not tell {name!r}: {get_rebuild_hint(meta)}")
    return meta


def write_meta(folder: Path, kind: str, version: int, names: list[str], facts: Mapping[str, Any]) -> None:
    """Write the ``meta.json`` of a finished folder: the sizes of the files `names`, and `facts`."""
    sizes = {name: (folder / name).stat().st_size for name in names}
    meta = {"kind": kind, "version": version, "files": sizes, **facts}
    write_text_atomic(folder / META, json.dumps(meta, ensure_ascii=False, indent=1) + "\n")


def require_free(folder: Path) -> None:
    """Raise `ConfigError` if a folder is not empty, or is the working directory, which must not be replaced."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already: name another folder, or delete it first")
    if folder.exists() and folder.samefile("."):
        raise ConfigError(f"{folder} is the working directory: name a new folder in it")


@contextmanager
def write_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `folder` when the block ends without an error.

    Raises:
        ConfigError: as `require_free`.
        RunError: the disk is full or the place not writable.
    """
    require_free(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as aside:
            made = Path(aside) / "made"  # with the usual permissions: those of `aside` are for its owner alone
            made.mkdir()
            yield made
            made.replace(folder)
    except (OSError, sqlite3.OperationalError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunError(f"cannot write {folder} ({why}): free space or name another folder") from error


def allocate(path: Path, dtype: Any, length: int) -> np.memmap[Any, Any]:
    """Create a ``.npy`` file of `length` items, mapped for writing.

    It reserves its space now: a disk that fills up under a map would end the process without a word.

    Raises:
        RunError: the disk is full.
    """
    array: np.memmap[Any, Any] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(length,))
    with path.open("rb+") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            fix = "free space, then run the same command again"
            raise RunError(f"cannot write {path} ({error.strerror}): {fix}") from error
    return array


def _get_stamp(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    return status.st_size, status.st_mtime_ns


def get_rebuild_hint(meta: Mapping[str, Any]) -> str:
    """Return the advice of a ``meta.json`` on how to make its folder again."""
    return str(meta.get("again", "make it again"))
