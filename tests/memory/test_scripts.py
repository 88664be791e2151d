"""Text that is not English: words, vectors, cuts and files."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny import step, trajectory
from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.config.schema import Config, RolloutConfig
from trailnotes.memory import clean_tip, open_memory
from trailnotes.memory.exchange import add_tip, export_tips, import_tips
from trailnotes.memory.retrieval import HashingEmbedder, split_words
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout.conversation import CUT_MARK, truncate
from trailnotes.rollout.tips import parse_tips
from trailnotes.types import Completion, Tip

ACUTE = "\u0301"
ASTRONAUT = "\U0001f469\U0001f3fd\u200d\U0001f680"  # a woman, a skin tone, a joiner, a rocket


def similarity(first: str, second: str) -> float:
    one, other = HashingEmbedder().embed([first, second])
    return float(one @ other)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The key, 2 rooms east.", ["the", "key", "2", "rooms", "east"]),
        ("Café cafe" + ACUTE, ["café", "café"]),
        ("走廊, go", ["走", "廊", "go"]),
        ("鍵はカギ", ["鍵", "は", "カ", "ギ"]),
        ("चाबी की", ["चाबी", "की"]),
        ("المِفتاح هنا", ["المِفتاح", "هنا"]),
        ("می\u200cروم", ["میروم"]),
        ("열쇠는 부엌에", ["열쇠는", "부엌에"]),
        ("key🔑🚪", ["key", "🔑", "🚪"]),
        ("❤\ufe0f", ["❤"]),
        ("", []),
    ],
)
def test_words_of_any_script(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_words_with_blanks_between_them_are_those_of_ever() -> None:
    """Memory files hold vectors that were made of these."""
    rng = random.Random(0)
    for _ in range(300):
        text = "".join(rng.choices("abXZ019_ .,;:-äößéñŁžабвΩλ°→\u201c\u2014\n", k=30))
        assert split_words(text) == re.findall(r"\w+", text.lower())


@pytest.mark.parametrize(
    ("text", "near", "far"),
    [
        ("走廊里有一把钥匙", "走廊里有一把红色钥匙", "你在卧室看见床"),
        ("鍵は台所にある", "鍵は台所の引き出しにある", "ドアが開かない"),
        ("กุญแจอยู่ในครัว", "กุญแจอยู่ในลิ้นชักครัว", "ประตูปิด"),
        ("चाबी रसोई में है", "चाबी रसोई की दराज में है", "दरवाज़ा बंद है"),
        ("المفتاح في المطبخ", "المفتاح في درج المطبخ", "الباب مغلق"),
        ("🔑🚪🏠", "🔑🚪", "🐶🐱🐭"),
    ],
)
def test_a_tip_is_found_by_what_is_like_it(text: str, near: str, far: str) -> None:
    assert similarity(text, near) > 0.5
    assert similarity(text, far) < 0.3


@pytest.mark.parametrize(
    ("text", "cap", "kept"),
    [
        ("走廊里有一把钥匙在厨房", 9, "走廊里"),
        ("caf" + "e" + ACUTE + "s and more", 10, "caf"),
        ("go " + 3 * ASTRONAUT, 12, "go"),
        ("go " + 3 * ASTRONAUT, 13, "go " + ASTRONAUT),
        ("की की की की", 10, "की"),
    ],
)
def test_a_cut_goes_through_no_character(text: str, cap: int, kept: str) -> None:
    assert truncate(text, cap, len) == kept + CUT_MARK


@settings(deadline=None)
@given(st.text(st.sampled_from("aé走🔑 " + ACUTE + ASTRONAUT), max_size=30), st.integers(6, 20))
def test_a_cut_holds_its_cap_in_bytes_too(text: str, cap: int) -> None:
    count = ScriptedPolicy(lambda messages: "").count_tokens
    result = truncate(text, cap, count)
    assert result == text if count(text) <= cap else count(result) <= cap
    assert "\ufffd" not in result


def test_one_text_in_two_spellings_is_one_tip(tmp_path: Path) -> None:
    memory = open_memory(None, MemoryConfig())
    memory.add([Tip("t", "the caf\u00e9 is north", "hall", 1.0)])
    memory.add([Tip("t", "the cafe" + ACUTE + " is north", "hall", 1.0)])
    (tip,) = memory.search("t", "hall", 5)
    assert (tip.text, tip.support) == ("the café is north", 2)
    assert clean_tip(clean_tip("e" + ACUTE)) == clean_tip("é")


@pytest.mark.parametrize("text", ["钥匙在厨房的抽屉里", "المفتاح في المطبخ", "चाबी रसोई में है", "the 🔑 is north"])
def test_a_tip_survives_its_file_in_any_script(tmp_path: Path, text: str) -> None:
    memory, other = (open_memory(tmp_path / f"{name}.db", MemoryConfig()) for name in "ab")
    memory.add([Tip("t", text, text, 1.0)])
    export_tips(memory.store, tmp_path / "tips.jsonl")
    import_tips(other.store, tmp_path / "tips.jsonl", enable=True, config=MemoryConfig(capacity=10))
    (tip,) = other.search("t", text, 5)
    assert (tip.text, tip.key) == (text, text)


def test_a_tip_that_the_limit_cuts_ends_with_a_whole_character() -> None:
    config = Config(rollout=RolloutConfig(style="full"))
    done = replace(trajectory([step((1,), (2,))]))
    said = Completion((1,), (2,), (-0.1,), "钥匙在\ufffd\ufffd", "length")
    (written,) = parse_tips(ScriptedPolicy(lambda messages: ""), [done], [said], config, step=0)
    assert [tip.text for tip in written.tips] == ["钥匙在"]


def test_a_terminal_of_few_letters_lists_tips_in_any_script(tmp_path: Path) -> None:
    """What it cannot show it names by number; JSON stays JSON."""
    with closing(open_memory(tmp_path / "memory.db", MemoryConfig()).store) as store:
        add_tip(store, "t", "钥匙 🔑")
    command = [sys.executable, "-m", "trailnotes", "memory", "list", str(tmp_path / "memory.db")]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    listed, as_json = (
        subprocess.run([*command, *more], env=env, check=True, capture_output=True, text=True).stdout
        for more in ([], ["--json"])
    )
    assert listed.split("  ")[-1] == "\\u94a5\\u5319 \\U0001f511\n"
    assert json.loads(as_json)["text"] == "钥匙 🔑"
