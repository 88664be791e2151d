"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path


def write_bytes_atomic(path: Path, data: bytes) -> None:
    """Write aside, flush to disk, rename: `path` holds the old content or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text_atomic(path: Path, text: str) -> None:
    """`write_bytes_atomic` of UTF-8 text."""
    write_bytes_atomic(path, text.encode())


def free_name(path: Path) -> Path:
    """`path` with the first number from 1 before its suffix that no file has yet: ``a.jsonl`` -> ``a.1.jsonl``."""
    candidates = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in itertools.count(1))
    return next(candidate for candidate in candidates if not candidate.exists())
