"""The three distributions agree with each other, and with what a package index shows of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import trailnotes

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT, ROOT / "packages/worlds", ROOT / "packages/lab"]
PROJECTS = {folder: tomllib.loads((folder / "pyproject.toml").read_text()) for folder in FOLDERS}
REPOSITORY = PROJECTS[ROOT]["project"]["urls"]["Repository"]
APART = {"vllm", "verifiers", "spacy", "dev", "worlds", "lab"}
"""Extras that `all` leaves out: they do not fit beside the others, or are not for users."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_links_and_pictures_of_the_index_page_lead_into_the_repository(folder: Path) -> None:
    page = (folder / "README.md").read_text()
    for rule in PROJECTS[folder]["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        page = re.sub(rule["pattern"], rule["replacement"], page)
    targets = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", page)
    inside = [(picture, target) for picture, target in targets if target.startswith(REPOSITORY)]
    assert len(inside) > 8
    for picture, target in inside:
        kind, _, name = target.removeprefix(f"{REPOSITORY}/").partition("/main/")
        assert kind == ("raw" if picture else "blob")
        assert (ROOT / name.partition("#")[0]).is_file()
    assert not [target for _, target in targets if not target.startswith("https://")]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_one_address_of_the_repository(folder: Path) -> None:
    named = re.findall(r"https://github\.com/[\w.-]+/[\w.-]+", (folder / "pyproject.toml").read_text())
    assert set(named) == {REPOSITORY}


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
