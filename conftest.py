"""What tests of all kinds share: a start model of random weights, servers, and the order in which files begin."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

import trailnotes.runs.training  # noqa: F401 - here pytest itself compiles it, once, before its workers would, each
from proxy import Proxy, proxying
from served import serving
from small import save_start_model
from tinyrun import trained_once
from trailnotes.commands import relax_gc
from trailnotes.config import methods
from trailnotes.policies.hf import policy

relax_gc()

# A shell starts what runs in the background with SIGINT ignored, and the tests send it to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test cuts the power, and a disk that others write to may let one wait.
os.fsync = lambda descriptor: None

# Beside other work a machine may be slow at anything.
settings.register_profile("slow machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slow machine")


# They wait for processes more than they compute: begun last, they would leave other workers without work.
FIRST = (
    "test_train.py", "test_tinker_runs.py", "test_policy.py", "test_store_model.py", "test_readme.py",
    "test_methods.py",
    "test_docs.py", "test_tinker_methods.py", "test_commands_in_docs.py", "test_notebook.py", "test_adapt_endpoint.py",
    "test_served.py", "test_openai.py", "test_gateway_processes.py", "test_sharded.py", "test_tinker_learner.py",
    "test_warmstart.py", "test_site.py", "test_memory.py", "test_small_demo.py", "test_scienceworld.py",
    "test_workers.py", "test_cluster.py", "test_demo.py", "test_ranks.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of `FIRST` first, in their order."""
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(FIRST)))


def pytest_collection_finish() -> None:
    """The collector need not look again at what all files have imported."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    named = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**named))
    return True


@pytest.fixture
def heeds_hangup() -> Iterator[None]:
    """This process, and those that it starts, take SIGHUP as under a terminal: nohup has it ignored, and so do we."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def fast_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with instructions for bfloat16, whatever this one has."""
    monkeypatch.setattr(policy, "multiplies_bfloat16", lambda: True)


@pytest.fixture(scope="session")
def start_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory, never written to."""
    return save_start_model(tmp_path_factory.mktemp("start") / "model")


@pytest.fixture
def run_dir(start_model: Path) -> Path:
    """Two iterations of EMPO2, with checkpoints and a memory."""
    return trained_once(start_model, train={"iterations": 2})


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of compiled games that the tests of a file share."""
    return tmp_path_factory.mktemp("games")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server's API; it starts with the first test that asks for it."""
    with serving(tmp_path_factory.mktemp("served")) as url:
        yield url


@pytest.fixture
def proxy(served: str) -> Iterator[Proxy]:
    """Stands before that server."""
    with proxying(served) as proxy:
        yield proxy


@pytest.fixture
def no_endpoint_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear keys, addresses and proxies of this machine, and shorten waits between tries."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "TRAILNOTES_EMBEDDER_KEY", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr("trailnotes.web.faults.MIN_WAIT", 0.01)


@pytest.fixture
def engine_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start `tests/causal.py` in the place of vLLM; a file in the folder returned is a fault of every engine."""
    monkeypatch.setattr("trailnotes.policies.vllm.server.PROGRAM", Path(__file__).parent / "tests" / "causal.py")
    path = tmp_path / "faults"
    path.mkdir()
    monkeypatch.setenv("FAKE_ENGINE", str(path))
    return path


@pytest.fixture
def same_threads() -> Iterator[None]:
    """What runs in this process may set torch's number of threads; afterwards it is as before."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def methods_as_before() -> Iterator[None]:
    """What a test registers or installs is forgotten after it."""
    before = dict(methods.loaded)
    yield
    methods.find_modules.cache_clear()
    methods.loaded.clear()
    methods.loaded.update(before)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever connects fails the test, but for threads that ran before it: a client of another test may keep alive."""
    connect, others = socket.socket.connect, {*threading.enumerate()} - {threading.current_thread()}

    def refuse(self: socket.socket, address: Any) -> None:
        if threading.current_thread() not in others:
            pytest.fail("it went to the network")
        connect(self, address)

    monkeypatch.setattr("socket.socket.connect", refuse)
