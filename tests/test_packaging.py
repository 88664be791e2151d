"""The three distributions agree with each other."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import trailnotes

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
