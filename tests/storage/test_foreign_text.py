"""The reader of JSON: one error for what is none, and numbers that no float holds."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from trailnotes.errors import ConfigError
from trailnotes.gateway.tasks import GatewayEnv
from trailnotes.storage.files import parse_json, parse_json_at, read_toml, read_user_lines

DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 100_000])
def test_text_that_nests_too_deeply_is_a_value_error(text: str) -> None:
    for form in (text, text.encode()):
        with pytest.raises(ValueError, match="nests too deeply"):
            parse_json(form)


def test_ordinary_values_are_those_of_the_standard_library() -> None:
    text = json.dumps({"a": [1, -2, 0.1, 1e-300, 1e300, True, None, "é\ud800"], "b": {"c": 2**70, "d": -0.0}})
    assert repr(parse_json(text)) == repr(parse_json(text.encode())) == repr(json.loads(text))
    assert parse_json(b"\xef\xbb\xbf[1]") == [1]
    assert parse_json_at('x [1, "2"] y', 2) == ([1, "2"], 10)


def test_numbers_that_no_float_holds_are_kept_dropped_or_refused() -> None:
    text = "[NaN, -Infinity, 1e999, 1e308]"
    first, *rest = parse_json(text)
    assert math.isnan(first)
    assert rest == [-math.inf, math.inf, 1e308]
    assert parse_json(text, "drop") == [None] * 3 + [1e308]
    for number in ("NaN", "1e999"):
        with pytest.raises(ValueError, match="not a finite number"):
            parse_json(f"[{number}]", "refuse")


@pytest.mark.parametrize(
    ("data", "records"),
    [
        (b'{"a": 1}', [(1, {"a": 1})]),
        (b'\xef\xbb\xbf{"a": 1}\r\n \n\n{"b": 2}', [(1, {"a": 1}), (4, {"b": 2})]),
        (b"\xef\xbb\xbf\n[1]\n", [(2, [1])]),
        (b"", []),
    ],
)
def test_lines_of_a_person_are_read_whole(data: bytes, records: list[tuple[int, object]], tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(data)
    assert list(read_user_lines(path)) == records
    path.write_bytes(b"\xef\xbb\xbfa = 1")
    assert read_toml(path) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('{"id": "a"}\n\n{"id": "b", "seed": 1}', ""),
        ('{"id": "a"}\n{"id": "a", "split": "test"}', "line 2: 'a'"),
        ('{"id": "a", "seed": true}', "line 1"),
        ('\n{"id": 1}', "line 2"),
        ('{"id": "a"}\n{"id": ', "line 2"),
        ('{"id": "a"}\n{"id": "b", "split": "Train"}', "line 2: split 'Train'"),
    ],
)
def test_task_lists_are_whole_or_refused_by_line(text: str, refused: str, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(text)
    if refused:
        with pytest.raises(ConfigError, match=refused):
            GatewayEnv.tasks("train", str(path))
    else:
        assert [(task.id, task.seed) for task in GatewayEnv.tasks("train", str(path))] == [("a", 0), ("b", 1)]
