"""Tips as a file: what is written is what the schema says, and nothing of a damaged one gets in."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trailnotes.config.schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory import TipMemory, open_memory
from trailnotes.memory.exchange import import_tips
from trailnotes.memory.tipfile import FIELD_TYPES, read_tips, write_tips
from trailnotes.types import Tip

jsonschema = pytest.importorskip("jsonschema", reason="checks lines by the JSON Schema of docs/; it comes with mcp")

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA = json.loads((DOCS / "tip-format.schema.json").read_text())
LINE = jsonschema.Draft202012Validator(SCHEMA)
HEADER = {"format": "trailnotes-tips", "version": 1}
TIPS = [
    Tip("cellar", "mind the \x1b[31mlamp", "a damp room", 1.0, 2.0, "take lamp", None, 4, 5, "m", 6, "r", "2026-01-01"),
    Tip("attic", "caf\u00e9 \u6c34", "", -1e30, imported=True, enabled=False),
]


@pytest.fixture
def memory() -> Iterator[TipMemory]:
    with open_memory(None, MemoryConfig(threshold=-1), clock=lambda: "") as memory:
        memory.add([Tip("cellar", "look up", "a damp room", 1.0)])
        yield memory


def tip(**fields: Any) -> dict[str, Any]:
    return {"namespace": "cellar", "text": "from afar", "key": "a damp room", "score": 1, **fields}


def written(path: Path, *records: Any) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


# --- what is written


def test_every_line_is_what_the_schema_says(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    write_tips(tmp_path / "tips.jsonl", TIPS, memory="of the cellar")
    header, *lines = [json.loads(line) for line in (tmp_path / "tips.jsonl").read_text().splitlines()]
    assert (header["tips"], header["memory"]) == (2, "of the cellar")
    for line in (header, *lines):
        LINE.validate(line)
    assert read_tips(tmp_path / "tips.jsonl") == TIPS


def test_schema_and_page_name_the_fields_that_there_are() -> None:
    fields = SCHEMA["$defs"]["tip"]["properties"]
    assert set(fields) == {"id", *FIELD_TYPES}
    page = (DOCS / "tip-format.md").read_text()
    for name in (*fields, *SCHEMA["$defs"]["header"]["properties"]):
        assert f"| `{name}` |" in page


def test_the_example_of_the_page_is_one(tmp_path: Path) -> None:
    header, line = (DOCS / "tip-format.md").read_text().split("```")[1].strip().splitlines()
    path = tmp_path / "tips.jsonl"
    path.write_text(f"{header}\n{line.replace(', ...', '')}\n")
    assert [tip.text for tip in read_tips(path)] == ["turn left at the well"]


# --- what is read


def test_the_header_may_be_left_out_or_say_little(tmp_path: Path) -> None:
    for records in ([], [HEADER], [HEADER | {"program": "by hand", "tips": 1}]):
        assert [tip.text for tip in read_tips(written(tmp_path / "in.jsonl", *records, tip()))] == ["from afar"]
    assert read_tips(written(tmp_path / "in.jsonl", HEADER)) == []
    for records in ([HEADER | {"tips": []}], [HEADER | {"tips": True}], [HEADER, HEADER]):
        with pytest.raises(MemoryStoreError, match=f"line {len(records)}: "):
            read_tips(written(tmp_path / "in.jsonl", *records))
    (tmp_path / "in.jsonl").write_bytes(b"\xef\xbb\xbf\r\n" + json.dumps(tip(id=None)).encode())
    with pytest.raises(MemoryStoreError, match="line 1: "):  # a byte order mark alone is no line
        read_tips(tmp_path / "in.jsonl")
    (tmp_path / "in.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(tip(id=7)).encode() + b"\r\n \r\n")
    assert len(read_tips(tmp_path / "in.jsonl")) == 1


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_file_that_was_cut_anywhere_is_refused(memory: TipMemory, tmp_path: Path, cut: int) -> None:
    """Between two lines, too, where each line that is left is whole."""
    path = tmp_path / "in.jsonl"
    write_tips(path, TIPS)
    whole = path.read_bytes()
    ends = [number for number, byte in enumerate(whole, 1) if byte == ord("\n")]
    size = ends[cut - 1] if cut < len(ends) else len(whole) * cut // 13
    path.write_bytes(whole[:size])
    with pytest.raises(MemoryStoreError, match=r"line \d: |ends at line \d with \d tips, .* cut"):
        import_tips(memory.store, path)
    assert memory.stats()["tips"] == 1


@pytest.mark.parametrize(
    "line",
    [
        [1], tip(mood="good"), {"namespace": "cellar"}, tip(text=7), tip(text=""), tip(score="high"), tip(score=True),
        tip(version=2**31), tip(enabled=1), tip(created=None),
    ],
    ids=str,
)  # fmt: skip
def test_reader_and_schema_refuse_the_same(tmp_path: Path, line: Any) -> None:
    assert not LINE.is_valid(line)
    with pytest.raises(MemoryStoreError, match="line 1: "):
        read_tips(written(tmp_path / "in.jsonl", line))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_read_as_tips_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Nothing else comes of it, whichever bytes are other, gone or new."""
    path = tmp_path / "in.jsonl"
    write_tips(path, TIPS)
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(damaged)))
        end = data.draw(st.integers(start, min(len(damaged), start + 40)))
        damaged[start:end] = data.draw(
            st.binary(max_size=8) | st.sampled_from([b"\n", b'"', b"{", b"}", b",", b"1e999"])
        )
    path.write_bytes(damaged)
    try:
        tips = read_tips(path)
    except MemoryStoreError:
        return
    assert all(isinstance(tip, Tip) and math.isfinite(tip.score) for tip in tips)
