"""Servers of the Tinker API for tests, as processes: the stand-in, and skyrl-tx where there is one."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinker

from trailnotes.config.schema import Config
from trailnotes.learner.learner import Learner
from trailnotes.policies.hf.policy import load_model
from trailnotes.types import Sample

REAL = os.environ.get("TRAILNOTES_TEST_TINKER", "")  # a Python that has skyrl-tx
KEY = "tml-of-a-test"  # the SDK sends no key that begins otherwise
RANK = 4
START = 180.0  # seconds until skyrl-tx answers; 8 on an idle machine


@dataclass
class Server:
    """A server of the Tinker API, and what tests do with it by the SDK."""

    dialect: str
    model: Path
    root: Path
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.kill()

    def start(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError


class Forks:
    """Starts stand-ins out of one process that has imported all they need, which takes seconds."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).parent / "tinker" / "stand_in.py")]
        env = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, *words: str) -> tuple[int, int]:
        """Return process and port."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(words), file=self.process.stdin, flush=True)
        assert select.select([self.process.stdout], [], [], START)[0], "the stand-in does not start"
        pid, port = self.process.stdout.readline().split()
        assert pid != "0", "the stand-in did not start; its error is above"
        return int(pid), int(port)


@dataclass
class StandIn(Server):
    """One stand-in; `start` after `kill` has the same address and finds what it had written."""

    forks: Forks | None = None
    options: tuple[str, ...] = ()
    pid: int = 0

    def start(self) -> None:
        assert self.forks is not None
        names = {"model": self.model, "root": self.root, "dialect": self.dialect, "port": self.port}
        words = [word for name, value in names.items() for word in (f"--{name}", str(value))]
        self.pid, self.port = self.forks.start(*words, *self.options)

    def kill(self) -> None:
        """End it, and wait until its port is free."""
        if self.pid:
            process = os.pidfd_open(self.pid)
            signal.pidfd_send_signal(process, signal.SIGKILL)
            assert select.select([process], [], [], 60)[0], "the killed stand-in does not end"
            os.close(process)
            self.pid = 0

    def add_fault(self, **fault: Any) -> None:
        ask(f"{self.url}/faults", fault)

    def counts(self) -> dict[str, dict[str, int]]:
        """Requests by path, and tokens by what was done with them."""
        return ask(f"{self.url}/counts")


@dataclass
class SkyRL(Server):
    """The server of skyrl-tx, in the environment that `REAL` belongs to."""

    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.root.mkdir(exist_ok=True)  # it may have been killed
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        backend = {
            "max_lora_adapters": 32,
            "max_lora_rank": 8,
            "train_micro_batch_size": 4,
            "sample_max_num_sequences": 4,
        }
        names = {"base-model": self.model, "backend": "jax", "backend-config": json.dumps(backend), "port": self.port}
        names |= {"database-url": f"sqlite:///{self.root}/server.db", "checkpoints-base": self.root / "checkpoints"}
        words = [word for name, value in names.items() for word in (f"--{name}", str(value))]
        path = f"{Path(REAL).parent}:{os.environ['PATH']}"  # it starts its engine by the `uv` beside this Python
        env = os.environ | {"PATH": path, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
        env.pop("PYTHONPATH", None)
        command = [REAL, "-m", "tx.tinker.api", "--host", "127.0.0.1", *words]
        with (self.root / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=self.root, env=env, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + START
        while not self.is_up():
            alive = self.process.poll() is None and time.monotonic() < until
            assert alive, f"skyrl-tx did not start: {(self.root / 'server.log').read_text()[-2000:]}"
            time.sleep(0.2)

    def is_up(self) -> bool:
        try:
            return bool(ask(f"{self.url}/api/v1/healthz"))
        except OSError:
            return False

    def kill(self) -> None:
        """End the server and its engine."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def score_here(config: Config, model: Path, rows: Sequence[Sample]) -> list[float]:
    """Score rows by a model on disk, in this process."""
    lora = config.model.lora.model_copy(update={"enabled": True})
    loaded = load_model(config.model.model_copy(update={"path": str(model), "lora": lora}))[0]
    learner = Learner(loaded, config.optim, config.loss, temperature=1.0)
    return [value for row in learner.logprobs(rows) for value in row]


def close_service(service: tinker.ServiceClient) -> None:
    """Close the connections, which the SDK leaves to the end of the process."""
    holder = service.holder
    holder.close()
    for pool in list(holder._client_pools.values()):
        for client in pool._clients:
            asyncio.run_coroutine_threadsafe(client.close(), holder.get_loop()).result(10)
