"""Configs and the model of the package by name: from any directory, and never in place of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from trailnotes.commands import main
from trailnotes.config.builtin import find_config, list_builtin_configs, resolve_model_path
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


def test_the_model_of_the_package_is_found_by_its_name_alone() -> None:
    assert (Path(resolve_model_path("builtin:waymarks-start")) / "model.safetensors").is_file()
    assert resolve_model_path("Qwen/Qwen2.5-0.5B-Instruct") == "Qwen/Qwen2.5-0.5B-Instruct"
    for other in ("builtin:configs", "builtin:../builtin/waymarks-start", "builtin:"):
        with pytest.raises(ConfigError, match="it has waymarks-start"):
            resolve_model_path(other)


def test_the_list_names_each_with_what_it_is_or_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(list_builtin_configs())
    assert main(["config", "list", "--paths"]) == 0
    assert all(Path(line.split()[1]).is_file() for line in capsys.readouterr().out.splitlines())
