"""What an error advises works where it is read."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trailnotes import errors
from trailnotes.errors import find_missing_module, format_install_command, list_extras

ROOT = Path(__file__).parents[1]


def test_in_a_clone_it_is_the_clone_that_gets_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert format_install_command("train").endswith("pip install -e '.[train]'")
    assert format_install_command("webshop").endswith("pip install -e './packages/worlds[webshop]'")
    monkeypatch.chdir(tmp_path)
    *_, install, editable, source = shlex.split(format_install_command("train", "plot"))
    assert (install, editable, source) == ("install", "-e", f"{ROOT}[train,plot]")


def test_pip_is_that_of_this_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert format_install_command("plot").startswith(f"{sys.executable} -m pip install ")
    uv = tmp_path / "uv"
    uv.touch(0o755)
    monkeypatch.setitem(sys.modules, "pip", None)
    assert format_install_command("plot").startswith(f"uv pip install --python {sys.executable} ")


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file://{}", "dir_info": {}}, "pip install '{}[train]'"),
        ({"url": "file://{}/x.whl", "archive_info": {}}, "pip install '{}/x.whl[train]'"),
        ({"url": "file:///gone", "dir_info": {}}, "pip install '.[train]' in a clone of Trailnotes"),
        (
            {"url": "https://host.example/a/b.git", "vcs_info": {"vcs": "git", "commit_id": "0b40"}},
            "pip install 'trailnotes[train] @ git+https://host.example/a/b.git@0b40'",
        ),
        (
            {"url": "https://me:secret@host.example/b.git", "vcs_info": {"vcs": "git", "commit_id": "0b40"}},
            "pip install '.[train]' in a clone of Trailnotes",
        ),
        (None, "pip install 'trailnotes[train]'"),
    ],
)
def test_installed_from_elsewhere_it_is_where_pip_had_it_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, command: str
) -> None:
    text = None if origin is None else json.dumps(origin).replace("file://{}", f"file://{tmp_path}")
    found = SimpleNamespace(read_text=lambda name: text if name == "direct_url.json" else None)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: found)
    monkeypatch.setattr(errors, "_find_project_root", lambda _: tmp_path / "lib")
    (tmp_path / "x.whl").touch()
    assert format_install_command("train").endswith(command.replace("{}", str(tmp_path)))


def test_the_extras_are_those_of_the_package() -> None:
    import tomllib

    for folder in (ROOT, ROOT / "packages/worlds", ROOT / "packages/lab"):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        known = {extra for extra, (distribution, _) in list_extras().items() if distribution == project["name"]}
        assert known == set(project["optional-dependencies"]) - {"dev", "all", "worlds", "lab"}
    assert find_missing_module("train") == ""


def test_no_message_words_the_command_itself() -> None:
    advising = [
        path for path in ROOT.glob("**/src/**/*.py") if re.search(r"install ['\"]?trailnotes", path.read_text())
    ]
    assert not advising, "errors.format_install_command words the command"
