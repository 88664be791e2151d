"""The commands of the worlds: import and show a catalogue, and what they and `envs serve` refuse."""

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
    printed = capsys.readouterr()
    assert printed.out.startswith("2 products, ")
    assert "left out     1 x asin twice" in printed.out
    assert re.search(r"^  garden +2$", printed.out, re.MULTILINE)
    assert f"entry by entry: {shop}/report.jsonl" in printed.out
    assert "import  " in printed.err
    assert main(["webshop", "show", shop, "--search", "cup"]) == 0
    assert capsys.readouterr().out == "B000000001  $3.0                  Blue Cup\n"
    assert main(["webshop", "show", shop, "--asin", "B000000002"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Red Mug"
    assert main(["webshop", "show", shop, "--search", "nothing"]) == 0
    assert "no product has any of these words" in capsys.readouterr().out
    assert main(["webshop", "show", shop, "--asin", "b000000002"]) == 0
    assert json.loads(capsys.readouterr().out)["asin"] == "B000000002"


REFUSED = [
    (["webshop", "show", "nowhere"], "nowhere is no webshop catalogue"),
    (["webshop", "show", "SHOP", "--asin", "B000000009"], "B000000009"),
    (["webshop", "show", "SHOP", "--search", "cup", "--limit", "0"], "--limit 0"),
    (["webshop", "show", "SHOP", "--search", "cup", "--asin", "B000000001"], "--asin and --search"),
    (["webshop", "import", "SHOP", "--products", "SOURCE"], "is there already"),
    (["wikihow", "show", "synthetic", "--path", "x", "--search", "y"], "--path and --search"),
    (["wikihow", "show", "synthetic", "--path", "nowhere"], "has no page nowhere"),
    (["wikihow", "import", "other", "--pages", ".", "--limit", "0"], "--limit 0"),
    (["envs", "serve", "waymarks-simulator", "--host", "0.0.0.0"], "would let other machines in, without passwords"),
    (["envs", "serve", "waymarks-simulator", "--split", "summer"], "split = 'summer' is unknown"),
    (["envs", "serve", "no-such-env"], "env.name = 'no-such-env' is unknown"),
]


def test_refused_commands(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shop = str(tmp_path / "shop")
    assert main(["webshop", "import", shop, "--products", str(source)]) == 0
    for words, message in REFUSED:
        capsys.readouterr()
        assert main([word.replace("SHOP", shop).replace("SOURCE", str(source)) for word in words]) == 2
        error = capsys.readouterr().err
        assert message in error, words
        assert len(error.splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"products.json", "shop"}
