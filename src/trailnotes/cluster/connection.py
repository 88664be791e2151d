"""Connection to a Ray cluster, with checks that it answers, runs the same code, and is large enough."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trailnotes
from trailnotes.cluster.cluster import Cluster
from trailnotes.errors import ClusterError, MissingExtraError, find_missing_module, format_install_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trailnotes.config.schema import Config

logger = logging.getLogger(__name__)
CONNECT_LIMIT = 5.0  # seconds for an address to answer
SHUTDOWN_DELAY = 1.0  # seconds: Ray 2.60 ends the process where news of an actor's end comes while it shuts down
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # of a client, RFC 9113 section 3.4
SETTINGS_FRAME = 4  # type of the first frame of either side
EMPTY_SETTINGS = bytes((0, 0, 0, SETTINGS_FRAME, 0, 0, 0, 0, 0))


@contextlib.contextmanager
def connect_cluster(config: Config) -> Iterator[Cluster]:
    """Connect to the Ray cluster at `cluster.address` for the duration of the block.

    A program that is connected to Ray already stays so, and its cluster is the one.

    Raises:
        MissingExtraError: Ray is not installed.
        ClusterError: Ray does not answer, a machine has other versions, or too little is left.
    """
    if package := find_missing_module("ray"):
        raise MissingExtraError(f"cluster.address needs the package {package}: {format_install_command('ray')}")
    import ray

    is_ours = not ray.is_initialized()
    if is_ours:
        _init_ray(config.cluster.address)
    cluster = None
    try:
        cluster = Cluster(config)
        _require_same_code(cluster)
        cluster.require_resources()
        if cluster.num_machines > 1 and os.environ.get("RAY_AUTH_MODE") != "token":
            logger.warning(
                "this Ray cluster asks for no token: whoever reaches its machines can run anything on them; "
                "RAY_AUTH_MODE=token, on all of them, is the cure"
            )
        yield cluster
    finally:
        if cluster is not None and ray.is_initialized():
            cluster.close()
        if is_ours:
            time.sleep(SHUTDOWN_DELAY)
            ray.shutdown()


def _init_ray(address: str) -> None:
    """Connect to Ray once the address answers: Ray itself takes longer than a minute to find out."""
    import ray
    from ray._private.services import find_gcs_addresses

    if address != "auto":
        _require_ray_answer(address)
    elif len(found := sorted(find_gcs_addresses())) > 1 and "RAY_ADDRESS" not in os.environ:  # Ray takes the newest
        raise ClusterError(
            f'cluster.address = "auto": {len(found)} Ray clusters run on this machine: name one of {", ".join(found)}'
        )
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="WARNING")
    except (ConnectionError, RuntimeError, ValueError, SystemExit, ray.exceptions.RayError) as error:
        raise ClusterError(f"cluster.address = {address!r}: {_explain_error(error)}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # how a run is stopped is not Ray's to say


def _explain_error(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, SystemExit):  # Ray ends the process where its server is mute
        return "it did not answer as Ray does: name the address that `ray start --head` printed"
    if isinstance(error, ConnectionError):
        return (
            "no Ray cluster answers this process: start one (ray start --head), name its address HOST:PORT, or set "
            "RAY_AUTH_MODE=token where it asks for a token"
        )
    return f"{text[:300]}: all machines need the same versions, and the same token (RAY_AUTH_MODE) where there is one"


def _require_ray_answer(address: str) -> None:
    """Refuse an address that does not answer as gRPC does, which is Ray's protocol."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_LIMIT) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "1":
                return
            connection.sendall(HTTP2_PREFACE + EMPTY_SETTINGS)
            answer = connection.recv(9)
    except OSError as error:
        raise ClusterError(
            f"cluster.address = {address!r}: nobody answers ({error.strerror or error}): start Ray there "
            "(ray start --head), or name the address that it printed"
        ) from error
    if len(answer) < 4 or answer[3] != SETTINGS_FRAME:
        raise ClusterError(
            f"cluster.address = {address!r}: something else than Ray answers: name the address that "
            "`ray start --head` printed"
        )


def get_code_versions() -> dict[str, str]:
    """List the versions that must be the same on all machines, by name."""
    import ray

    digest = hashlib.sha256()
    root = Path(trailnotes.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return {
        "Python": platform.python_version(),
        "Ray": ray.__version__,
        "Trailnotes": f"{trailnotes.__version__} ({digest.hexdigest()[:8]})",
    }


def _require_same_code(cluster: Cluster) -> None:
    import ray

    ours, remote = get_code_versions(), ray.remote(num_cpus=0, max_retries=0)(get_code_versions)
    asked = {node: remote.options(scheduling_strategy=cluster.pin_to_node(node)).remote() for node in cluster.nodes}
    for node, answer in asked.items():
        theirs = _get_node_versions(cluster, node, answer)
        if theirs is None:
            cluster.remove_node(node)
            continue
        for name, version in ours.items():
            if theirs[name] != version:
                raise ClusterError(
                    f"{cluster.nodes[node]} has {name} {theirs[name]}, this process {version}: install the same there"
                )


def _get_node_versions(cluster: Cluster, node: str, answer: Any) -> dict[str, str] | None:
    """Get the versions of a node; None where the node was lost a moment ago, and Ray has only just noticed."""
    import ray

    limit = cluster.config.cluster.timeout
    try:
        found: dict[str, str] = ray.get(answer, timeout=limit)
    except ray.exceptions.GetTimeoutError as error:
        raise ClusterError(
            f"{cluster.nodes[node]} starts no process within cluster.timeout = {limit:g} s: see its Ray logs"
        ) from error
    except (ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError, ray.exceptions.WorkerCrashedError):
        return None
    except ray.exceptions.RayError as error:
        last = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), "")
        raise ClusterError(
            f"{cluster.nodes[node]} cannot run Trailnotes ({last[:200]}): install the same version there, with the "
            "extra ray"
        ) from error
    return found
