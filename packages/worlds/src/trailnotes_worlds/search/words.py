"""Where words begin and end: Unicode's rules (UAX #29) with the choices of Lucene's StandardTokenizer.

Letters, digits and what may stand between them make a word; a Han or Hiragana character is one of its own, and so is a
pictograph; everything else only separates. The special case of Hebrew quotation marks is left out.

Each character is mapped to the letter of its class, once for all texts, and one pattern over these letters finds the
words. ASCII has a pattern of its own, made from the same template, which returns the words without that detour.
"""

from __future__ import annotations

import re
import unicodedata

MAX_LENGTH = 255  # characters: a longer word is cut into pieces, as Lucene does

_MIDDLE_CHARACTERS = {
    "M": ":·\u0387\u055f\u05f4\u2027\ufe13\ufe55\uff1a",  # between letters
    "B": ".\u2018\u2019\u2024\ufe52\uff07\uff0e",  # between letters, or between digits
    "Q": "'",  # the same
    "C": ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b",  # between digits
    "U": "_\u202f\u203f\u2040\u2054\ufe33\ufe34\ufe4d\ufe4e\ufe4f\uff3f",  # joins anything
    "Z": "\u200d",
    "V": "\ufe0f",
    " ": "\u200b",
}
_LETTERS = (
    "\u02c2-\u02c5\u02d2-\u02d7\u02de\u02df\u02e5-\u02eb\u02ed\u02ef-\u02ff\u055a-\u055c\u055e\u058a\u05f3\u24b6-\u24e9"
    "\ua708-\ua716\ua720\ua721\ua789\ua78a\uab5b\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f172-\U0001f17d"
)
_PICTOGRAPHS = (
    "©®\u2122\u203c\u2049\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3\u23f8-\u23fa\u24c2\u25aa"
    "\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714\u2716\u271d"
    "\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27a1\u27b0\u27bf"
    "\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f"
    "\U0001f16c-\U0001f171\U0001f17e\U0001f17f\U0001f18e\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f"
    "\U0001f21a\U0001f22f\U0001f232-\U0001f23a\U0001f23c-\U0001f23f\U0001f249-\U0001f3fa\U0001f400-\U0001f53d"
    "\U0001f546-\U0001f64f\U0001f680-\U0001f6ff\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f"
    "\U0001f848-\U0001f84f\U0001f85a-\U0001f85f\U0001f888-\U0001f88f\U0001f8ae-\U0001f8ff\U0001f90c-\U0001f93a"
    "\U0001f93c-\U0001f945\U0001f947-\U0001faff\U0001fc00-\U0001fffd"
)
_HAN = (
    "\u2e80-\u2e99\u2e9b-\u2ef3\u2f00-\u2fd5\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufa6d\ufa70-\ufad9\U00020000-\U0003134f"
)
_KATAKANA = "\u3031-\u3035\u309b\u309c\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u32d0-\u32fe\u3300-\u3357\uff66-\uff9d"
_BY_RANGE = tuple(
    (name, re.compile(f"[{characters}]"))
    for name, characters in {
        "E": _PICTOGRAPHS,
        "L": _LETTERS,
        "H": _HAN,
        "G": "\u3041-\u3096\u309d-\u309f",
        "K": _KATAKANA,
        "R": "\U0001f1e6-\U0001f1ff",
        "T": "\U0001f3fb-\U0001f3ff",
        "X": "\uff9e\uff9f\u200c",
    }.items()
)
# Thai to Tai: scripts without spaces, whose runs stay whole
_UNSEGMENTED_SCRIPTS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaadf]"
)
_BY_CATEGORY = {"Nd": "N"} | dict.fromkeys(("Mn", "Me", "Mc", "Cf"), "X")
_BY_CATEGORY |= dict.fromkeys(("Lu", "Ll", "Lt", "Lm", "Lo", "Nl"), "L")


class _CharacterClasses(dict[int, str]):
    """Code point -> letter of its class, found at the first sight of it; ASCII and the middles are there before."""

    def __missing__(self, code: int) -> str:
        self[code] = found = _classify_character(chr(code))
        return found


def _classify_character(character: str) -> str:
    for name, members in _BY_RANGE:
        if members.match(character):
            return name
    found = _BY_CATEGORY.get(unicodedata.category(character), " ")
    return "S" if found in "LX" and _UNSEGMENTED_SCRIPTS.match(character) else found


def _build_core_pattern(letter: str, digit: str, inner: str, between: str) -> str:
    """Letters and digits without a gap, where `inner` may stand between letters and `between` between digits."""
    return f"(?:{digit}(?:(?:{between})?{digit})*+|{letter}(?:(?:{inner})?{letter})*+)++"


def _compile_plain() -> re.Pattern[str]:
    core = _build_core_pattern("[A-Za-z]", "[0-9]", "[:.']", "[,;.']")
    return re.compile(f"(?<!_)_*+{core}(?:_++{core})*+_*+")


def _compile_wide() -> re.Pattern[str]:
    extend = "[XZVT]*+"
    core = _build_core_pattern(*(f"{item}{extend}" for item in ("L", "N", "[MBQ]", "[CBQ]")))
    word, join = f"(?:{core}|(?:K{extend})++)", f"(?:U{extend})"
    pictograph = "EV?+T?+"
    others = f"{pictograph}(?:Z{pictograph})*+{extend}|RR{extend}|[HG]{extend}|(?:S{extend})++"
    return re.compile(f"(?<!U){join}*+{word}(?:{join}++{word})*+{join}*+|{others}")


_CLASSES = _CharacterClasses(
    {ord(character): name for name, characters in _MIDDLE_CHARACTERS.items() for character in characters}
)
_PLAIN, _WIDE = _compile_plain(), _compile_wide()


def split_words(text: str) -> list[str]:
    """The words of `text` in order, as they stand in it."""
    if text.isascii():
        words = _PLAIN.findall(text)
    else:
        words = [text[slice(*found.span())] for found in _WIDE.finditer(text.translate(_CLASSES))]
    if max(map(len, words), default=0) <= MAX_LENGTH:
        return words
    return [word[i : i + MAX_LENGTH] for word in words for i in range(0, len(word), MAX_LENGTH)]
