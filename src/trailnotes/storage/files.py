"""Atomic files (written under another name and renamed, or appended line by line); JSON, and trajectories in it.

A trajectory's record is the whole episode, nothing cut. It omits defaults, prompt token ids (only their number comes
back, as `Completion.usage`) and retrieval keys of tips.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import secrets
import tomllib
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final, Literal

from trailnotes.errors import ConfigError, RunError
from trailnotes.types import Completion, Observation, Step, Task, Tip, Trajectory

Nonfinite = Literal["keep", "drop", "refuse"]
_FIX_HINT = "free space or fix the permissions, then run the same command again"
_FIELDS = ("mode", "member", "outcome", "success", "score", "max_score", "error", "context_full")
_STEP_FIELDS = ("action", "reward", "reward_intrinsic", "policy_version", "other_tokens")
_ITERATION_PATTERN = re.compile(rb'\{"iteration": (\d+)[,}]')


def parse_json(text: str | bytes, nonfinite: Nonfinite = "keep") -> Any:
    """Parse JSON, or raise `ValueError`; bytes are UTF-8.

    `nonfinite` says what becomes of numbers that no float holds (``NaN``, ``1e999``): "keep" makes them ``nan`` or
    ``inf``, "drop" None, as `encode_line` writes them.
    """
    if isinstance(text, bytes):
        text = text.removeprefix(BOM_UTF8).decode("utf-8", "surrogatepass")
    try:
        return _DECODERS[nonfinite].decode(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def parse_json_at(text: str, place: int) -> tuple[Any, int]:
    """Parse the JSON value that begins at `place`; returns it and its end."""
    try:
        return _DECODERS["keep"].raw_decode(text, place)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def _drop_nonfinite(digits: str) -> float | None:
    return value if math.isfinite(value := float(digits)) else None


def _refuse_nonfinite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"{digits[:20]} is not a finite number of JSON")
    return value


_DECODERS: Final[Mapping[Nonfinite, json.JSONDecoder]] = {
    "keep": json.JSONDecoder(),
    "drop": json.JSONDecoder(parse_float=_drop_nonfinite, parse_constant=_drop_nonfinite),
    "refuse": json.JSONDecoder(parse_float=_refuse_nonfinite, parse_constant=_refuse_nonfinite),
}


def get_cache_dir(name: str) -> Path:
    """Return ``$TRAILNOTES_CACHE/<name>`` or ``~/.cache/trailnotes/<name>``, for data that can be made again."""
    root = os.environ.get("TRAILNOTES_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "trailnotes") / name


def write_bytes_atomic(path: Path, data: bytes) -> None:
    """Write another file, flush to disk, rename: `path` holds the old content or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_aside(path) as draft:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)


@contextmanager
def open_aside(path: Path) -> Iterator[Path]:
    """Yield a free name beside `path`, for a file to be written and renamed; it is removed if it was not renamed."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def fsync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text_atomic(path: Path, text: str) -> None:
    """Write text as UTF-8; what it cannot hold, such as a byte of a path, is escaped as JSON does."""
    write_bytes_atomic(path, text.encode(errors="backslashreplace"))


def find_free_path(path: Path) -> Path:
    """Return `path` with the first free number before its suffix: ``a.jsonl`` -> ``a.1.jsonl``."""
    candidates = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in itertools.count(1))
    return next(itertools.filterfalse(Path.exists, candidates))


def append_jsonl(path: Path, records: Sequence[Mapping[str, Any]], *, sync: bool = False) -> None:
    """Append `records`, all of them or none (`RunError`); with `sync` they are on the disk on return."""
    data = memoryview(b"".join(map(encode_line, records)))
    try:
        with path.open("ab", buffering=0) as file:
            start = file.tell()
            try:
                while data:
                    data = data[file.write(data) :]
                if sync:
                    os.fsync(file.fileno())
            except OSError:
                os.truncate(path, start)
                raise
    except OSError as error:
        raise RunError(f"cannot write {path} ({error.strerror}): its earlier lines are whole; {_FIX_HINT}") from error


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of `path` in order, none if there is no such file; raises `RunError` for a damaged line."""
    for number, line in enumerate(read_lines_from(path), 1):
        record = parse_record(line)
        if record is None:
            raise RunError(f"{path}: line {number} is damaged: delete it, or restore the file")
        yield record


def read_user_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each line of a file of JSON lines that a person wrote.

    Blank lines and a byte order mark are skipped, and the last line may lack its end.

    Raises:
        ConfigError: the file cannot be read, or a line is no JSON.
    """
    number = 0
    try:
        for number, line in enumerate(path.read_bytes().removeprefix(BOM_UTF8).split(b"\n"), 1):
            if line.strip():
                yield number, parse_json(line)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"{path}, line {number}: is no JSON ({error})") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file of the user, which may begin with a byte order mark."""
    return tomllib.loads(path.read_bytes().removeprefix(BOM_UTF8).decode())


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Parse a line of such a file; None if it holds no JSON object."""
    try:
        record = parse_json(line, "drop")
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def read_lines_from(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Yield the whole lines from `offset` on, in bytes, of a file that may grow; none if it is missing."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if line.endswith(b"\n"):
                yield line


def split_after(path: Path, iterations: int | None = None) -> Path | None:
    """Move lines after the first `iterations` iterations out of `path`; None moves a half-written last line.

    Lines without an "iteration" stay with those before them. Returns the file that now holds the lines, if any: they
    reach ``<stem>.after-<iterations>.<n>.jsonl`` beside `path` before they leave it, so that a crash loses none.
    """
    if not path.exists():
        return None
    offset = 0
    for line in read_lines_from(path):
        iteration = _ITERATION_PATTERN.match(line)
        if iterations is not None and iteration is not None and int(iteration[1]) >= iterations:
            break
        offset += len(line)
    if offset == path.stat().st_size:
        return None
    name = "half" if iterations is None else f"after-{iterations:06d}"
    moved = find_free_path(path.with_name(f"{path.stem}.{name}.jsonl"))
    try:
        with path.open("rb") as file:
            file.seek(offset)
            write_bytes_atomic(moved, file.read())
        os.truncate(path, offset)
    except OSError as error:
        raise RunError(f"cannot move lines from {path} ({error.strerror}): all are still there; {_FIX_HINT}") from error
    return moved


def encode_line(record: Mapping[str, Any]) -> bytes:
    """Encode a record as a line of strict JSON; non-finite numbers become null, unknown objects their repr."""
    try:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False, default=repr)
    except ValueError:
        text = json.dumps(parse_json(json.dumps(record, default=repr), "drop"), ensure_ascii=False)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair from an environment: escaped, so that it comes back the same
        return json.dumps(json.loads(text), ensure_ascii=True).encode() + b"\n"


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """Convert an episode to JSON values; the intrinsic reward is before its coefficient."""
    return {
        "task": task_to_json(trajectory.task), **{name: getattr(trajectory, name) for name in _FIELDS},
        "return": trajectory.episode_return, "steps": [_step_to_json(step) for step in trajectory.steps],
        "final_observation": _collect_non_defaults(trajectory.final_observation),
    }  # fmt: skip


def trajectory_from_json(record: Mapping[str, Any]) -> Trajectory:
    """Rebuild an episode; prompt ids and keys of tips are empty."""
    return Trajectory(
        task=Task(**record["task"]), steps=tuple(map(_step_from_json, record["steps"])),
        final_observation=_observation_from_json(record["final_observation"]),
        **{name: record[name] for name in _FIELDS},
    )  # fmt: skip


def task_to_json(task: Task) -> dict[str, Any]:
    """Convert a task to a record that ``Task(**record)`` accepts."""
    return _collect_non_defaults(task)


def completion_to_json(completion: Completion) -> dict[str, Any]:
    """Convert a completion to JSON values, with the tokens read and sampled for it."""
    stored = _collect_non_defaults(completion, leave_out=("prompt_ids", "usage"))
    return {"completion": stored, "tokens": completion.num_tokens, "prompt_tokens": completion.num_prompt_tokens}


def completion_from_json(record: Mapping[str, Any]) -> Completion:
    """Rebuild a completion without prompt ids; `usage` holds their number."""
    stored = record["completion"]
    ids = {name: tuple(stored.get(name, ())) for name in ("token_ids", "logprobs")}
    usage = (record["prompt_tokens"], record["tokens"])
    return Completion(**{**stored, **ids, "prompt_ids": (), "usage": usage})


def _step_to_json(step: Step) -> dict[str, Any]:
    return {
        "observation": _collect_non_defaults(step.observation),
        "tips": [_collect_non_defaults(tip, leave_out=("key", "created")) for tip in step.tips],
        **{name: getattr(step, name) for name in _STEP_FIELDS}, **completion_to_json(step.completion),
        "plain_prompt_tokens": len(step.plain_prompt_ids) or step.num_plain_tokens,  # null: not known
    }  # fmt: skip


def _step_from_json(record: Mapping[str, Any]) -> Step:
    return Step(
        observation=_observation_from_json(record["observation"]),
        tips=tuple(Tip(key="", **tip) for tip in record["tips"]), completion=completion_from_json(record),
        plain_prompt_ids=(), num_plain_tokens=record.get("plain_prompt_tokens"),
        **{name: record[name] for name in _STEP_FIELDS if name in record},
    )  # fmt: skip


def _observation_from_json(record: Mapping[str, Any]) -> Observation:
    actions = record.get("actions")
    return Observation(**{**record, "actions": None if actions is None else tuple(actions)})


def _collect_non_defaults(value: Any, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    result = {}
    for field in fields(value):
        item = getattr(value, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name not in leave_out and item != default:
            result[field.name] = dict(item) if isinstance(item, Mapping) else item
    return result
