"""The run directory: it explains itself, belongs to one process at a time, and loses no line.

::

    config.toml          the resolved settings
    run.json             seed, each start (time, command, versions), and the identity of the environment, if any
    metrics.jsonl        one line an iteration
    trajectories.jsonl   whole episodes
    memory.db            the tips
    memory.start.db      those that training began with
    rehearsal/           recording of the initial model before training, with rehearsal.split
    checkpoints/         step-000010/ ... as `checkpoint` writes them
    tensorboard/         drawn from metrics.jsonl, if run.trackers has it
    trackers/            ids and files of the other trackers
    lock                 locked by the process that trains
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from trailnotes.config.schema import Config
from trailnotes.config.toml import (
    RUNTIME_KEYS,
    diff_configs,
    flatten_config,
    format_toml_value,
    is_within,
    load_config,
    to_toml,
)
from trailnotes.envs.tasks import load_identity
from trailnotes.errors import (
    ConfigError,
    MissingExtraError,
    RunError,
    TrailnotesError,
    format_error,
    format_sibling_command,
)
from trailnotes.storage import checkpoint
from trailnotes.storage.files import (
    append_jsonl,
    parse_json,
    read_jsonl,
    split_after,
    trajectory_to_json,
    write_text_atomic,
)
from trailnotes.types import StrPath, Trajectory

TRACKERS_GROUP = "trailnotes.trackers"  # group under which another package offers to show runs
TRAJECTORIES = "trajectories.jsonl"  # in a run directory: all its episodes
_PACKAGES = ("trailnotes", "numpy", "pydantic", "torch", "transformers", "tokenizers", "peft", "textworld")


class RunDir:
    """Open run directory, locked for this process, as a context manager; `RunDir.open` makes or resumes one."""

    def __init__(self, path: Path, config: Config, lock: RunLock) -> None:
        self.path, self.config, self._lock = path, config, lock
        self.metrics_path = path / "metrics.jsonl"
        self.trajectories_path = path / TRAJECTORIES
        self.memory_path = path / "memory.db"
        self.checkpoints = path / "checkpoints"
        self._has_new_config = True
        self._trackers: Any = None  # with `notify()` and `close(finished=)`

    @classmethod
    def open(
        cls, path: StrPath, config: Config, *, allow_change: Sequence[str] = (), fixed: Sequence[str] = ()
    ) -> Self:
        """Lock `path`, write or check its config, and record this start in run.json.

        The changes of a run that has begun wait for `write_config`, when its state has been loaded under them: a start
        that fails before leaves settings with which the run can go on, and its changes in run.json alone.

        Args:
            path: the directory; made if it does not exist.
            config: the resolved settings of this start.
            allow_change: keys or sections that may differ from those of the run that is resumed.
            fixed: keys or sections that may not differ even so, except `RUNTIME_KEYS`.

        Raises:
            RunError: in use by a live process, or a run of another config that has ended an iteration or episode.
        """
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the run directory {path} ({error.strerror}): choose another") from error
        lock = RunLock(path / "lock")
        try:
            run = cls(path, config, lock)
            changed = run._find_changes(allow_change, fixed)
            run._record_start(changed)
            if not changed:
                run.write_config()
            for file in (run.metrics_path, run.trajectories_path):
                split_after(file)
            run.checkpoints.mkdir(exist_ok=True)
        except BaseException:
            lock.release()
            raise
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(finished=kind is None)

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        append_jsonl(self.metrics_path, [{"iteration": line["iteration"], **line}])
        self._notify_trackers()

    def append_trajectories(self, iteration: int, trajectories: Iterable[Trajectory]) -> None:
        records = [{"iteration": iteration, **trajectory_to_json(t)} for t in trajectories]
        append_jsonl(self.trajectories_path, records)

    def read_metrics(self) -> list[dict[str, Any]]:
        return list(read_jsonl(self.metrics_path))

    def move_lines_after(self, iterations: int) -> list[Path]:
        """Move the lines after the first `iterations` iterations to new files; return their paths."""
        moved = [split_after(file, iterations) for file in (self.metrics_path, self.trajectories_path)]
        self._notify_trackers()
        return [file for file in moved if file is not None]

    def close(self, *, finished: bool = True) -> None:
        """Close the trackers and release the lock; `finished`: the run ended by itself. Twice is fine."""
        try:
            if finished and self.metrics_path.exists():
                self._notify_trackers()  # an earlier start may have left something to show
            if self._trackers is not None:
                self._trackers.close(finished=finished)
        finally:
            self._lock.release()

    def _notify_trackers(self) -> None:
        if self.config.run.trackers and self._trackers is None:
            self._trackers = load_trackers()(self.config.run.trackers, self.path)
        if self._trackers is not None:
            self._trackers.notify()

    def write_config(self) -> None:
        """Write config.toml, unless it has these settings already."""
        if self._has_new_config:
            write_text_atomic(self.path / "config.toml", to_toml(self.config))
            self._has_new_config = False

    def _find_changes(self, allow_change: Sequence[str], fixed: Sequence[str]) -> dict[str, Any]:
        """Return the changes since config.toml was written, name -> [old, new], or refuse them."""
        file, changed = self.path / "config.toml", {}
        known = flatten_config(self.config)
        if unknown := [key for key in allow_change if not any(is_within(name, [key]) for name in known)]:
            raise ConfigError(f"--allow-change {unknown[0]} names no setting and no section: `trailnotes config show`")
        begun = has_begun(self.path) and file.exists()
        if begun:
            old = load_run_config(self.path)
            names = diff_configs(old, self.config)
            before, after = flatten_config(old), flatten_config(self.config)
            if bound := [name for name in names if is_within(name, fixed) and not is_within(name, RUNTIME_KEYS)]:
                named = {"model.path": "model.path, by MODEL_OR_RUN,"}  # `adapt` takes it from there
                kept = ", ".join(f"{named.get(name, name)} to {format_toml_value(before[name])}" for name in bound)
                raise RunError(f"{self.path} holds a run with another {', '.join(bound)}, which no run can change once "
                               f"it has begun: set {kept} to continue it, or choose another directory")  # fmt: skip
            if refused := [name for name in names if not is_within(name, allow_change)]:
                flags = " ".join(f"--allow-change {name}" for name in refused)
                raise RunError(f"{self.path} holds a run with another {', '.join(refused)}: resume it by {flags}, "
                               "or choose another directory")  # fmt: skip
            changed = {name: [before[name], after[name]] for name in names}
        self._has_new_config = bool(changed) or not begun
        return changed

    def _record_start(self, changed: Mapping[str, Any]) -> None:
        file = self.path / "run.json"
        try:
            about = parse_json(file.read_bytes()) if file.exists() else {}
        except ValueError as error:
            raise RunError(f"{file} is damaged ({error}): remove it, and lose the list of earlier starts") from error
        starts, before = about.get("starts", []), about.get("environment", {})
        starts.append({"time": _now(), "command": list(sys.argv), **_collect_environment(), "changed": dict(changed)})
        identity = load_identity(self.config)
        others = [key for key in before if before[key] != identity.get(key)]
        named = any(is_within(name, ("env.name", "env.options")) for name in changed)
        if others and identity and not named and has_begun(self.path):  # the same settings name other data
            raise RunError(f"{self.path} holds a run of {self.config.env.name} with another {', '.join(others)}: put "
                           "the original data back, or choose another directory")  # fmt: skip
        about = {"name": self.config.run.name, "seed": self.config.run.seed, "starts": starts}
        if known := identity or before:  # where the environment is not here, what was known stays
            about["environment"] = known
        write_text_atomic(file, json.dumps(about, indent=1, ensure_ascii=False) + "\n")


def load_trackers() -> Callable[[Sequence[str], Path], Any]:
    for point in metadata.entry_points(group=TRACKERS_GROUP):
        return point.load()  # type: ignore[no-any-return]
    raise MissingExtraError(
        f"run.trackers needs the package trailnotes-lab: {format_sibling_command('trailnotes-lab')}"
    )


class RunLock(contextlib.AbstractContextManager["RunLock"]):
    """Lock of a file until its release, or for as long as this process lives."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        for _ in range(5):  # whoever looks for the holder locks the file for a moment
            if self._lock(path):
                break
            time.sleep(0.02)
        else:
            holder = path.read_text(errors="replace").strip() if path.is_file() else ""
            raise RunError(f"{path.parent} is in use by {holder or 'another process'}: wait for it or stop it, or "
                           "choose another directory")  # fmt: skip

    def _lock(self, path: Path) -> bool:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RunError(f"cannot write {path} ({error.strerror}): fix the permissions, or choose another") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):  # else its holder has just removed it
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {_now()}\n".encode())
                self._descriptor = descriptor
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError as error:
            raise RunError(f"{path.parent} cannot be locked ({error.strerror}): choose a directory on a file system "
                           "with locks") from error  # fmt: skip
        finally:
            if self._descriptor is None:
                os.close(descriptor)
        return False

    def release(self) -> None:
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # forked children may hold a copy of the descriptor
            os.close(self._descriptor)
            self._descriptor = None

    def __exit__(self, *_: object) -> None:
        self.release()


def find_lock_holder(path: Path) -> str:
    """Find the process that holds the `RunLock` of a file, as it names itself; "" where none is known to hold it."""
    words = ""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:  # to close it ends the lock
            words = file.read(1000).partition(" since ")[0]
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return words or "another process"
    except OSError:  # no lock file, one of another user, or a file system without locks
        pass
    return ""


def load_run_config(path: Path) -> Config:
    file = path / "config.toml"
    if not file.exists():
        raise RunError(f"{path} holds no run: there is no config.toml in it")
    try:
        return load_config(file, trusted=False)
    except ConfigError as error:
        raise RunError(f"the run's own settings cannot be used: {error}") from error


@contextlib.contextmanager
def report_damaged_run(path: Path) -> Iterator[None]:
    """Raise errors of wrong values in the files of the run in `path` as `RunError`; this package's own pass."""
    try:
        yield
    except TrailnotesError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunError(f"{path} holds a line that Trailnotes does not write ({format_error(error)}): restore its "
                       "metrics.jsonl and trajectories.jsonl") from error  # fmt: skip


def has_begun(path: Path) -> bool:
    """Return whether a run has ended an iteration or an episode, which fixes its settings."""
    written = [path / "metrics.jsonl", path / "trajectories.jsonl", *(path / "phases").glob("*.jsonl")]
    return any((path / "checkpoints").glob("step-*")) or any(f.exists() and f.stat().st_size for f in written)


def is_trained(path: Path, config: Config) -> bool:
    """Return whether the last checkpoint of the run in `path` has reached the limits of `config`."""
    saved = checkpoint.find_latest(path / "checkpoints")
    return saved is not None and config.train.compute_progress(checkpoint.load_meta(saved)) >= 1.0


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _collect_environment() -> dict[str, Any]:
    packages = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    command, revision = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"], ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        revision = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()  # noqa: S603
    return {
        "python": platform.python_version(), "platform": platform.platform(), "host": socket.gethostname(),
        "packages": packages, "git": revision or None,
    }  # fmt: skip
