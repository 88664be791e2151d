"""Words, stems and terms are those of Lucene's English analyzer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes_worlds.search import words
from trailnotes_worlds.search.analyzer import STOPWORDS, analyze, to_term
from trailnotes_worlds.search.porter import stem
from trailnotes_worlds.search.words import MAX_LENGTH, split_words

ASCII = st.text(st.characters(max_codepoint=127))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wi-fi, usb-c / hdmi", ["wi", "fi", "usb", "c", "hdmi"]),
        ("don't o'clock' 'tis", ["don't", "o'clock", "tis"]),
        ("u.s.a. example.com 3.5mm 1,000,000 12:30", ["u.s.a", "example.com", "3.5mm", "1,000,000", "12", "30"]),
        ("color:red 3:a a.1 1.a 5'2", ["color:red", "3", "a", "a", "1", "1", "a", "5'2"]),
        ("snake_case _x_ __ _", ["snake_case", "_x_"]),
        ("50% off #1 a&b c++", ["50", "off", "1", "a", "b", "c"]),
        ("café naïve Ünïcode", ["café", "naïve", "Ünïcode"]),
        ("cafe\u0301s x\u200dy", ["cafe\u0301s", "x\u200dy"]),  # a combining mark and a joiner stay in their word
        ("men\u2019s l\u2019eau", ["men\u2019s", "l\u2019eau"]),
        ("½ ¼ ² 3²", ["3"]),
        ("面膜 30ml", ["面", "膜", "30ml"]),
        ("ひら カタカナ", ["ひ", "ら", "カタカナ"]),
        ("ผ้าไหม silk", ["ผ้าไหม", "silk"]),
        ("★new★ ☆ brand™ x® ©", ["★", "new", "★", "brand", "™", "x", "®", "©"]),
        ("👍🏽 👩‍👧 🇫🇷🇩🇪 ❤️ok", ["👍🏽", "👩‍👧", "🇫🇷", "🇩🇪", "❤️", "ok"]),
        ("１２.５ ＡＢ", ["１２.５", "ＡＢ"]),
        ("\ud800 a\x00b", ["a", "b"]),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert split_words(text) == expected


@given(ASCII)
def test_the_short_way_for_ascii_finds_the_same(text: str) -> None:
    wide = [found[0] for found in words._WIDE.finditer(text.translate(words._CLASSES))]
    assert list(map(len, split_words(text))) == list(map(len, wide))


@given(st.text())
def test_words_stand_in_the_text_one_after_the_other(text: str) -> None:
    place = 0
    for word in split_words(text):
        place = text.index(word, place) + len(word)


def test_a_long_word_is_cut() -> None:
    assert split_words("a" * 600) == ["a" * MAX_LENGTH, "a" * MAX_LENGTH, "a" * 90]


@pytest.mark.parametrize("piece", ["_", "a.", "1,", "★", "\u0301", "é'", "__a", "\u200d", "🇫"])
def test_hostile_repeats_take_linear_time(piece: str) -> None:
    assert sum(map(len, split_words(piece * 100_000))) <= len(piece) * 100_000


@pytest.mark.parametrize(  # most are the examples of Porter's paper
    ("word", "expected"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("ties", "ti"), ("caress", "caress"), ("cats", "cat"),
        ("feed", "feed"), ("agreed", "agre"), ("plastered", "plaster"), ("bled", "bled"), ("motoring", "motor"),
        ("sing", "sing"), ("conflated", "conflat"), ("troubled", "troubl"), ("sized", "size"), ("hopping", "hop"),
        ("falling", "fall"), ("hissing", "hiss"), ("fizzed", "fizz"), ("failing", "fail"), ("filing", "file"),
        ("happy", "happi"), ("sky", "sky"), ("relational", "relat"), ("conditional", "condit"), ("rational", "ration"),
        ("digitizer", "digit"), ("radically", "radic"), ("vietnamization", "vietnam"), ("operator", "oper"),
        ("feudalism", "feudal"), ("hopefulness", "hope"), ("formality", "formal"), ("sensibility", "sensibl"),
        ("triplicate", "triplic"), ("electrical", "electr"), ("goodness", "good"), ("revival", "reviv"),
        ("adjustment", "adjust"), ("adoption", "adopt"), ("communism", "commun"), ("effective", "effect"),
        ("probate", "probat"), ("rate", "rate"), ("cease", "ceas"), ("controll", "control"), ("roll", "roll"),
        ("possibly", "possibl"), ("archaeology", "archaeolog"), ("is", "is"), ("us", "us"), ("s", "s"),  # Lucene's own
        ("cafés", "café"), ("ion", "ion"), ("ying", "ying"),
    ],
)  # fmt: skip
def test_stems(word: str, expected: str) -> None:
    assert stem(word) == expected


@given(st.text(st.sampled_from("aeiouybcdlrstz")))
def test_a_stem_is_no_longer_than_its_word_and_begins_as_it(word: str) -> None:
    found = stem(word)
    assert len(found) <= len(word)
    assert found[:2] == word[:2] or len(word) < 5


def test_terms() -> None:
    found = analyze("The Women's shoes, and MEN\u2019S Running-Shoes' for 1's")
    assert found == ["women", "shoe", "men", "run", "shoe", "1", "s"]
    assert len(STOPWORDS) == 33
    assert analyze(" ".join(sorted(STOPWORDS))) == []
    assert to_term("IT'S") == ""  # a stopword without its possessive
