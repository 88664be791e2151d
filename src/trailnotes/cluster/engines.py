"""Engines as actors: each serves one, on the node that Ray has placed it on, to the process of the run alone.

Where an engine is lost with its actor, Ray starts another, perhaps on another node; its `Replica` asks for the new
address, and goes on as with any engine that was lost.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.cluster.waiting import get_result
from trailnotes.errors import ClusterError, PolicyError, TrailnotesError

if TYPE_CHECKING:
    from trailnotes.config.schema import Config
    from trailnotes.policies.vllm.replica import Connect

LOCALHOST = "127.0.0.1"


class EngineActor:
    """Actor that serves one engine to a run, whose process is at the address `home`, and was started in `directory`."""

    def __init__(self, config: Config, token: str, home: str, directory: str, core: Path) -> None:
        with contextlib.suppress(OSError):
            os.chdir(directory)
        self._known = threading.Event()
        self._address: tuple[str, int] | None = None
        self._failure = ""
        threading.Thread(target=self._serve, args=(config, token, home, core), daemon=True).start()

    def address(self) -> tuple[tuple[str, int] | None, str]:
        """Wait for the engine; return its host and port, or None and why not."""
        self._known.wait()
        return self._address, self._failure

    def _serve(self, config: Config, token: str, home: str, core: Path) -> None:
        import ray

        from trailnotes.policies.vllm.building import serve_engine

        here = ray.util.get_node_ip_address()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # those that Ray has set aside, if any
        own = config.engine.model_copy(update={"devices": (visible,) if visible else ()})

        def ready(address: str) -> None:
            host, _, port = address.rpartition(":")
            self._address = host, int(port)
            self._known.set()

        try:
            config = config.model_copy(update={"engine": own})
            serve_engine(config, LOCALHOST if here == home else here, 0, say=ready, token=token, core=core)
        except (TrailnotesError, OSError) as error:
            self._failure = str(error)
        except BaseException as error:  # noqa: BLE001 - the boundary: the process of the run must learn the reason
            self._failure = f"{type(error).__name__}: {' '.join(str(error).split())}"
        self._address = None
        self._known.set()


def has_cluster_engines(config: Config) -> bool:
    """Return whether the cluster places the engines of a run: an embedded one lives in the process of the run."""
    return config.engine.name == "vllm" and not config.engine.urls


def get_engine_resources(config: Config) -> dict[str, float]:
    """List the resources of one engine: as many GPUs as `engine.devices` names for one, or else a single one."""
    from trailnotes.policies.hf.policy import resolve_device

    cpus = {"CPU": float(config.run.threads or 1)}
    if resolve_device(config.model.device).type == "cpu":
        return cpus
    return cpus | {"GPU": float(max((len(devices.split(",")) for devices in config.engine.devices), default=1))}


def place_engines(config: Config, core: Path | None = None) -> tuple[list[Any], list[Connect]]:
    """Start `engine.replicas` engines, spread over the nodes of the cluster; `core` None is vLLM's.

    Returns:
        The actors, to be ended by the caller, and how to reach the engine of each.

    Raises:
        ConfigError: `model.path` cannot be read here.
    """
    import ray

    from trailnotes.policies.vllm.building import get_model_requirement
    from trailnotes.policies.vllm.link import connect_engine
    from trailnotes.policies.vllm.process import CORE_FILE

    token = secrets.token_hex(32)
    expected, each = get_model_requirement(config), get_engine_resources(config)
    kind = ray.remote(EngineActor).options(
        num_cpus=each["CPU"], num_gpus=each.get("GPU", 0), max_restarts=-1, max_task_retries=-1,
        scheduling_strategy="SPREAD",
    )  # fmt: skip
    home, directory = ray.util.get_node_ip_address(), str(Path.cwd())
    actors = [kind.remote(config, token, home, directory, core or CORE_FILE) for _ in range(config.engine.replicas)]
    return actors, [
        partial(
            connect_engine, partial(get_engine_address, actor, number, config), config.engine, expected, token=token
        )
        for number, actor in enumerate(actors)
    ]


def get_engine_address(actor: Any, number: int, config: Config) -> tuple[str, int]:
    """Wait until an engine is ready, and return its host and port.

    Raises:
        PolicyError: it is not in time, or cannot be.
    """
    who = f"engine {number} of the cluster"
    try:
        address, failure = get_result(actor.address.remote(), who, config.engine.start_timeout, "engine.start_timeout")
    except ClusterError as error:
        raise PolicyError(f"{error}; if the cluster has no room for it, lower engine.replicas or add nodes") from error
    if address is None:
        raise PolicyError(f"{who}: {failure}")
    host, port = address
    return str(host), int(port)
