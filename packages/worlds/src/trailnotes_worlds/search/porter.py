"""Porter's stemmer as Lucene runs it.

M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the three departures of its author's later
programs that Lucene's `PorterStemmer` shares: words of one or two letters stay, ``bli`` becomes ``ble`` (not ``abli``
``able``), and ``logi`` becomes ``log``. Every letter but a, e, i, o, u and y counts as a consonant, whatever script.
"""

from __future__ import annotations

import re

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
