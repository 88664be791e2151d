from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trailnotes.commands import main
from trailnotes.config.toml import load_config
from trailnotes.errors import ConfigError, MissingExtraError
from trailnotes.runs.adapt import adapt
from trailnotes.runs.dependencies import require_dependencies
from trailnotes.runs.evaluate import evaluate
from trailnotes_lab.compare import comparison

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
def test_a_missing_package_is_named_with_the_setting_and_the_extra(
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


def test_what_plays_alone_needs_no_package_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "sentence_transformers")
    config = load_config(None, ["--memory.embedder", "minilm", "--model.path", "some/model"])
    require_dependencies(config, plays_only=True, memory=False)
    with pytest.raises(MissingExtraError, match="sentence"):
        require_dependencies(config, plays_only=True)


def test_two_missing_extras_are_one_line_and_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch", "textworld")
    with pytest.raises(MissingExtraError, match=r"textworld; .* package torch: .*\[textworld,train\]'"):
        require_dependencies(load_config(None, [*GRPO, "--env.name", "waymarks"]))


def test_train_looks_before_it_compiles_loads_or_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    file = tmp_path / "c.toml"
    file.write_text('[model]\npath = "a/model"\n[algorithm]\nname = "grpo"\n')
    without(monkeypatch, "textworld", "torch", "trailnotes.policies.hf.policy")
    assert main(["train", str(file), "--run-dir", str(run), "--env.name", "waymarks"]) == 2
    shown = capsys.readouterr().err
    assert "env.name = 'waymarks' needs the package textworld; model.path = 'a/model' needs the package torch" in shown
    assert len(shown.splitlines()) == 1
    assert main(["train", str(file), "--run-dir", str(run), "--model.path", "openai:m"]) == 2
    assert "cannot be trained" in capsys.readouterr().err
    assert not run.exists()


def test_evaluation_and_adaptation_look_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "jericho")
    config = load_config(None, ["--env.name", "waymarks"])
    with pytest.raises(MissingExtraError, match=r"env\.name = 'waymarks' needs the package jericho"):
        evaluate(config, "random")
    with pytest.raises(MissingExtraError, match=r"env\.name = 'waymarks' needs the package jericho"):
        adapt(config, "random", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_comparison_looks_before_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.toml").write_text('[model]\npath = "a/model"\n[env]\nname = "waymarks"\n')
    plan = tmp_path / "plan.toml"
    plan.write_text('[compare]\nname = "p"\nconfig = "c.toml"\n[budget]\nenv_steps = 9\n[methods.grpo]\n')
    monkeypatch.setattr(comparison.running, "compile_games", lambda _: pytest.fail("it compiled"))
    without(monkeypatch, "torch")
    with pytest.raises(MissingExtraError, match="needs the package torch"):
        comparison.run_comparison(plan, out=tmp_path / "out")
    assert not (tmp_path / "out" / "runs").exists()
    with pytest.raises(MissingExtraError, match="needs the package torch"):
        comparison.describe_comparison(plan, tmp_path / "out")


def test_engines_that_are_nowhere_are_told_before_a_run_begins() -> None:
    for key, value, said in (
        ("python", "/no/python", "engine.python = '/no/python' is no program"),
        ("urls", '["tcp://gpu:1"]', "is no address of a vLLM server: write http://host:port"),
    ):
        config = load_config(None, [*GRPO, "--engine.name", "vllm", f"--engine.{key}", value])
        with pytest.raises(ConfigError, match=said):
            require_dependencies(config)
    require_dependencies(
        load_config(None, [*GRPO, "--engine.name", "vllm", "--engine.python", sys.executable]), "random"
    )
