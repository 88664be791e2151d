"""Engines as servers of vLLM: child processes in whatever environment vLLM is installed in, or programs elsewhere."""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from trailnotes.errors import ConfigError, MissingExtraError
from trailnotes.storage.child import Process, describe_exit, kill_group, start_child

PROGRAM = Path(__file__).parent / "worker" / "engine_worker.py"
CLONE_PYTHON = Path(".venv-vllm") / "bin" / "python"  # what `make vllm` builds in a clone
STOP_LIMIT = 10.0  # seconds to end by itself
LOG_TAIL = 16384  # bytes of an engine's output that are searched for an error
LAST_LINES = 3  # of it, in messages
_PREFIX = re.compile(r"^\(\w+ pid=\d+\) ", re.MULTILINE)
_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception): .+(?:\n +.+)?")
WORK_DIR_PREFIX = "trailnotes-engine-"
# Variables that would lead an engine into our packages, or make it a rank of torchrun.
DROPPED_PREFIXES = "PYTHON", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_"
RANK_VARIABLES = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"


def find_engine_python(named: str) -> str:
    """Find the Python that engines run with: the one named, this one, or that of `make vllm`.

    Raises:
        ConfigError: there is no such program.
        MissingExtraError: none is named, and vLLM is nowhere to be found.
    """
    if named:
        if program := shutil.which(os.path.expanduser(named)):  # noqa: PTH111 - `which` takes names, too
            return program
        raise ConfigError(f"engine.python = {named!r} is no program: name the Python of an environment with vLLM")
    if (here := find_spec("vllm")) is not None and here.origin:  # a mere folder of that name has none
        return sys.executable
    for root in (Path.cwd(), Path(__file__).parents[4]):
        if (root / CLONE_PYTHON).is_file():
            return str(root / CLONE_PYTHON)
    raise MissingExtraError(
        'engine.name = "vllm" needs vLLM: run make vllm in a clone of Trailnotes, which builds an environment for it, '
        "or name the Python of an environment of your own as engine.python"
    )


def build_environment(*, on_cpu: bool, threads: int, offline: bool, devices: str = "") -> dict[str, str]:
    """Build the environment variables of an engine: ours, without those that lead it astray, and those of vLLM."""
    kept = os.environ.keys() - set(RANK_VARIABLES)
    variables = {name: os.environ[name] for name in kept if not name.startswith(DROPPED_PREFIXES)}
    variables |= {
        "VLLM_SERVER_DEV_MODE": "1",  # the routes that load weights, pause and sleep
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # its processes import our program, and so end with their parent
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",  # what its processes listen at among themselves
        "PYTHONFAULTHANDLER": "1",
    }
    variables.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # each reload warns of layers that have no weights
    if on_cpu:
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCH_COMPILE_DISABLE": "1"}
        variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # no third process for the worker
    if threads:
        variables["OMP_NUM_THREADS"] = str(threads)
    if offline:
        variables["HF_HUB_OFFLINE"] = "1"
    if devices:
        variables["CUDA_VISIBLE_DEVICES"] = devices
    return variables


@dataclass(slots=True)
class EngineServer:
    """A server of vLLM: at an address, or a child process of ours."""

    label: str  # in messages
    url: str
    socket_path: str | None = None  # of the Unix socket that it listens at instead, which only this user can reach
    process: Process | None = None  # of a child, in a process group of its own
    log: Path | None = None  # of the child's output

    @property
    def has_ended(self) -> bool:
        """Tell whether the child has ended; False for a server that is not ours."""
        return self.process is not None and self.process.poll() is not None

    @property
    def is_listening(self) -> bool:
        """Tell whether there is something to connect to: httpx would leave a Unix socket open where there is not."""
        if self.has_ended or self.socket_path is None:
            return not self.has_ended
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.socket_path) == 0

    def close(self, reason: str = "") -> str:
        """Kill the child with all its children; return why it is lost: the reason given, or how it ended by itself."""
        if self.process is None:
            return reason or "does not answer"
        with suppress(subprocess.TimeoutExpired):  # its connections end a moment before it does
            self.process.wait(0.0 if reason else STOP_LIMIT)
        how = reason or ("hung up" if self.process.returncode is None else describe_exit(self.process.returncode))
        kill_group(self.process, STOP_LIMIT)
        last = read_last_words(self.log) if self.log and self.log.exists() else ""
        return f"{how}; its last words: {last}" if last else how


def start_server(
    label: str, command: Sequence[str], variables: Mapping[str, str], folder: Path, *, host: str = "", port: int = 0
) -> EngineServer:
    """Start a server of vLLM that ends with this process, and wait for nothing.

    It listens at `host` and `port`, or at a socket in `folder`, which also gets its output.
    """
    name = label.replace(" ", "-")
    path, log = folder / f"{name}.sock", folder / f"{name}.log"
    path.unlink(missing_ok=True)  # of the server that this one replaces
    listen = ["--host", host, "--port", str(port)] if host else ["--uds", str(path)]
    with log.open("ab") as output:
        process = start_child([*command, *listen], stdout=output, stderr=subprocess.STDOUT, env=dict(variables))
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}" if host else "http://engine"
    return EngineServer(label, url, socket_path=None if host else str(path), process=process, log=log)


def read_last_words(log: Path) -> str:
    """Return the first error near the end of an engine's output, or else its last lines."""
    text = _PREFIX.sub("", log.read_bytes()[-LOG_TAIL:].decode(errors="replace"))
    error = _ERROR.search(text)  # errors that follow from it say less
    lines = [error[0]] if error else [line for line in text.splitlines() if line.strip()][-LAST_LINES:]
    return " / ".join(" ".join(line.split()) for line in lines)[-600:]


def make_work_dir(size: int | None = None) -> Path:
    """Make a directory for weights, sockets and logs, which goes when this process ends; remove those of killed ones.

    `size` is that of the weights in bytes. They are kept in memory where there is room for three times as many (the old
    ones, the new ones, and some air); on the disk otherwise, and where the size is not known.
    """
    shared, disk = Path("/dev/shm"), Path(tempfile.gettempdir())  # noqa: S108 - no name in it is foreseeable
    for left in [*shared.glob(f"{WORK_DIR_PREFIX}*"), *disk.glob(f"{WORK_DIR_PREFIX}*")]:
        with suppress(OSError):  # in use, gone already, or another user's
            descriptor = _lock(left)
            shutil.rmtree(left, ignore_errors=True)
            os.close(descriptor)
    in_memory = size is not None and shared.is_dir() and shutil.disk_usage(shared).free > 3 * size
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=shared if in_memory else disk))
    _lock(new)  # until this process ends; programs that we start do not get it
    path = new.rename(new.with_name(WORK_DIR_PREFIX + new.name.removeprefix(".new-")))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _lock(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
