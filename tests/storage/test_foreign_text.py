"""The reader of JSON: one error for what is none, and numbers that no float holds."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from trailnotes.errors import ConfigError, RunError
from trailnotes.storage.demonstrations import read_demonstrations
from trailnotes.storage.files import parse_json, parse_json_at, read_jsonl

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
    kept = parse_json(text)
    assert math.isnan(kept[0])
    assert kept[1:] == [-math.inf, math.inf, 1e308]
    assert parse_json(text, "drop") == [None] * 3 + [1e308]
    for number in ("NaN", "1e999"):
        with pytest.raises(ValueError, match="not a finite number"):
            parse_json(f"[{number}]", "refuse")


def test_lines_that_nest_too_deeply_are_named(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(f'{{"a": NaN}}\n{{"a": {DEEP}\n')
    lines = read_jsonl(path)
    assert next(lines) == {"a": None}
    with pytest.raises(RunError, match="line 2 is damaged"):
        next(lines)
    path.write_text(f"{DEEP}\n")
    with pytest.raises(ConfigError, match=r":1 is not a demonstration .*nests"):
        read_demonstrations(path, "warmstart.path")
