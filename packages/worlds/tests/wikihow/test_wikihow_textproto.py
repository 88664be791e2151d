"""Protobuf's text format: what it means, what is refused, and that nothing in a file is executed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import howto
from trailnotes.errors import ConfigError
from trailnotes_worlds.wikihow.matching import Transformation
from trailnotes_worlds.wikihow.taskfile import compute_max_reward, format_instructions, parse_task, read_task
from trailnotes_worlds.wikihow.textproto import (
    MAX_DEPTH,
    MAX_SIZE,
    Identifier,
    ProtoMessage,
    ProtoValue,
    parse_textproto,
)


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_textproto(text, "a.textproto")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a: 1", [1]),
        ("a: [1, 2.5]; a: -3e2f", [1, 2.5, -300.0]),
        ("a: 0x1F, a: 017", [31, 15]),
        ("a: OR a: true", [Identifier("OR"), Identifier("true")]),
        (r"""a: "x\n" 'y' # and so on""", ["x\ny"]),
        (r'a: "\303\251\xe2\x82\xac\u00e9\U0001F95A"', ["é€é🥚"]),
        (r'a: "\"\'\\"', ["\"'\\"]),
    ],
)
def test_values_are_read_as_protobuf_reads_them(text: str, values: list[ProtoValue]) -> None:
    assert parse_textproto(text, "f").fields == {"a": values}


def test_messages_lie_within_each_other() -> None:
    read = parse_textproto("a { b: 1 c <d: 'x'> }\ne: [{ f: 2 }, {}]", "f")
    (a,), (first, second) = read.fields["a"], read.fields["e"]
    assert isinstance(a, ProtoMessage)
    assert a.fields["b"] == [1]
    assert a.fields["c"] == [ProtoMessage("f:1", {"d": ["x"]})]
    assert (first, second) == (ProtoMessage("f:2", {"f": [2]}), ProtoMessage("f:2", {}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: {", "a.textproto:1: the file ends before '}': it was cut off"),
        ("a:\n", "a.textproto:2: the file ends where a value should be"),
        ("\na 1", "a.textproto:2: a is followed by neither a colon nor a message"),
        ('a: "x', "is no text format"),
        ("a: }", "'}' is no value"),
        ("1: 2", "'1' stands where the name of a field should be"),
        (r'a: "\q"', "is no escape"),
        (r'a: "\ud800"', "is no character"),
        (r'a: "\xff"', "is no UTF-8"),
        ("a: 1x", "is no text format"),
        ("a { " * (MAX_DEPTH + 2), "messages within each other"),
        (" " * (MAX_SIZE + 1), "it is no task file"),
        ("\0", "is no text format"),
        ("a: 1\nb: " + "9" * 5000, "a.textproto:2: a number of more than 64 digits"),
        ("a: " + "9" * 400, "a.textproto:1: a number of more than 64 digits"),  # no float holds it
    ],
)
def test_what_is_none_is_refused_with_its_line(text: str, said: str) -> None:
    assert said in refusal(text)


names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
bare = st.one_of(texts, st.integers(-(10**9), 10**9))
messages = st.recursive(
    st.dictionaries(names, st.lists(bare, min_size=1, max_size=3), max_size=3),
    lambda inner: st.dictionaries(names, st.lists(st.one_of(bare, inner), min_size=1, max_size=3), max_size=3),
    max_leaves=10,
)


def written(fields: dict[str, list[object]]) -> str:
    parts = []
    for name, values in fields.items():
        for value in values:
            if isinstance(value, dict):
                parts.append(f"{name} {{ {written(value)} }}")
            elif isinstance(value, str):
                escaped = "".join(f"\\{byte:03o}" if byte < 32 or byte in b'"\\' else chr(byte) if byte < 127
                                  else f"\\x{byte:02x}" for byte in value.encode())  # fmt: skip
                parts.append(f'{name}: "{escaped}"')
            else:
                parts.append(f"{name}: {value}")
    return "\n".join(parts)


def plain(message: ProtoMessage) -> dict[str, list[object]]:
    return {k: [plain(v) if isinstance(v, ProtoMessage) else v for v in values] for k, values in message.fields.items()}


@settings(max_examples=15)
@given(messages)
def test_what_is_written_is_read_back(fields: dict[str, list[object]]) -> None:
    assert plain(parse_textproto(written(fields), "f")) == fields


@settings(max_examples=60)
@given(st.text(max_size=200) | st.text(alphabet="ab:{}[]<>\"\\'# \n,;01.-", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_textproto(text, "f")
    except ConfigError as error:
        said = str(error)
    else:
        said = "f:1: "
    assert re.match(r"f:\d+: ", said)


def test_a_file_of_ours_is_a_task(tmp_path: Path) -> None:
    (tmp_path / "boil-4.textproto").write_text(howto.TASK)
    task = read_task(tmp_path / "boil-4.textproto")
    assert [source.id for source in task.sources] == [1, 2, 3, 5, 7]
    assert compute_max_reward(task) == 3
    assert format_instructions(task).splitlines() == [
        "Search an article to learn how to boil an egg.",
        'Then, access the article "How to Boil an Egg"',
        "Then, check the author page of Ann Lee, PhD.",
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("\n  id: 7", "\n  id: 77", "refers to the missing id 7"),
        ("type: SINGLE", "type: NEITHER", "type is one of SINGLE, AND, OR"),
        ("type: SINGLE", 'type: "SINGLE"', "without quotes"),
        ("type: SINGLE", "typ: SINGLE", "'typ' is unknown here: use cache_until"),
        ("id: 6 events: { id: 5 }", "id: 6 events: { id: 6 }", "made of itself"),
        ('"y = 1"', "\"y = __import__('os').system('touch pwned')\"", "is not understood: give y a constant"),
        ('"y = 1"', '"import os"', "is not understood"),
        ('"y = 1"', '"y = ("', "is no statement"),
        (r"\\begg\\b", "(", "is no regular expression"),
        ('.$\\"View\\"#', ":hover#", "is no selector"),
        ('command: "Search an article to learn how to boil an egg."', "", "has no command"),
        ("episode_end_listener", "null_listener", "could never be finished"),
        ("text_detect: { ", "text_detect: { mode: SBERT ", "needs a sentence encoder"),
        ("log_event: {", "icon_match: {} log_event: {", "an event source is one of"),
        ("properties: {", "properties: { sign: 9 ", "sign is one of EQ, LE"),
    ],
)
def test_files_that_cannot_be_meant_are_refused(old: str, new: str, said: str) -> None:
    assert old in howto.TASK
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_task(howto.TASK.replace(old, new), "boil.textproto")
    assert not Path("pwned").exists()


def test_a_cut_file_and_one_that_is_no_text_are_refused(tmp_path: Path) -> None:
    for size in range(0, len(howto.TASK) - 60, 97):
        with pytest.raises(ConfigError):
            parse_task(howto.TASK[:size], "cut.textproto")
    (tmp_path / "raw").write_bytes(b"\xff\xfe\0")
    for name in ("raw", "missing"):
        with pytest.raises(ConfigError, match="cannot be read as a task file"):
            read_task(tmp_path / name)


@pytest.mark.parametrize(
    ("statements", "seen", "value"),
    [
        ([], 5, 5),
        (["y = 1"], 5, 1),
        (["y = -2.5"], 5, -2.5),
        (["y = x"], ["a"], ["a"]),
        (["y = x[0]"], ["a", "b"], "a"),
        (["y = x[1][0]"], [[], ["z"]], "z"),
        (["y = ['go', x[0]]"], ["a"], ["go", "a"]),
        (["y = 1", "y = True"], 5, True),
    ],
)
def test_transformations_are_constants_and_parts(statements: list[str], seen: object, value: object) -> None:
    assert Transformation(statements, "f:1").apply(seen) == value


@pytest.mark.parametrize(
    "statement",
    ["y = x.pop()", "y = f(x)", "y = x + 1", "z = 1", "y = x if x else 1",
     "y = 1; y = 2", "y = [i for i in x]", "y = x[z]", "y = (lambda: 1)",
     "x[0] = 1", "y = f'{x}'", "y = x[1:2]", "y = " + "[" * 300 + "]" * 300],
)  # fmt: skip
def test_other_statements_are_refused(statement: str) -> None:
    with pytest.raises(ConfigError, match="transformation"):
        Transformation([statement], "f:1")
