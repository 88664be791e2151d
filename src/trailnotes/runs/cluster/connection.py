"""Connection to a Ray cluster, with checks that it answers, runs the same code, and has room for the run."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import trailnotes
from trailnotes.errors import ClusterError, require_extra

if TYPE_CHECKING:
    from trailnotes.config.schema import Config
    from trailnotes.runs.cluster.cluster import Cluster

logger = logging.getLogger(__name__)
CONNECT_LIMIT = 5.0  # seconds for an address to accept a connection
SHUTDOWN_DELAY = 1.0  # seconds: Ray 2.60 ends the process where news of an actor's end comes while it shuts down


@contextlib.contextmanager
def connect_cluster(config: Config) -> Iterator[Cluster]:
    """Connect to the Ray cluster at `cluster.address` for the duration of the block.

    A program that is connected to Ray already stays so, and its cluster is the one.

    Raises:
        MissingExtraError: Ray is not installed.
        ClusterError: Ray does not answer, a machine has another version, or there is no room for the run.
    """
    require_extra("ray", "cluster.address")
    import ray

    from trailnotes.runs.cluster.cluster import Cluster

    is_ours = not ray.is_initialized()
    if is_ours:
        _init_ray(config.cluster.address)
    cluster = None
    try:
        cluster = Cluster(config)
        _require_same_version(cluster)
        cluster.reserve()
        machines = {node["NodeManagerAddress"] for node in cluster.nodes.values()}
        if len(machines) > 1 and os.environ.get("RAY_AUTH_MODE") != "token":
            logger.warning("this Ray cluster asks for no token, so whoever reaches its machines can run anything on "
                           "them: set RAY_AUTH_MODE=token on all")  # fmt: skip
        yield cluster
    finally:
        if cluster is not None and ray.is_initialized():
            cluster.close()
        if is_ours:
            time.sleep(SHUTDOWN_DELAY)
            ray.shutdown()


def _init_ray(address: str) -> None:
    import ray

    if address != "auto":  # Ray itself takes longer than a minute to notice that nothing listens there
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_LIMIT).close()
        except OSError as error:
            reason = error.strerror or error
            raise ClusterError(f"cluster.address = {address!r}: no answer ({reason}): start Ray there") from error
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="WARNING")
    except (ConnectionError, RuntimeError, ValueError, SystemExit, ray.exceptions.RayError) as error:
        text = " ".join(str(error).split())[:300]
        raise ClusterError(
            f"cluster.address = {address!r} does not answer as Ray does ({text}): all machines need the same Python "
            "and Ray, and the same token where RAY_AUTH_MODE=token"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray sets a handler of its own


def get_version() -> str:
    return trailnotes.__version__


def _require_same_version(cluster: Cluster) -> None:
    import ray

    remote = ray.remote(num_cpus=0, max_retries=0)(get_version)
    refs = {node: remote.options(scheduling_strategy=cluster.pin_to_node(node)).remote() for node in cluster.nodes}
    for node, ref in refs.items():
        name = cluster.get_node_name(node)
        try:
            theirs = ray.get(ref, timeout=cluster.config.cluster.timeout)
        except (ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError, ray.exceptions.WorkerCrashedError):
            continue  # the node was lost a moment ago, and Ray has only just noticed
        except ray.exceptions.RayError as error:
            last = str(error).strip().rpartition("\n")[2][:200]
            raise ClusterError(f"{name} cannot run Trailnotes ({last}): install the extra ray there") from error
        if theirs != get_version():
            raise ClusterError(f"{name} has Trailnotes {theirs}, this process {get_version()}: install the same there")
