"""The three distributions agree with each other, and errors name their extras."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import trailnotes
from trailnotes.commands.command import COMMANDS_ELSEWHERE
from trailnotes.errors import find_missing_module, format_install_command, list_extras

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT, ROOT / "packages/worlds", ROOT / "packages/lab"]
PROJECTS = {folder: tomllib.loads((folder / "pyproject.toml").read_text()) for folder in FOLDERS}
APART = {"vllm", "verifiers", "spacy", "dev", "worlds", "lab"}
"""Extras that `all` leaves out: they do not fit beside the others, or are not for users."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_all_is_every_extra_that_fits_beside_the_others(folder: Path) -> None:
    extras = PROJECTS[folder]["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(everything.partition("[")[2].rstrip("]").split(",")) == set(extras) - APART - {"all"}


def test_the_distributions_have_one_version() -> None:
    core, *others = (project["project"] for project in PROJECTS.values())
    for other in others:
        pin = f"=={trailnotes.__version__}"
        assert other["version"] == trailnotes.__version__
        assert other["dependencies"] == [f"trailnotes{pin}"]
        assert core["optional-dependencies"][other["name"].partition("-")[2]] == [f"{other['name']}{pin}"]
        assert other["classifiers"] == core["classifiers"]


def test_the_core_names_the_package_of_each_missing_command() -> None:
    offered = {
        name: project["project"]["name"]
        for project in PROJECTS.values()
        for name in project["project"].get("entry-points", {}).get("trailnotes.commands", ())
    }
    assert COMMANDS_ELSEWHERE.items() == offered.items() - {("demo", "trailnotes-lab"), ("serve", "trailnotes-worlds")}


def test_errors_name_extras_by_distribution() -> None:
    assert format_install_command("train", "webshop", "plot") == (
        "pip install 'trailnotes[train,plot]' 'trailnotes-worlds[webshop]'"
    )
    for project in (project["project"] for project in PROJECTS.values()):
        known = {extra for extra, (distribution, _) in list_extras().items() if distribution == project["name"]}
        assert known == set(project["optional-dependencies"]) - {"dev", "all", "worlds", "lab"}
    assert find_missing_module("train") == ""
