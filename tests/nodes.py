"""A Ray cluster of two nodes on this machine: the one of the driver, and another that tests may lose."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from children import children_of
from trailnotes.errors import ClusterError

SMALL = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": 100 << 20}
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray must not phone home
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or it warns of what it will change
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *(path for path in sys.path if path)]),
}


class TwoNodes:
    """A cluster of Ray's own test tool; its second node is born again where a test has killed it."""

    def __init__(self, **head: Any) -> None:
        from ray._common.utils import get_default_ray_temp_dir
        from ray.cluster_utils import Cluster

        self._cluster: Any = None
        self._folder = tempfile.mkdtemp(prefix="ray-")  # short, for it has sockets, and these have short names
        before = signal.getsignal(signal.SIGTERM)
        Path(get_default_ray_temp_dir()).mkdir(exist_ok=True)  # it notes its address there
        try:
            self._cluster = Cluster(initialize_head=True, head_node_args=SMALL | {"temp_dir": self._folder} | head)
            self._other: Any = None
            self.mend()
        except BaseException:
            self.close()
            raise
        finally:
            signal.signal(signal.SIGTERM, before)  # Ray's would end its nodes whenever a child of ours is terminated

    @property
    def address(self) -> str:
        """HOST:PORT for `cluster.address`."""
        return str(self._cluster.address)

    @property
    def other(self) -> str:
        """Id of the node that the driver is not on."""
        return str(self._other.node_id)

    def lose_other(self) -> None:
        """Kill all processes of the second node at once; its workers would end by themselves, but some time later."""
        raylets = [started.process.pid for started in self._other.all_processes["raylet"]]
        workers = [worker for raylet in raylets for worker in children_of(raylet)]
        self._cluster.remove_node(self._other, allow_graceful=False)
        self._other = None
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)

    def mend(self) -> None:
        """Have two nodes again."""
        if self._other is None:
            self._other = self._cluster.add_node(num_cpus=4, object_store_memory=100 << 20)

    def close(self) -> None:
        """End all processes."""
        if self._cluster is not None:
            self._cluster.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)


def get_pid(actor: Any) -> int:
    """The process of an actor."""
    import ray

    return int(ray._private.state.actors(actor._actor_id.hex())["Pid"])


@contextmanager
def refused(why: str) -> Iterator[None]:
    """One line of a `ClusterError`."""
    with pytest.raises(ClusterError, match=why) as caught:
        yield
    assert "\n" not in str(caught.value)
