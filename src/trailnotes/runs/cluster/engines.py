"""Engines as actors: each has a server of vLLM, on the node where Ray has placed it, for the process of the run alone.

Where an engine is lost with its actor, Ray starts another, perhaps on another node; its `Replica` asks for the new
address, and goes on as with any engine that was lost.
"""

from __future__ import annotations

import contextlib
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

import ray

from trailnotes.config.schema import Config
from trailnotes.errors import ClusterError, PolicyError, TrailnotesError
from trailnotes.policies.hf.policy import resolve_device
from trailnotes.policies.vllm.engine import Connect, EngineClient, EngineLostError
from trailnotes.policies.vllm.server import EngineServer, make_work_dir, start_engine
from trailnotes.runs.cluster.waiting import get_result
from trailnotes.web.loopback import LOOPBACK


class EngineActor:
    """Actor with one engine for a run, whose process is at the address `home`, and was started in `directory`."""

    def __init__(self, config: Config, home: str, directory: str, program: Path | None) -> None:
        with contextlib.suppress(OSError):
            os.chdir(directory)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # those that Ray has assigned, if any
        engine = config.engine.model_copy(update={"devices": (visible,) if visible else ()})
        self._config = config.model_copy(update={"engine": engine})
        self._home, self._program = home, program
        self._folder = make_work_dir()
        self._server: EngineServer | None = None

    def start(self) -> str:
        """Start the engine, in place of the one before; return its address once it is ready."""
        if self._server:
            self._server.close("was replaced")
        node = ray.util.get_node_ip_address()
        host = LOOPBACK if node == self._home else node
        try:
            with socket.create_server((host, 0)) as listener:
                port = listener.getsockname()[1]
            self._server = start_engine(self._config, 0, self._folder, host=host, port=port, program=self._program)
            EngineClient(self._server, self._config.engine).wait_until_ready()
        except (EngineLostError, OSError) as error:
            raise PolicyError(f"{error}") from error
        return self._server.url


def place_engines(config: Config, program: Path | None = None) -> tuple[list[Any], list[Connect]]:
    """Place `engine.replicas` engines, spread over the nodes of the cluster; `program` stands in for vLLM's.

    Each has as many GPUs as `engine.devices` names for one, or else a single one. Returns the actors, to be ended by
    the caller, and how to start the engine of each.
    """
    gpus = max((len(devices.split(",")) for devices in config.engine.devices), default=1)
    kind = ray.remote(EngineActor).options(
        num_cpus=config.run.threads or 1, num_gpus=0 if resolve_device(config.model.device).type == "cpu" else gpus,
        max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD",
    )  # fmt: skip
    home, directory = ray.util.get_node_ip_address(), str(Path.cwd())
    actors = [kind.remote(config, home, directory, program) for _ in range(config.engine.replicas)]
    return actors, [partial(start_placed_engine, actor, number, config) for number, actor in enumerate(actors)]


def start_placed_engine(actor: Any, number: int, config: Config) -> EngineServer:
    """Have an actor start its engine. Raises `PolicyError` where it finds no place in time, or cannot start it."""
    label = f"engine {number} of the cluster"
    try:
        url = get_result(actor.start.remote(), label, config.engine.start_timeout, "engine.start_timeout")
    except ClusterError as error:
        raise PolicyError(f"{error}; if the cluster has no room for it, lower engine.replicas or add nodes") from error
    except TrailnotesError as error:
        raise PolicyError(f"{label}: {error}") from error
    return EngineServer(label, url)
