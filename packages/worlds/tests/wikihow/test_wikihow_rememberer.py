"""REMEMBERER's protocol on WikiHow: the settings hold, and a scripted player fills the table and reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import howto
from trailnotes.config.toml import load_config
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.runs.adapt import adapt
from trailnotes.types import Message

CONFIG = "wikihow/rememberer"


def adviser() -> ScriptedPolicy:
    """Knows the way of one task: at each screen it says what comes next, as advice."""

    def answer(messages: Sequence[Message]) -> str:
        present = messages[-1].content.rpartition("The present situation:")[2]
        if "More options" in present:
            return "CLICK(11) -> 1.0"
        return "CLICK(3) -> 2.0" if "search src text" in present else "INPUT(2, boil an egg) -> 3.0"

    return ScriptedPolicy(answer)


def test_the_published_settings() -> None:
    config = load_config(CONFIG)
    assert config.env.options["protocol"] == "rememberer"
    table = config.rememberer
    assert (table.epochs, table.n_step, table.gamma) == (3, 0, 1.0)


def test_a_scripted_player_fills_the_table_and_reaches_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("google.protobuf", reason="the extra mobile-env is not installed")
    howto.small_library(tmp_path / "library").close()
    for split in ("train", "test"):
        (tmp_path / "tasks" / split).mkdir(parents=True)
        (tmp_path / "tasks" / split / f"{split}_boil-4.textproto").write_text(howto.TASK)
    monkeypatch.setattr("trailnotes.runs.load_policy.load_policy", lambda *_: adviser())
    config = load_config(CONFIG)
    options = {**config.env.options, "library": str(tmp_path / "library"), "tasks": str(tmp_path / "tasks")}
    changes = {
        "env": config.env.model_copy(update={"options": options, "num_workers": 0}),
        "rememberer": config.rememberer.model_copy(update={"epochs": 2}),
    }
    adapt(config.model_copy(update=changes), "adviser", out=tmp_path / "out", method="rememberer")
    first, *_, panel = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert (first["table/records"], panel["table/records"]) == (0, 3)  # the home page, the results, the article
    assert (first["known"], panel["known"]) == (0, 1)
    assert (panel["rollout/success"], panel["table/q_max"]) == (1, 3)
