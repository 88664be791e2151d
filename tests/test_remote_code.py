"""No model brings code along: nothing that loads one runs what lies beside its weights, or asks whether it may."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trailnotes.config.model_schema import ModelConfig
from trailnotes.errors import PolicyError
from trailnotes.policies.hf.policy import load_architecture, load_model, load_tokenizer

ROOT = Path(__file__).parents[1]
FILES = [
    *ROOT.glob("src/**/*.py"), *ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("examples/**/*.py"),
    *ROOT.glob("benchmarks/*.py"),
]  # fmt: skip
# The classes of transformers and sentence-transformers that may run a model's own code.
LOADER = re.compile(r"(transformers\.)?Auto\w+\.from_(pretrained|config)|(\w+\.)?SentenceTransformer")


def loads_of(path: Path) -> list[ast.Call]:
    """The calls in a file that load a model, a tokenizer or their settings by a class that may run their code."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return [call for call in calls if LOADER.fullmatch(ast.unparse(call.func))]


def test_every_load_says_that_no_code_is_trusted() -> None:
    found = [(path, call) for path in FILES for call in loads_of(path)]
    assert len(found) >= 13, "the classes have other names now"
    for path, call in found:
        said = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert said.get("trust_remote_code") == "False", f"{path}:{call.lineno} {ast.unparse(call.func)}"


@pytest.mark.parametrize("load", [load_model, load_tokenizer, load_architecture])
def test_code_beside_a_model_is_not_run(
    load: Callable[[ModelConfig], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where somebody would say yes: transformers asks on the terminal unless it is told."""
    names = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", None]}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": names}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": names}))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Own: pass\n")
    asked: list[object] = []
    monkeypatch.setattr("builtins.input", lambda *words: asked.append(words) or "y")
    with pytest.raises(PolicyError, match="does not load"):
        load(ModelConfig(path=str(tmp_path)))
    assert not (tmp_path / "ran").exists()
    assert not asked
