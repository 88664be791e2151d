from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from trailnotes.config.builtin import list_builtin_configs
from trailnotes.config.former import RENAMED_KEYS
from trailnotes.config.json_schema import render_json_schema
from trailnotes.config.presets import PRESETS
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config, to_toml
from trailnotes.errors import ConfigError

CONFIGS = [path for path in list_builtin_configs().values() if "\n[compare]\n" not in path.read_text(encoding="utf-8")]
VALIDATOR = Draft202012Validator(json.loads(render_json_schema()))


def list_errors(text: str) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(tomllib.loads(text))]


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(VALIDATOR.schema)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_fits_the_schema(path: Path) -> None:
    assert list_errors(path.read_text(encoding="utf-8")) == []


def test_all_keys_at_their_defaults_fit_the_schema() -> None:
    assert list_errors(to_toml(Config())) == []
    assert [error.message for preset in PRESETS.values() for error in VALIDATOR.iter_errors(preset)] == []


@pytest.mark.parametrize("former", RENAMED_KEYS)
def test_a_former_key_fits_the_schema_as_deprecated(former: str) -> None:
    section, _, name = former.partition(".")
    about = VALIDATOR.schema["properties"][section]["properties"][name]
    assert about["deprecated"]
    assert about["default"] == getattr(getattr(Config(), section), RENAMED_KEYS[former].partition(".")[2])


@pytest.mark.parametrize(
    "line",
    ["rollout.group_sze = 2", "model.lora.rank = 0", 'model.dtype = "float8"', 'loss.mask_logprob = "off"', "run = 1",
     "train.iterations = 1.5", 'algorithm.name = "empo"', 'run.trackers = ["tensorbord"]',
     'rollout.example_turns = [["a"]]'],
)  # fmt: skip
def test_what_the_settings_refuse_the_schema_refuses(line: str, tmp_path: Path) -> None:
    assert len(list_errors(line)) == 1
    (tmp_path / "config.toml").write_text(line)
    with pytest.raises(ConfigError):
        load_config(tmp_path / "config.toml")


@pytest.mark.parametrize(
    "line", ['loss.mask_logprob = "none"', 'algorithm.name = "mine:METHOD"', 'run.trackers = ["mine:Tracker", "wandb"]']
)
def test_what_the_settings_accept_the_schema_accepts(line: str, tmp_path: Path) -> None:
    assert list_errors(line) == []
    (tmp_path / "config.toml").write_text(line)
    load_config(tmp_path / "config.toml")


def test_the_schema_explains_each_key_and_refers_to_nothing() -> None:
    def walk(section: dict[str, Any]) -> None:
        assert not section["additionalProperties"]
        for name, value in section["properties"].items():
            assert value["description"], name
            if "properties" in value:
                walk(value)

    walk(VALIDATOR.schema)
    assert "$ref" not in render_json_schema()
