"""Cards of exported models: the run behind the model, its evaluations, and the settings that reproduce it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tinyrun import tiny_config, train_in_process
from trailnotes.commands import main
from trailnotes.config.toml import load_config, to_toml


@pytest.fixture(scope="module")
def runs(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of adapters, and one of all weights with an evaluation."""
    root = tmp_path_factory.mktemp("runs")
    for name, model in (("lora", {"lora": {"enabled": True, "rank": 2}}), ("whole", {})):
        train_in_process(tiny_config(start_model, model=model, train={"iterations": 1}), root / name)
    assert main(["eval", str(root / "whole"), "--out", str(root / "whole" / "eval")]) == 0
    return root


def export_with_card(run: Path, out: Path, *words: str) -> tuple[dict[str, object], str]:
    assert main(["export", str(run), "--out", str(out), "--card", *words]) == 0
    _, head, body = (out / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head), body


def test_a_card_names_the_run_and_what_reproduces_it(runs: Path, tmp_path: Path) -> None:
    head, body = export_with_card(runs / "whole", tmp_path / "model")
    saved = next((runs / "whole" / "checkpoints").glob("step-*")) / "model"
    assert {p.name for p in (tmp_path / "model").iterdir()} == {p.name for p in saved.iterdir()} | {"README.md"}
    assert head["library_name"] == "transformers"
    assert "base_model" not in head, "a directory is no model of the hub"
    assert (runs / "whole" / "eval" / "table.md").read_text() in body
    assert "optim.lr = 0.01\n" in body
    assert str(runs) not in body
    assert "model.device" not in body


@pytest.mark.parametrize(
    ("named", "claim", "setting"),
    [
        *((path, None, "PATH OF THE INITIAL MODEL") for path in ("models/smollm2", "./smollm2")),
        ("builtin:waymarks-start", None, "builtin:waymarks-start"), ("owner/model", "owner/model", "owner/model"),
    ],
)  # fmt: skip
def test_only_a_model_of_the_hub_is_claimed(
    named: str, claim: str | None, setting: str, runs: Path, tmp_path: Path
) -> None:
    shutil.copytree(runs / "whole", tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    file.write_text(to_toml(load_config(file, ["--model.path", named])))
    head, body = export_with_card(tmp_path / "run", tmp_path / "model")
    assert head.get("base_model") == claim
    assert f'model.path = "{setting}"\n' in body
