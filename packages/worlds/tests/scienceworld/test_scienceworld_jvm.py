"""Finding and starting Java, and talking to it: fake programs for what goes wrong, one real process for the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.protocol import escape_new_line, get_command_part, unescape_new_line

from trailnotes.errors import ConfigError, EnvError
from trailnotes_worlds.java.gateway import JavaGateway, SimulatorLostError, decode_value, encode_value
from trailnotes_worlds.scienceworld.client import ScienceWorldSimulator


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
