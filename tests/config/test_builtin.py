"""Configs and the model of the package by name: from any directory, and never in place of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from trailnotes.config.builtin import find_config, list_builtin_configs
from trailnotes.config.toml import load_config
from trailnotes.errors import ConfigError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_config_loads_by_its_name_unless_a_file_has_it(elsewhere: Path) -> None:
    for name in list_builtin_configs():
        if "compare/" not in name:
            assert load_config(name) == load_config(f"builtin:{name}")
    (elsewhere / "demo").write_text("[run]\nseed = 7\n")
    assert load_config("demo").run.seed == 7
    assert load_config("builtin:demo").run.name == "demo"
    (elsewhere / "smoke").mkdir()
    assert load_config("smoke").run.name == "smoke"


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("configs/demo.toml", "did you mean demo?"),
        ("scienceworld/find-plan", "did you mean scienceworld/find-plant?"),
        ("zzz.toml", "`trailnotes config list`"),
        ("builtin:../../types", "no config of the package"),
    ],
)
def test_what_is_neither_is_refused_with_the_nearest_name(name: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_config(name)
    assert fix in str(caught.value)
