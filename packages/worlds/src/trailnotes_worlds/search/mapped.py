"""Arrays on disk that any number of processes read without a copy of their own."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trailnotes.errors import ConfigError, RunError
from trailnotes.storage.files import write_text_atomic
from trailnotes.storage.parsing import parse_json

META = "meta.json"


class MappedFolder:
    """The files of one folder, mapped read-only, whose sizes its ``meta.json`` tells.

    Every file stays open: `check` notices at little cost that one was cut or written over in place, which reading the
    map alone would answer with a bus error or with nonsense. A file that was replaced by another of its name does no
    harm, since the map keeps the old one. The files are closed by `close`, or with the last reference to this.

    Args:
        folder: where they are.
        kind: that the folder must be of.
        version: that it must have.
        facts: name -> type of what else its ``meta.json`` must tell.

    Raises:
        ConfigError: a file is missing, has another size, or `meta.json` is of another `kind` or version.
    """

    def __init__(self, folder: Path, kind: str, version: int, facts: Mapping[str, type]) -> None:
        self.folder = folder
        self.meta = read_meta(folder, kind, version, facts)
        self._open: dict[Path, tuple[int, tuple[int, int]]] = {}  # path -> (file descriptor, (size, time of change))
        self._closing = weakref.finalize(self, _close, self._open)

    def open_file(self, name: str) -> int:
        """The descriptor of one file, opened now if it is not yet."""
        self._require_open()
        path = self.folder / name
        if path not in self._open:
            try:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise ConfigError(
                    f"{path} cannot be read ({error.strerror}): {_get_rebuild_hint(self.meta)}"
                ) from error
            self._open[path] = handle, _get_stamp(handle)
            expected = self.meta["files"].get(name)
            if self._open[path][1][0] != expected:
                raise ConfigError(
                    f"{path} has {self._open[path][1][0]} bytes instead of {expected}: it was cut or replaced; "
                    f"{_get_rebuild_hint(self.meta)}"
                )
        return self._open[path][0]

    def map_array(self, name: str) -> NDArray[Any]:
        """The array of one ``.npy`` file, mapped."""
        handle = self.open_file(name)
        try:
            mapped = _map_npy(handle)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.folder / name} is damaged ({error}): {_get_rebuild_hint(self.meta)}") from error
        return np.asarray(mapped)  # a plain view: slices of numpy's own class for maps cost several times as much

    def require_unchanged(self) -> None:
        """See that the files are what they were.

        Raises:
            ConfigError: one has changed since it was opened.
            ValueError: they are closed.
        """
        self._require_open()
        for path, (handle, stamp) in self._open.items():
            if _get_stamp(handle) != stamp:
                raise ConfigError(
                    f"{path} was changed while it was in use: {_get_rebuild_hint(self.meta)}, and start again"
                )

    def close(self) -> None:
        """Close the files; arrays that were handed out stay valid. Twice is fine."""
        self._closing()

    def _require_open(self) -> None:
        if not self._closing.alive:
            raise ValueError(f"{self.folder} is closed: open it again")


def _close(opened: dict[Path, tuple[int, tuple[int, int]]]) -> None:
    for handle, _ in opened.values():
        os.close(handle)
    opened.clear()


def _map_npy(handle: int) -> np.memmap[Any, Any]:
    """The array of an open ``.npy`` file. `numpy.load` maps by path, where another file may be by now.

    Raises:
        ValueError: it is none, or shorter than it says.
    """
    with open(handle, "rb", closefd=False) as file:
        file.seek(0)
        major, _ = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, in_columns, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError("it holds objects")
        return np.memmap(file, dtype, "r", file.tell(), shape, "F" if in_columns else "C")


def read_meta(folder: Path, kind: str, version: int, facts: Mapping[str, type]) -> dict[str, Any]:
    """The ``meta.json`` of a folder.

    Raises:
        ConfigError: there is none, it says something else than `kind` and `version`, or does not tell all `facts`.
    """
    path = folder / META
    try:
        meta = parse_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{folder} is no {kind}: it has no {META} ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {_get_rebuild_hint({})}") from error
    if not isinstance(meta, dict) or meta.get("kind") != kind or not isinstance(meta.get("files"), dict):
        raise ConfigError(f"{folder} is no {kind}: {META} says something else")
    if meta.get("version") != version:
        raise ConfigError(
            f"{folder} is a {kind} of version {meta.get('version')}, and this Trailnotes reads version {version}: "
            f"{_get_rebuild_hint(meta)}"
        )
    for name, wanted in facts.items():
        if not isinstance(meta.get(name), wanted):
            raise ConfigError(f"{path} is damaged, it does not tell {name!r}: {_get_rebuild_hint(meta)}")
    return meta


def write_meta(folder: Path, kind: str, version: int, names: list[str], facts: Mapping[str, Any]) -> None:
    """Write the ``meta.json`` that makes `folder` whole: the sizes of the files `names`, and `facts`."""
    sizes = {name: (folder / name).stat().st_size for name in names}
    meta = {"kind": kind, "version": version, "files": sizes, **facts}
    write_text_atomic(folder / META, json.dumps(meta, ensure_ascii=False, indent=1) + "\n")


def allocate(path: Path, dtype: Any, length: int) -> np.memmap[Any, Any]:
    """A new ``.npy`` file of `length` items, mapped for writing.

    Its space is taken now: a disk that fills up under a map would end the process without a word.

    Raises:
        RunError: there is no room.
    """
    array: np.memmap[Any, Any] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(length,))
    with path.open("rb+") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            raise RunError(
                f"cannot write {path} ({error.strerror}): free space, then run the same command again"
            ) from error
    return array


def _get_stamp(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    return status.st_size, status.st_mtime_ns


def _get_rebuild_hint(meta: Mapping[str, Any]) -> str:
    return str(meta.get("again", "make it again"))
