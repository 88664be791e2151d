from __future__ import annotations

import sys

import pytest

from trailnotes.config.toml import load_config
from trailnotes.errors import MissingExtraError
from trailnotes.runs.preflight import require_dependencies

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
