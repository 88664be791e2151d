"""The cluster that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from nodes import QUIET, TwoNodes

collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]


@pytest.fixture(scope="module")
def cluster_of_module() -> Iterator[TwoNodes]:
    """One cluster for all tests of a file: to start it takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        nodes = TwoNodes()
        yield nodes
        nodes.close()


@pytest.fixture
def two_nodes(cluster_of_module: TwoNodes) -> TwoNodes:
    """That cluster, whole again if the test before broke it."""
    cluster_of_module.mend()
    return cluster_of_module
