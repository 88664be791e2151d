from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trailnotes.commands import main
from trailnotes.config.toml import load_config
from trailnotes.errors import MissingExtraError
from trailnotes.runs.preflight import require_dependencies

GRPO = ["--algorithm.name", "grpo", "--env.name", "waymarks-simulator", "--model.path", "a/model"]


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize(
    ("module", "settings", "extra", "why"),
    [
        ("torch", [], "train", "model.path = 'a/model'"),
        ("peft", [], "train", "model.path = 'a/model'"),
        ("openai", ["--model.path", "openai:m"], "openai", "model.path = 'openai:m'"),
        ("textworld", ["--env.name", "textworld"], "textworld", "env.name = 'textworld'"),
        ("jericho", ["--env.name", "waymarks"], "textworld", "env.name = 'waymarks'"),
        ("py4j", ["--env.name", "scienceworld"], "scienceworld", "env.name = 'scienceworld'"),
        (
            "sentence_transformers",
            ["--algorithm.name", "empo2", "--memory.embedder", "minilm"],
            "embed",
            "memory.embedder = 'minilm'",
        ),
        (
            "sentence_transformers",
            ["--algorithm.name", "lamer", "--memory.embedder", "minilm"],
            "embed",
            "memory.embedder = 'minilm'",
        ),
    ],
)
def test_missing_package_names_setting_and_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, settings: list[str], extra: str, why: str
) -> None:
    config = load_config(None, [*GRPO, *settings])
    without(monkeypatch, module)
    with pytest.raises(MissingExtraError) as caught:
        require_dependencies(config)
    assert str(caught.value).startswith(f"{why} needs the package {module}: ")
    assert f"[{extra}]'" in str(caught.value)


def test_what_no_setting_asks_for_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "textworld", "openai", "tensorboard", "sentence_transformers", "matplotlib", "py4j")
    require_dependencies(load_config(None, [*GRPO, "--memory.embedder", "minilm"]))
    require_dependencies(load_config(None, [*GRPO, "--run.trackers", '["tensorboard", "my:Own"]']))
    without(monkeypatch, "torch")
    require_dependencies(load_config(None, GRPO), model="random")


def test_train_checks_packages_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    file = tmp_path / "c.toml"
    file.write_text('[model]\npath = "a/model"\n[algorithm]\nname = "grpo"\n')
    without(monkeypatch, "textworld", "torch", "trailnotes.policies.hf.policy")
    assert main(["train", str(file), "--run-dir", str(run), "--env.name", "waymarks"]) == 2
    printed = capsys.readouterr().err
    assert (
        "env.name = 'waymarks' needs the package textworld; model.path = 'a/model' needs the package torch" in printed
    )
    assert len(printed.splitlines()) == 1
    assert main(["train", str(file), "--run-dir", str(run), "--model.path", "openai:m"]) == 2
    assert "cannot be trained" in capsys.readouterr().err
    assert not run.exists()
