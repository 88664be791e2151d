"""The commands on a catalogue: import, show."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from trailnotes.commands import main

RECORD = {"asin": "B000000001", "name": "Blue\x1b Cup", "category": "garden", "query": "cups", "pricing": "$3"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "products.json"
    path.write_text(json.dumps([RECORD, RECORD, RECORD | {"asin": "B000000002", "name": "Red Mug"}]))
    return path


def test_import_and_show(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = str(tmp_path / "shop")
    assert main(["webshop", "import", shop, "--products", str(source)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("2 products, ")
    assert "left out     1 x asin twice" in said.out
    assert re.search(r"^  garden +2$", said.out, re.MULTILINE)
    assert f"entry by entry: {shop}/report.jsonl" in said.out
    assert "import  " in said.err
    assert main(["webshop", "show", shop, "--search", "cup"]) == 0
    assert capsys.readouterr().out == "B000000001  $3.0                  Blue Cup\n"
    assert main(["webshop", "show", shop, "--asin", "B000000002"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Red Mug"
    assert main(["webshop", "show", shop, "--search", "nothing"]) == 0
    assert "no product has any of these words" in capsys.readouterr().out
    assert main(["webshop", "show", shop, "--asin", "b000000002"]) == 0
    assert json.loads(capsys.readouterr().out)["asin"] == "B000000002"


def test_a_title_without_end_is_shown_in_part(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source.write_text(json.dumps([RECORD | {"name": "Cup \u202e" + "x" * 1_000_000}]))
    assert main(["webshop", "import", str(tmp_path / "shop"), "--products", str(source)]) == 0
    capsys.readouterr()
    assert main(["webshop", "show", str(tmp_path / "shop"), "--search", "cup"]) == 0
    assert re.fullmatch(r"B000000001  \$3\.0 +Cup x{290,295}…\n", capsys.readouterr().out)


def test_an_import_says_where_the_report_and_the_goals_are(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report is named only if something is listed in it, and a shop without goals is told to be one."""
    source.write_text(json.dumps([RECORD]))
    human = tmp_path / "human.json"
    goal = {"instruction": "a cup", "instruction_attributes": ["blue"], "instruction_options": []}
    human.write_text(json.dumps({"B000000001": [goal], "B000000009": [goal]}))
    assert main(["webshop", "import", str(tmp_path / "bare"), "--products", str(source)]) == 0
    said = capsys.readouterr().out
    assert "no instructions, so no goals: import with --attributes (synthetic ones) or --human" in said
    words = ["webshop", "import", str(tmp_path / "shop"), "--products", str(source), "--human", str(human)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "1 x instruction of no product" in said
    assert "entry by entry" not in said
    assert "no goals" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "nowhere"], "nowhere is no webshop catalogue"),
        (["show", "SHOP", "--asin", "B000000009"], "has no product B000000009"),
        (["show", "SHOP", "--search", "cup", "--limit", "0"], "--limit 0 shows no product"),
        (["show", "SHOP", "--search", " "], "--search is empty"),
        (["show", "SHOP", "--search", "cup", "--asin", "B000000001"], "--asin and --search ask for two things"),
        (["import", "SHOP", "--products", "SOURCE"], "is there already"),
        (["import", "other", "--products", "SOURCE", "--limit", "0"], "--limit 0 leaves no product"),
        (["import", "other", "--products", "gone.json"], "gone.json cannot be read"),
    ],
)
def test_what_cannot_work_is_one_line(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    shop = str(tmp_path / "shop")
    assert main(["webshop", "import", shop, "--products", str(source)]) == 0
    capsys.readouterr()
    assert main(["webshop", *(word.replace("SHOP", shop).replace("SOURCE", str(source)) for word in words)]) == 2
    said = capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"products.json", "shop"}
    assert message in said
    assert len(said.splitlines()) == 1
