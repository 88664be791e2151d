"""Word boundaries: Unicode's rules (UAX #29) with the choices of Lucene's StandardTokenizer.

Letters, digits and what may stand between them make a word; a Han or Hiragana character is one of its own, and so is a
pictograph; everything else only separates. The special case of Hebrew quotation marks is left out.

Each character is mapped to the letter of its class, once for all texts, and one pattern over these letters finds the
words. ASCII has a pattern of its own, made from the same template, which returns the words without that detour.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from pathlib import Path

MAX_LENGTH = 255  # characters: a longer word is cut into pieces, as Lucene does

_TABLES = tomllib.loads(Path(__file__).with_name("characters.toml").read_text(encoding="utf-8"))
_BY_RANGE = tuple((name, re.compile(f"[{characters}]")) for name, characters in _TABLES["ranges"].items())
_UNSEGMENTED_SCRIPTS = re.compile(f"[{_TABLES['unsegmented']['S']}]")
_BY_CATEGORY = {"Nd": "N"} | dict.fromkeys(("Mn", "Me", "Mc", "Cf"), "X")
_BY_CATEGORY |= dict.fromkeys(("Lu", "Ll", "Lt", "Lm", "Lo", "Nl"), "L")


class _CharacterClasses(dict[int, str]):
    """Code point -> letter of its class, found at the first sight of it; ASCII and the middles are there before."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        letter = next((name for name, members in _BY_RANGE if members.match(character)), "")
        if not letter:
            letter = _BY_CATEGORY.get(unicodedata.category(character), " ")
            letter = "S" if letter in "LX" and _UNSEGMENTED_SCRIPTS.match(character) else letter
        self[code] = letter
        return letter


def _build_core_pattern(letter: str, digit: str, inner: str, between: str) -> str:
    """Letters and digits without a gap, where `inner` may stand between letters and `between` between digits."""
    return f"(?:{digit}(?:(?:{between})?{digit})*+|{letter}(?:(?:{inner})?{letter})*+)++"


_CLASSES = _CharacterClasses({ord(each): name for name, members in _TABLES["middle"].items() for each in members})
_PLAIN_CORE = _build_core_pattern("[A-Za-z]", "[0-9]", "[:.']", "[,;.']")
_PLAIN = re.compile(f"(?<!_)_*+{_PLAIN_CORE}(?:_++{_PLAIN_CORE})*+_*+")

_EXTEND = "[XZVT]*+"
_CORE = _build_core_pattern(*(f"{item}{_EXTEND}" for item in ("L", "N", "[MBQ]", "[CBQ]")))
_WORD, _JOIN, _PICTOGRAPH = f"(?:{_CORE}|(?:K{_EXTEND})++)", f"(?:U{_EXTEND})", "EV?+T?+"
_OTHERS = f"{_PICTOGRAPH}(?:Z{_PICTOGRAPH})*+{_EXTEND}|RR{_EXTEND}|[HG]{_EXTEND}|(?:S{_EXTEND})++"
_WIDE = re.compile(f"(?<!U){_JOIN}*+{_WORD}(?:{_JOIN}++{_WORD})*+{_JOIN}*+|{_OTHERS}")


def split_words(text: str) -> list[str]:
    if text.isascii():
        words = _PLAIN.findall(text)
    else:
        words = [text[slice(*match.span())] for match in _WIDE.finditer(text.translate(_CLASSES))]
    if max(map(len, words), default=0) <= MAX_LENGTH:
        return words
    return [word[i : i + MAX_LENGTH] for word in words for i in range(0, len(word), MAX_LENGTH)]
