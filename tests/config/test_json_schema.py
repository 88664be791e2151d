from __future__ import annotations

import contextlib
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from trailnotes.config.builtin import list_builtin_configs
from trailnotes.config.json_schema import render_json_schema
from trailnotes.config.presets import PRESETS
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config, to_toml
from trailnotes.errors import ConfigError

CONFIGS = [path for path in list_builtin_configs().values() if "\n[compare]\n" not in path.read_text(encoding="utf-8")]
VALIDATOR = Draft202012Validator(json.loads(render_json_schema()))


def list_errors(text: str) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(tomllib.loads(text))]


def test_every_shipped_config_and_preset_fits_the_schema() -> None:
    Draft202012Validator.check_schema(VALIDATOR.schema)
    assert {path: errors for path in CONFIGS if (errors := list_errors(path.read_text(encoding="utf-8")))} == {}
    assert list_errors(to_toml(Config())) == []
    assert [error.message for preset in PRESETS.values() for error in VALIDATOR.iter_errors(preset)] == []


@pytest.mark.parametrize(
    ("line", "fits"),
    [("rollout.group_sze = 2", False), ("model.lora.rank = 0", False), ('model.dtype = "float8"', False),
     ('loss.mask_logprob = "off"', False), ("run = 1", False), ("train.iterations = 1.5", False),
     ('algorithm.name = "empo"', False), ('rollout.example_turns = [["a"]]', False),
     ('loss.mask_logprob = "none"', True), ('algorithm.name = "mine:METHOD"', True),
     ('run.trackers = ["mine:Tracker", "wandb"]', True)],
)  # fmt: skip
def test_the_schema_takes_what_the_settings_take(line: str, fits: bool, tmp_path: Path) -> None:
    assert len(list_errors(line)) == (not fits)
    (tmp_path / "config.toml").write_text(line)
    with contextlib.nullcontext() if fits else pytest.raises(ConfigError):
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
