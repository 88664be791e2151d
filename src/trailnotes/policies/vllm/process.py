"""Engines as child processes, in whatever environment vLLM is installed in."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from trailnotes.errors import ConfigError, MissingExtraError
from trailnotes.storage.child import describe_exit, kill_group, start_child

WORKER_DIR = Path(__file__).parent / "worker"
CORE_FILE = WORKER_DIR / "core.py"
CLONE_PYTHON = Path(".venv-vllm") / "bin" / "python"  # what `make vllm` builds in a clone
STOP_LIMIT = 10.0  # seconds to end by itself
LAST_LINES = 3  # of an engine's output, in messages
WORK_DIR_PREFIX = "trailnotes-engine-"
# They would lead into our packages, or among torchrun's processes.
DROPPED_PREFIXES = "PYTHON", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_"
RANK_VARIABLES = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"


def find_engine_python(named: str) -> str:
    """Find the Python that engines run with: the one named, this one, or that of `make vllm`.

    Raises:
        ConfigError: there is no such program.
        MissingExtraError: none is named, and vLLM is nowhere to be found.
    """
    if named:
        found = shutil.which(os.path.expanduser(named))  # noqa: PTH111 - `which` takes names, too
        if found is None:
            raise ConfigError(f"engine.python = {named!r} is no program: name the Python of an environment with vLLM")
        return found
    if (found_here := find_spec("vllm")) is not None and found_here.origin:  # a mere folder of that name has none
        return sys.executable
    for root in (Path.cwd(), Path(__file__).parents[4]):
        if (root / CLONE_PYTHON).is_file():
            return str(root / CLONE_PYTHON)
    raise MissingExtraError(
        'engine.name = "vllm" needs vLLM: run make vllm in a clone of Trailnotes, which builds an environment for it, '
        "or name the Python of an environment of your own as engine.python"
    )


def build_environment(*, on_cpu: bool, threads: int, offline: bool, devices: str = "") -> dict[str, str]:
    """Build the variables of an engine's process: ours, and those of vLLM.

    Variables that would lead it into our packages, or make it a rank of torchrun, stay out.
    """
    kept = os.environ.keys() - set(RANK_VARIABLES)
    variables = {name: os.environ[name] for name in kept if not name.startswith(DROPPED_PREFIXES)}
    variables |= {
        "PYTHONFAULTHANDLER": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's core in the very process that we watch
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",  # what vLLM's own processes listen at
    }
    variables.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # each reload warns of layers that have no weights
    if on_cpu:
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCH_COMPILE_DISABLE": "1"}
    if threads:
        variables["OMP_NUM_THREADS"] = str(threads)
    if offline:
        variables["HF_HUB_OFFLINE"] = "1"
    if devices:
        variables["CUDA_VISIBLE_DEVICES"] = devices
    return variables


class EngineProcess:
    """One engine's process. Its parent alone can speak to it: the socket between them has no address."""

    def __init__(
        self, python: str, variables: Mapping[str, str], log: Path, *, core: Path, inherit: Sequence[int] = ()
    ) -> None:
        """Start it with this interpreter and environment; it prints to `log`, and inherits further descriptors."""
        self.log = log
        self.connection, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            command = [python, str(WORKER_DIR / "main.py"), str(theirs.fileno()), "1.0", str(core)]
            descriptors = [theirs.fileno(), *inherit]
            self._process = start_child(
                command, stdout=output, stderr=subprocess.STDOUT, env=variables, pass_fds=descriptors
            )
        self.pid = self._process.pid

    def kill(self, why: str) -> str:
        """End it with all its children; return why it is gone: the reason given, or how it ended by itself."""
        with suppress(subprocess.TimeoutExpired):  # its socket ends a moment before it does
            self._process.wait(0.0 if why else STOP_LIMIT)
        died = self._process.returncode is not None
        kill_group(self._process, STOP_LIMIT)
        last = self.output_tail()
        how = why or (describe_exit(self._process.returncode) if died else "hung up")
        return f"{how}; its last words: {last}" if last else how

    def output_tail(self) -> str:
        """Return the end of its output, on one line."""
        with suppress(OSError):
            text = self.log.read_bytes()[-4096:].decode(errors="replace")
            lines = [" ".join(line.split()) for line in text.splitlines() if line.strip() and "%|" not in line]
            return " / ".join(lines[-LAST_LINES:])[-600:]
        return ""


def make_work_dir(size: int | None = None) -> Path:
    """Make a directory for weights and logs, which goes when this process ends; clear away those of killed processes.

    `size` is that of the weights in bytes. They are kept in memory where there is room for three times as many (the old
    ones, the new ones, and some air); on the disk otherwise, and where the size is not known.
    """
    shared, disk = Path("/dev/shm"), Path(tempfile.gettempdir())  # noqa: S108 - no name in it is foreseeable
    for left in [*shared.glob(f"{WORK_DIR_PREFIX}*"), *disk.glob(f"{WORK_DIR_PREFIX}*")]:
        pid = left.name.removeprefix(WORK_DIR_PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            _remove_stale_dir(left)
    in_memory = size is not None and shared.is_dir() and shutil.disk_usage(shared).free > 3 * size
    path = _make_locked_dir(shared if in_memory else disk)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _make_locked_dir(root: Path) -> Path:
    """Make a directory with a lock that ends with this process: another container does not see our process."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{WORK_DIR_PREFIX}{os.getpid()}-", dir=root))
        with suppress(FileNotFoundError):
            held = os.open(path, os.O_RDONLY)  # programs that we start do not get it
            fcntl.flock(held, fcntl.LOCK_EX)
            if path.exists():  # else another start has cleared it away before it was locked
                return path
            os.close(held)


def _remove_stale_dir(left: Path) -> None:
    """Remove a directory of ours that no process locks any more; another start may be doing the same."""
    try:
        held = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone already, or another user's
        return
    try:
        if os.fstat(held).st_uid == os.getuid():
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    except BlockingIOError:
        pass  # it is in use
    finally:
        os.close(held)
