from __future__ import annotations

import sys

import pytest

from trailnotes.config.model_schema import EndpointConfig
from trailnotes.config.toml import load_config
from trailnotes.errors import ConfigError, MissingExtraError, TrailnotesError
from trailnotes.runs.preflight import require_dependencies, run_preflight

EMBEDS = ["--memory.embedder", "minilm", "--algorithm.name"]
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
        ("sentence_transformers", [*EMBEDS, "empo2"], "embed", "memory.embedder = 'minilm'"),
        ("sentence_transformers", [*EMBEDS, "lamer"], "embed", "memory.embedder = 'minilm'"),
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


def test_a_missing_key_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = load_config(None, [*GRPO, "--algorithm.name", "empo2", "--algorithm.author", "openai:m"])
    with pytest.raises(ConfigError, match=r"export OPENAI_API_KEY"):
        require_dependencies(config)
    require_dependencies(config, plays_only=True)  # which writes no tips
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    with pytest.raises(ConfigError, match=r"max_cost needs prices"):
        require_dependencies(config.model_copy(update={"endpoint": EndpointConfig(max_cost=1.0)}))


def test_a_panel_without_games_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    run_preflight(load_config(None, [*GRPO, "--eval.split", "tset"]), machine=False)
    assert "eval.split = 'tset' has no games to evaluate: split = 'tset' is unknown" in caplog.text


def test_only_a_training_needs_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "ray")
    config = load_config(None, [*GRPO, "--cluster.address", "auto"])
    with pytest.raises(MissingExtraError, match=r"cluster\.address = 'auto' needs the package ray"):
        require_dependencies(config)
    require_dependencies(config, plays_only=True)
    require_dependencies(load_config(None, [*GRPO, "--cluster.address", "auto", "--algorithm.name", "naive"]))


def test_an_adaptation_checks_the_engines_that_it_starts_here(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*GRPO, "--cluster.address", "auto", "--engine.name", "vllm", "--engine.python", "/no/python"]
    with pytest.raises(TrailnotesError, match="/no/python"):
        require_dependencies(load_config(None, [*words, "--algorithm.name", "naive"]))
