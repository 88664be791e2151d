"""Servers of vLLM: child processes in whatever environment vLLM is installed in, or programs elsewhere."""

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
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from trailnotes.config.model_schema import EngineConfig
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError, MissingExtraError
from trailnotes.policies.hf.policy import get_context_length, load_architecture, resolve_base_model, resolve_device
from trailnotes.storage.child import Process, describe_exit, kill_group, start_child

PROGRAM = Path(__file__).parent / "worker" / "engine_worker.py"
CLONE_PYTHON = Path(".venv-vllm") / "bin" / "python"  # what `make vllm` builds in a clone
STOP_LIMIT = 10.0  # seconds to end by itself
LOG_TAIL = 16384  # bytes of an engine's output that are searched for an error
_PREFIX = re.compile(r"^\(\w+ pid=\d+\) ", re.MULTILINE)
_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception): .+(?:\n +.+)?")
WORK_DIR_PREFIX = "trailnotes-engine-"
# Variables that would lead an engine into our packages, or make it a rank of torchrun.
DROPPED_PREFIXES = "PYTHON", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_"
RANK_VARIABLES = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"

SHARED_GPU_FRACTION = 0.45  # of a GPU on which the learner has its weights, gradients and moments, too
DEDICATED_GPU_FRACTION = 0.9  # of a GPU that is the engine's own
CPU_MEMORY_FRACTION = 0.25  # of the host's memory, for the KV cache
CACHE_BLOCK_TOKENS = 32  # tokens of the KV cache that are taken at a time
NUM_ADAPTERS = 2  # in an engine: the new ones are loaded before the old ones go
LORA_RANKS = 1, 8, 16, 32, 64, 128, 256, 320, 512  # that vLLM reserves room for


def validate_engine_settings(engine: EngineConfig) -> None:
    """Raise `ConfigError` for an address of an engine that is none, and as `find_engine_python`."""
    for url in engine.urls:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(
                f"engine.urls: {url!r} is no address of a vLLM server: write http://host:port, as trailnotes engine "
                "serve prints it (tcp:// was the protocol of earlier versions)"
            )
    if not engine.urls:
        find_engine_python(engine.python)


def find_engine_python(named: str) -> str:
    """Find the Python that engines run with: the one named, this one, or that of `make vllm`.

    Raises `ConfigError` where there is no such program, and `MissingExtraError` where none is named or has vLLM.
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


@dataclass(slots=True)
class EngineServer:
    """A server of vLLM: at an address, or a child process of ours."""

    label: str  # in messages
    url: str
    socket_path: str | None = None  # of the Unix socket that it listens at instead, which only this user can reach
    process: Process | None = None  # of a child, in a process group of its own
    log: Path | None = None  # of the child's output

    @property
    def has_ended(self) -> bool:  # False for a server that is not ours
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
        if self.log is None or not self.log.exists():
            return how
        text = _PREFIX.sub("", self.log.read_bytes()[-LOG_TAIL:].decode(errors="replace"))
        error = _ERROR.search(text)  # the first: errors that follow from it say less
        last = " ".join((error[0] if error else text[-600:]).split())[:600]
        return f"{how}; its last words: {last}" if last else how


def start_engine(
    config: Config, index: int, folder: Path, *, host: str = "", port: int = 0, program: Path | None = None
) -> EngineServer:
    """Start engine `index`, which ends with this process, and wait for nothing.

    It listens at `host` and `port`, for a run elsewhere, or at a socket in `folder`, which also gets its output.
    `program` stands in for vLLM's.
    """
    devices = config.engine.devices[index] if config.engine.devices else ""
    command, variables = build_command(config, devices, alone=bool(host), program=program)
    path, log = folder / f"engine-{index}.sock", folder / f"engine-{index}.log"
    path.unlink(missing_ok=True)  # of the server that this one replaces
    command += ["--host", host, "--port", str(port)] if host else ["--uds", str(path)]
    with log.open("ab") as output:
        process = start_child(command, stdout=output, stderr=subprocess.STDOUT, env=variables)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}" if host else "http://engine"
    return EngineServer(f"engine {index}", url, None if host else str(path), process, log)


def build_command(
    config: Config, devices: str = "", *, alone: bool = False, program: Path | None = None
) -> tuple[list[str], dict[str, str]]:
    """Build the command that starts an engine, and its environment variables; with `alone`, for a run elsewhere."""
    path, is_local, saved = resolve_base_model(config.model)
    on_cpu = resolve_device(config.model.device).type == "cpu"
    options: dict[str, Any] = {
        "dtype": config.model.dtype,
        "max-model-len": min(get_context_length(config.model), config.rollout.max_context_tokens),
        "max-num-seqs": config.engine.max_concurrent,
        "seed": config.run.seed % (1 << 32),
        "tensor-parallel-size": devices.count(",") + 1,
        "generation-config": "vllm",  # or the model's own sampling settings would come in unasked
        "logprobs-mode": "processed_logprobs",  # at the temperature, of what is drawn from
        "worker-extension-cls": "engine_worker.WeightLoader",
    }
    flags = ["enable-prefix-caching", "enable-prompt-tokens-details", "skip-tokenizer-init"]
    flags += ["disable-log-stats", "disable-uvicorn-access-log"]
    num_engines = 1 if alone or config.engine.devices else config.engine.replicas  # on one device
    if on_cpu:  # blocks of 128, the default there, would never be shared by prompts that are shorter
        options |= {"block-size": CACHE_BLOCK_TOKENS, "distributed-executor-backend": "uni"}
        text = load_architecture(config.model).get_text_config(decoder=True)
        options["kv-cache-memory-bytes"] = compute_cache_bytes(text, config, options["max-model-len"], num_engines)
        flags.append("enforce-eager")
    else:
        fraction = SHARED_GPU_FRACTION if config.has_shared_gpu and not alone else DEDICATED_GPU_FRACTION
        options["gpu-memory-utilization"] = (config.engine.device_memory or fraction) / num_engines
        flags += ["enable-sleep-mode"] * (is_sleeping(config) and not alone)
    if rank := int(saved.r) if saved else config.model.lora.rank * config.model.lora.enabled:
        if rank > LORA_RANKS[-1]:
            raise ConfigError(f"model.lora.rank = {rank}: vLLM has adapters of rank {LORA_RANKS[-1]} at most")
        options |= {"max-loras": NUM_ADAPTERS, "max-lora-rank": next(room for room in LORA_RANKS if room >= rank)}
        flags.append("enable-lora")
    command = [find_engine_python(config.engine.python), str(program or PROGRAM), "serve", path]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    variables = build_environment(on_cpu=on_cpu, threads=config.run.threads, offline=is_local, devices=devices)
    return command + [f"--{name}" for name in flags], variables


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


def is_sleeping(config: Config) -> bool:
    """Tell whether the engines leave their device to the learner while it learns."""
    frees = config.engine.shared_card or resolve_device(config.model.device).type == "cuda"
    return config.has_shared_gpu and frees and not config.rollout.max_async_iterations


def compute_cache_bytes(text: Any, config: Config, context: int, num_engines: int | None = None) -> int:
    """Compute the bytes of the KV cache on a CPU: `engine.max_concurrent` full contexts, in a share of the memory.

    A token takes, in each layer, a key and a value of `head_dim` numbers for each of the key-value heads.
    """
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    channels = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    token: int = 2 * text.num_hidden_layers * heads * channels * getattr(torch, config.model.dtype).itemsize
    one = -(-context // CACHE_BLOCK_TOKENS) * CACHE_BLOCK_TOKENS * token
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    num_engines = num_engines or (1 if config.engine.devices else config.engine.replicas)
    share = int(memory * (config.engine.device_memory or CPU_MEMORY_FRACTION) / num_engines)
    return max(2 * one, min(one * config.engine.max_concurrent, share))  # a block more than one context is needed


def make_work_dir(size: int | None = None) -> Path:
    """Make a directory for weights, sockets and logs, which goes when this process ends; remove those of killed ones.

    `size` is that of the weights in bytes. They are kept in memory where there is room for three times as many (the old
    ones, the new ones, and some air); on the disk otherwise, and where the size is not known.
    """
    shared, disk = Path("/dev/shm"), Path(tempfile.gettempdir())  # noqa: S108 - no name in it is foreseeable
    for left in [*shared.glob(f"{WORK_DIR_PREFIX}*"), *disk.glob(f"{WORK_DIR_PREFIX}*")]:
        with suppress(OSError):  # in use, gone already, or another user's
            os.close(_lock(left))
            shutil.rmtree(left, ignore_errors=True)
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
