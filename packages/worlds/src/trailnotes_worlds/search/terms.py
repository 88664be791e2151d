"""Index terms of a text, as Lucene's English analyzer makes them: words, without stopwords, stemmed.

Word boundaries are Unicode's (UAX #29) with the choices of Lucene's StandardTokenizer, but for the special case of
Hebrew quotation marks. Letters, digits and what may stand between them make a word; a Han or Hiragana character is a
word, and so is a pictograph; everything else only separates. Each character is mapped to the letter of its class, and
one pattern over these letters finds the words. ASCII has a pattern of its own, from the same template.

The stemmer is Porter's (Program 14(3), 1980) with the three departures of Lucene's `PorterStemmer`: words of one or two
letters stay, ``bli`` becomes ``ble`` (not ``abli`` ``able``), and ``logi`` becomes ``log``. Every letter but a, e, i,
o, u and y counts as a consonant, whatever script.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from functools import lru_cache
from pathlib import Path

_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble",
    "logi": "log",
}  # fmt: skip
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = dict.fromkeys(
    ["al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
     "ous", "ive", "ize"],
    "",
)  # fmt: skip
_MAX_SUFFIX_LENGTH = max(map(len, _STEP_2))
_VOWELS_THEN_CONSONANT = re.compile("v+c")


def stem(word: str) -> str:
    if len(word) <= 2:
        return word
    if word.endswith(("sses", "ies")):  # step 1a
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    word = _step_1b(word)
    if word.endswith("y") and "v" in _classify_letters(word[:-1]):  # step 1c
        word = word[:-1] + "i"
    word = _replace(word, _STEP_2, above=0)
    word = _replace(word, _STEP_3, above=0)
    word = _replace(word, _STEP_4, above=1)
    if word.endswith("e"):  # step 5
        measure = _compute_measure(word[:-1])
        if measure > 1 or (measure == 1 and not _is_short_ending(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _compute_measure(word) > 1 else word


def _classify_letters(word: str) -> str:
    """Write ``v`` for each vowel of a word and ``c`` for each consonant; y is a vowel after a consonant."""
    shape = ""
    for letter in word:
        shape += "v" if letter in "aeiou" or (letter == "y" and shape.endswith("c")) else "c"
    return shape


def _compute_measure(word: str) -> int:
    """Porter's m: how often a consonant follows vowels."""
    return len(_VOWELS_THEN_CONSONANT.findall(_classify_letters(word)))


def _is_short_ending(word: str) -> bool:
    """Porter's *o: the end is consonant, vowel, consonant, and the last is not w, x or y."""
    return _classify_letters(word).endswith("cvc") and word[-1] not in "wxy"


def _step_1b(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _compute_measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        if word.endswith(suffix):
            base = word.removesuffix(suffix)
            return _restore_ending(base) if "v" in _classify_letters(base) else word
    return word


def _restore_ending(base: str) -> str:
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if base[-1:] == base[-2:-1] and _classify_letters(base).endswith("c"):  # Porter's *d: the same consonant twice
        return base if base[-1] in "lsz" else base[:-1]
    return base + "e" if _compute_measure(base) == 1 and _is_short_ending(base) else base


def _replace(word: str, suffixes: dict[str, str], above: int) -> str:
    """Replace the longest suffix that is listed, if the measure of what is before it is above `above`."""
    for length in range(min(_MAX_SUFFIX_LENGTH, len(word)), 1, -1):
        suffix = word[-length:]
        if suffix not in suffixes:
            continue
        base = word[:-length]
        if suffix == "ion" and not base.endswith(("s", "t")):
            return word
        return base + suffixes[suffix] if _compute_measure(base) > above else word
    return word


MAX_LENGTH = 255  # characters: a longer word is cut into pieces, as Lucene does

_TABLES = tomllib.loads(Path(__file__).with_name("characters.toml").read_text(encoding="utf-8"))
_BY_RANGE = tuple((name, re.compile(f"[{characters}]")) for name, characters in _TABLES["ranges"].items())
_UNSEGMENTED_SCRIPTS = re.compile(f"[{_TABLES['unsegmented']['S']}]")
_BY_CATEGORY = {"Nd": "N"} | dict.fromkeys(("Mn", "Me", "Mc", "Cf"), "X")
_BY_CATEGORY |= dict.fromkeys(("Lu", "Ll", "Lt", "Lm", "Lo", "Nl"), "L")


class _CharacterClasses(dict[int, str]):
    """Code point -> letter of its class, computed at the first sight of it; ASCII and the middles are there before."""

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


STOPWORDS = frozenset(
    ("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
     "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with")
)  # fmt: skip
_POSSESSIVES = ("'s", "\u2019s", "\uff07s")


@lru_cache(1 << 18)  # natural text repeats itself
def to_term(word: str) -> str:
    """Turn a word into its term: without possessive, in lower case, stemmed; "" for a stopword."""
    word = word.lower()
    if word.endswith(_POSSESSIVES):
        word = word[:-2]
    return "" if word in STOPWORDS else stem(word)


def analyze(text: str) -> list[str]:
    return [term for term in map(to_term, split_words(text)) if term]
