"""What an error advises works where it is read."""

from __future__ import annotations

from pathlib import Path

from trailnotes.errors import find_missing_module, format_install_command, list_extras

ROOT = Path(__file__).parents[1]


def test_extras_are_named_by_distribution() -> None:
    assert format_install_command("train", "webshop", "plot") == (
        "pip install 'trailnotes[train,plot]' 'trailnotes-worlds[webshop]'"
    )


def test_the_extras_are_those_of_the_package() -> None:
    import tomllib

    for folder in (ROOT, ROOT / "packages/worlds", ROOT / "packages/lab"):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        known = {extra for extra, (distribution, _) in list_extras().items() if distribution == project["name"]}
        assert known == set(project["optional-dependencies"]) - {"dev", "all", "worlds", "lab"}
    assert find_missing_module("train") == ""
