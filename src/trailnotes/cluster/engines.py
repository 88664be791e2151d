"""Engines as actors: each serves one, on the node that Ray has placed it on, to the process of the run alone.

Where an engine is lost with its actor, Ray starts another, perhaps on another node; the `Replica` that used it asks
where it is now, and goes on as with any engine that was lost.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.errors import PolicyError, TrailnotesError

if TYPE_CHECKING:
    from trailnotes.cluster.cluster import Cluster
    from trailnotes.config.schema import Config
    from trailnotes.policies.vllm.replica import Connect

LOCALHOST = "127.0.0.1"


class Engine:
    """The actor.

    Args:
        config: of the run.
        token: that only this run knows.
        home: address of the machine that the process of the run is on.
        directory: where that was started; see `Rank`.
        core: the file with the engine's class `Core`.
    """

    def __init__(self, config: Config, token: str, home: str, directory: str, core: Path) -> None:
        with contextlib.suppress(OSError):
            os.chdir(directory)
        self._known = threading.Event()
        self._address: tuple[str, int] | None = None
        self._failure = ""
        threading.Thread(target=self._serve, args=(config, token, home, core), daemon=True).start()

    def address(self) -> tuple[tuple[str, int] | None, str]:
        """Host and port of the engine, which is ready; or none, and why not."""
        self._known.wait()
        return self._address, self._failure

    def _serve(self, config: Config, token: str, home: str, core: Path) -> None:
        import ray

        from trailnotes.policies.vllm.serving import serve

        here = ray.util.get_node_ip_address()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # those that Ray has set aside, if any
        own = config.engine.model_copy(update={"urls": (), "replicas": 1, "devices": (visible,) if visible else ()})

        def ready(address: str) -> None:
            host, _, port = address.rpartition(":")
            self._address = host, int(port)
            self._known.set()

        try:
            config = config.model_copy(update={"engine": own})
            serve(config, LOCALHOST if here == home else here, 0, say=ready, token=token, core=core)
        except (TrailnotesError, OSError) as error:
            self._failure = str(error)
        except BaseException as error:  # noqa: BLE001 - the boundary: the process of the run must learn the reason
            self._failure = f"{type(error).__name__}: {' '.join(str(error).split())}"
        self._address = None
        self._known.set()


def gpus_of(config: Config) -> int:
    """GPUs that an engine needs: as many as `engine.devices` names for one; one if it names none, and there are any."""
    from trailnotes.policies.hf.policy import device_of

    if device_of(config.model.device).type == "cpu":
        return 0
    return max((len(devices.split(",")) for devices in config.engine.devices), default=1)


def place_engines(cluster: Cluster, core: Path | None = None) -> list[Connect]:
    """How to reach each of `engine.replicas` engines, which start on the cluster now.

    Args:
        cluster: places them, spread over the nodes.
        core: the file with the engine's class `Core`; None: vLLM's.

    Raises:
        ConfigError: `model.path` cannot be read here.
    """
    import ray

    from trailnotes.policies.vllm.building import expected_of
    from trailnotes.policies.vllm.process import CORE
    from trailnotes.policies.vllm.remote import reach

    config, token = cluster.config, secrets.token_hex(32)
    expected = expected_of(config)
    kind = ray.remote(Engine).options(
        num_cpus=config.run.threads or 1,
        num_gpus=gpus_of(config),
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy="SPREAD",
    )
    home, directory = ray.util.get_node_ip_address(), str(Path.cwd())
    actors = [kind.remote(config, token, home, directory, core or CORE) for _ in range(config.engine.replicas)]
    return [
        partial(reach, partial(where, actor, number, config), config.engine, expected, token=token)
        for number, actor in enumerate(actors)
    ]


def where(actor: Any, number: int, config: Config) -> tuple[str, int]:
    """Host and port of an engine, as soon as it is ready.

    Raises:
        PolicyError: it is not in time, or cannot be.
    """
    import ray

    limit = config.engine.start_timeout
    try:
        address, failure = ray.get(actor.address.remote(), timeout=limit)
    except ray.exceptions.GetTimeoutError as error:
        raise PolicyError(
            f"engine {number} of the cluster found no room there, or did not start, within engine.start_timeout = "
            f"{limit:g} s: lower engine.replicas, or add nodes"
        ) from error
    except ray.exceptions.RayError as error:
        last = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), "")
        raise PolicyError(f"engine {number} of the cluster is gone: {last[:300]}") from error
    if address is None:
        raise PolicyError(f"engine {number} of the cluster: {failure}")
    host, port = address
    return str(host), int(port)
