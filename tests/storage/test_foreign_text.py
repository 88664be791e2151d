"""The one reader of JSON and TOML that others wrote: one error, and no value that breaks whoever goes on with it."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import pytest

import trailnotes
import trailnotes_lab
import trailnotes_worlds
from trailnotes.errors import ConfigError, RunError
from trailnotes.storage import checkpoint
from trailnotes.storage.demonstrations import read_demonstrations
from trailnotes.storage.files import MAX_DIGITS, MAX_NESTING, parse_json, parse_json_at, parse_toml, read_jsonl

PACKAGES = [Path(package.__file__).parent for package in (trailnotes, trailnotes_worlds, trailnotes_lab)]
DEEP = "[" * 100_000
# What these read was written by this process or by one that it has started, or lies in an installed package.
OWN = {
    "errors", "storage/parsing", "storage/files", "webshop/importing",
    "alfworld/rooms", "envs/workers/worker", "envs/workers/wire", "verifiers/env", "learner/rank_handles",
    "compare/comparison", "warmstart/small_model", "tracking/process", "tracking/showing", "runs/evaluation",
    "cluster/envs", "memory/store", "commands/doctor",
}  # fmt: skip


def test_all_text_from_outside_has_one_reader() -> None:
    others = set()
    for package, path in [(folder, path) for folder in PACKAGES for path in folder.rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_parser = isinstance(node, ast.Attribute) and node.attr in {"loads", "load", "JSONDecoder", "raw_decode"}
            if is_parser and isinstance(node.value, ast.Name) and node.value.id in {"json", "tomllib"}:
                others.add(path.relative_to(package).with_suffix("").as_posix())
    assert others <= OWN, "text that somebody else may have written goes through storage/files.py"


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 100_000, "[" * 101 + "]" * 101, '{"a":[' * 51 + "]}" * 51])
def test_text_that_nests_too_deeply_is_a_value_error(text: str) -> None:
    for parse in (parse_json, lambda text: parse_json(text.encode()), lambda text: parse_json_at(text, 0)):
        with pytest.raises(ValueError, match=f"nests more than {MAX_NESTING} levels deep"):
            parse(text)


def test_what_nests_as_deep_as_is_allowed_is_read() -> None:
    text = "[" * MAX_NESTING + "]" * MAX_NESTING
    assert parse_json(text) == json.loads(text)
    wide = json.dumps([[{}]] * 1000)
    assert parse_json(wide) == json.loads(wide)


def test_ordinary_values_are_those_of_the_standard_library() -> None:
    text = json.dumps({"a": [1, -2, 0.1, 1e-300, 1e300, True, None, "é\ud800"], "b": {"c": 2**70, "d": -0.0}})
    assert repr(parse_json(text)) == repr(parse_json(text.encode())) == repr(json.loads(text))
    assert parse_json(b"\xef\xbb\xbf[1]") == [1]
    assert parse_json_at('x [1, "2"] y', 2) == ([1, "2"], 10)


def test_numbers_that_no_float_holds_are_kept_dropped_or_refused() -> None:
    text = f"[NaN, -Infinity, 1e999, {'9' * 5000}, -{'9' * (MAX_DIGITS + 1)}, 1e308, {'9' * MAX_DIGITS}]"
    kept = parse_json(text)
    assert math.isnan(kept[0])
    assert kept[1:5] == [-math.inf, math.inf, math.inf, -math.inf]
    assert parse_json(text, "drop") == [None] * 5 + [1e308, int("9" * MAX_DIGITS)]
    for number in ("NaN", "1e999", "9" * 5000):
        with pytest.raises(ValueError, match="not a finite number"):
            parse_json(f"[{number}]", "refuse")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = " + "[" * 100_000, "nests"),
        ("a." * 100_000 + "a = 1", "nests"),  # tomllib takes an hour for it
        ('"a" . ' * 200 + "a = 1", "nests"),
        ("a." * 60 + "a = {" + "b." * 60 + "b = 1}", "nests"),
        ("a = " + "9" * 5000, "digits"),
        ("a = [0x" + "f" * 5000 + "]", "digits"),
        ("# " * 200_000, "longer"),
    ],
)
def test_toml_out_of_bounds_is_a_value_error(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_toml(text)


def test_a_manifest_and_files_of_a_checkpoint_that_nest_too_deeply_are_damage(tmp_path: Path) -> None:
    saved = checkpoint.save(tmp_path, 1, lambda path: None, {"iteration": 1})
    (saved / checkpoint.MANIFEST).write_text(DEEP)
    assert "nests" in checkpoint.verify(saved)[0]
    (tmp_path / checkpoint.BEST).write_text(DEEP)
    with pytest.raises(RunError, match="cannot be read"):
        checkpoint.load_best(tmp_path)
    for text in (DEEP, "[]"):
        (saved / checkpoint.META).write_text(text)
        with pytest.raises(RunError, match=r"meta\.json is damaged"):
            checkpoint.load_meta(saved)
    (saved / checkpoint.MANIFEST).write_text('{"format": 1, "files": {"a": {"size": 1e999, "sha256": ""}}}')
    assert "cannot be read" in checkpoint.verify(saved)[0]


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
