"""Import of the original's files: a catalogue, with everything that was left out on record."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from trailnotes.errors import ConfigError
from trailnotes_worlds.webshop.importing import SourceFiles, import_catalogue
from trailnotes_worlds.webshop.reading import read_entries


def record(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "asin": f"B{number:09d}",
        "name": f"Cup Number {number}",
        "full_description": "A cup. " * (number % 5),
        "pricing": f"${number}.50",
        "small_description": [f"Bullet {number}"],
        "customization_options": {"Color": [{"value": "Red"}, {"value": "Blue"}]} if number % 2 else "",
        "product_category": "Home › Cups",
        "category": "garden",
        "query": "cups",
    } | changes


RECORDS = [record(number) for number in range(40)]
ATTRIBUTES = {
    f"B{number:09d}": {"attributes": ["soft"], "instruction": "Find cups", "instruction_attributes": ["soft"]}
    for number in range(0, 40, 2)
}
BLANK = {"instruction_attributes": [], "instruction_options": []}
HUMAN = {
    "B000000003": [
        BLANK | {"asin": "B000000003", "instruction": "I'd like a cup."},
        {"instruction": "a red cup", "instruction_attributes": ["soft"], "instruction_options": ["red"]},
    ],
    "B999999999": [BLANK | {"instruction": "gone", "instruction_attributes": ["x"]}],
}


@pytest.fixture
def files(tmp_path: Path) -> SourceFiles:
    paths = [tmp_path / f"{name}.json" for name in ("products", "attributes", "human", "order")]
    order = ["a red cup", "something else", "id like a cup"]
    for path, content in zip(paths, (RECORDS, ATTRIBUTES, HUMAN, order), strict=True):
        path.write_text(json.dumps(content, indent=1))
    return SourceFiles(*paths)


def test_four_files_become_one_catalogue(files: SourceFiles, tmp_path: Path) -> None:
    seen: list[tuple[str, float, float]] = []
    catalogue = import_catalogue(tmp_path / "shop", files, progress=lambda *told: seen.append(told))
    assert [product.asin for product in catalogue] == [item["asin"] for item in RECORDS]
    assert catalogue["B000000002"].attributes == ("soft",)
    assert [item.kind for item in catalogue["B000000002"].instructions] == ["synthetic"]
    told = [(item.text, item.order) for item in catalogue["B000000003"].instructions]
    assert told == [("I'd like a cup.", 2), ("a red cup", 0)]
    assert catalogue["B000000003"].nouns == ("cup", "number")
    assert catalogue.meta["left_out"] == {"instruction of no product": 1}
    assert catalogue.meta["sources"]["products"] == ["products.json", files.products.stat().st_size]
    assert seen[-1] == ("index", catalogue.meta["files"]["products.jsonl"], catalogue.meta["files"]["products.jsonl"])


def test_what_is_no_product_is_counted_and_named(tmp_path: Path) -> None:
    bad = [record(1), record(1, name="again"), record(2, pricing="much"), 7, record(3, asin="nan"), record(4)]
    (tmp_path / "bad.json").write_text(json.dumps(bad))
    catalogue = import_catalogue(tmp_path / "shop", SourceFiles(tmp_path / "bad.json"))
    assert [product.title for product in catalogue] == ["Cup Number 1", "Cup Number 4"]  # the first of an asin stays
    assert catalogue.meta["left_out"] == {"asin twice": 1, "bad asin": 1, "bad pricing": 1, "not an object": 1}
    reported = [json.loads(line) for line in (catalogue.folder / "report.jsonl").read_text().splitlines()]
    assert [(line["entry"], line["asin"], line["reason"]) for line in reported] == [
        (1, "B000000001", "asin twice"),
        (2, "B000000002", "bad pricing"),
        (3, None, "not an object"),
        (4, "nan", "bad asin"),
    ]


@pytest.mark.parametrize("cut", [1, 5, 100, 2000, 5000])
def test_a_file_that_is_cut_off_is_named(files: SourceFiles, tmp_path: Path, cut: int) -> None:
    data = files.products.read_bytes()
    files.products.write_bytes(data[:-cut])
    with pytest.raises(ConfigError, match=r"products\.json is (cut off|no JSON)"):
        import_catalogue(tmp_path / "shop", files)
    packed = tmp_path / "x.json.gz"
    whole = gzip.compress(data)
    packed.write_bytes(whole[: -min(cut, len(whole) // 2)])
    with pytest.raises(ConfigError, match=r"x\.json\.gz is cut off"):
        list(read_entries(packed))


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("indent", [None, 1])
def test_entries_are_read_across_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None
) -> None:
    rng = random.Random(chunk)
    values = [{"text": 'é★\U0001f600\\"]}' * rng.randint(0, 9), "list": [1, {"x": None}]} for _ in range(12)]
    listed, mapped = tmp_path / "a.json", tmp_path / "b.json"
    listed.write_text("\ufeff" + json.dumps(values, indent=indent, ensure_ascii=False), encoding="utf-8")
    mapped.write_text(json.dumps({f"k{i}": value for i, value in enumerate(values)}, indent=indent))
    monkeypatch.setattr("trailnotes_worlds.webshop.reading._CHUNK", max(chunk, 40))
    for path, keys in ((listed, [None] * 12), (mapped, [f"k{i}" for i in range(12)])):
        assert [(entry.key, entry.value) for entry in read_entries(path)] == list(zip(keys, values, strict=True))
