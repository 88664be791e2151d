"""Demonstrations under names drawn anew: tip, actions and observations of one still agree."""

from __future__ import annotations

import re
import runpy
from itertools import islice
from pathlib import Path

import pytest

from trailnotes.config.toml import load_config

EXAMPLE = runpy.run_path(str(Path(__file__).parents[4] / "examples" / "scienceworld_renamed.py"))


@pytest.mark.slow
def test_a_renamed_tip_is_followed_word_for_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAILNOTES_CACHE", str(tmp_path))
    task = ["--env.options", '{task = "lifespan-shortest-lived"}', "--warmstart.variations", "1"]
    config = load_config("scienceworld/copying-warmstart", task)
    drawn = [[message.content for message in each.messages] for each in islice(EXAMPLE["Renamed"](config, 0), 80)]
    turns = [turn for said in drawn for turn in zip(said[::2], said[1::2], strict=True)]
    tips = [(tip[1], action) for seen, action in turns if (tip := re.search(r'- " (.*) " [\d.]+ / 100', seen))]
    assert len(turns) > len(tips) > 100, "some turns have none"
    assert all(tip == action for tip, action in tips)
    places = {place for tip, _ in tips for place in re.findall(r"teleport to (.+)", tip)}
    assert len(places) > 10, "a game of ten rooms"
