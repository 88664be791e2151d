"""`trailnotes engine serve`: an engine that policies on other machines may use, started anew when it is lost."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError, PolicyError
from trailnotes.policies.vllm.building import (
    build_engine_settings,
    count_weight_bytes,
    send_settings,
    spawn_engine_process,
)
from trailnotes.policies.vllm.link import EngineConnection, EngineLostError
from trailnotes.policies.vllm.process import CORE_FILE, find_engine_python, make_work_dir
from trailnotes.policies.vllm.remote import get_token
from trailnotes.policies.vllm.replica import MAX_REBUILDS
from trailnotes.policies.vllm.worker import wire

logger = logging.getLogger(__name__)
WEIGHT_BYTES_ALLOWANCE = 64 << 20  # bytes that the weights of any model may have
HEALTHY_SECONDS = 600.0  # seconds of service after which an engine that dies has not died at once


def serve_engine(
    config: Config,
    host: str,
    port: int,
    *,
    say: Callable[[str], None],
    token: str | None = None,
    core: Path = CORE_FILE,
) -> None:
    """Run one engine for whoever knows the token, until this process is interrupted.

    Args:
        config: of the run that will use it: `model`, `engine` and `rollout` are read. The engine gets the first of
            `engine.devices`.
        host: where to listen; beyond loopback only with a token.
        port: 0 takes a free one.
        say: told the address, once, when the engine is ready.
        token: that whoever uses it must know; None: the one of the environment.
        core: the file with the engine's class `Core`.

    Raises:
        ConfigError: there is no token, the port is taken, or the config cannot be used.
        MissingExtraError: vLLM is nowhere to be found.
        PolicyError: vLLM cannot run the model, or the engine dies again and again.
    """
    token = get_token(host) if token is None else token
    devices = next(iter(config.engine.devices), "")
    python = find_engine_python(config.engine.python)
    config = config.model_copy(update={"engine": config.engine.model_copy(update={"replicas": 1})})  # this one
    with open_listener(host, port) as door:
        folder = make_work_dir(count_weight_bytes(config))
        try:
            settings = build_engine_settings(config, folder, alone=True) | {
                "token": token,
                "listen": door.fileno(),
                "most_bytes": max_weight_bytes(config, folder),
                "tensor_parallel": devices.count(",") + 1,
            }
            address = f"{host}:{door.getsockname()[1]}"
            deaths = 0
            while True:
                process = spawn_engine_process(
                    config, python, folder / "engine.log", core, devices=devices, inherit=door.fileno()
                )
                link = send_settings(process, "the engine", config.engine, settings)
                began = time.monotonic()
                failure = _wait_until_lost(link, None if deaths else partial(say, address))
                deaths = 1 if time.monotonic() - began > HEALTHY_SECONDS else deaths + 1
                if deaths > MAX_REBUILDS:
                    raise PolicyError(f"{failure} (it was started anew {MAX_REBUILDS} times in a row, in vain)")
                logger.warning("%s: it is started anew", failure)
                for upload in folder.glob(f"*{wire.WEIGHTS_SUFFIX}"):  # that it was killed over
                    upload.unlink()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def max_weight_bytes(config: Config, folder: Path) -> int:
    """Count the bytes that weights may have: four times the model's own (the learner's may be of a wider type).

    Where the size of the model is not known, it is what is free where they are kept.
    """
    size = count_weight_bytes(config)
    return WEIGHT_BYTES_ALLOWANCE + 4 * size if size else shutil.disk_usage(folder).free


def _wait_until_lost(link: EngineConnection, ready: Callable[[], None] | None) -> str:
    """Block as long as the engine lives; how it ended. It ends with this call."""
    try:
        link.wait_until_ready()
        if ready:
            ready()
        return link.wait_until_lost()
    except EngineLostError as error:
        return str(error)
    finally:
        link.close()


def _describe_error(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that listens there, and that a process may inherit. Raises `ConfigError` where it cannot."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(
            f"an engine cannot listen at {host}:{port} ({_describe_error(error)}): name another --port (0 takes a "
            "free one) or --host"
        ) from error
