"""From text to index terms, as Lucene's English analyzer makes them."""

from __future__ import annotations

from trailnotes_worlds.search.porter import stem
from trailnotes_worlds.search.words import split_words

STOPWORDS = frozenset(
    ("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
     "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with")
)  # fmt: skip
_POSSESSIVES = ("'s", "\u2019s", "\uff07s")
_CACHE_SIZE = 1 << 18  # words; natural text repeats itself


class TermCache(dict[str, str]):
    """Word -> term; "" for a stopword."""

    def __missing__(self, word: str) -> str:
        if len(self) >= _CACHE_SIZE:
            self.clear()
        self[word] = term = to_term(word)
        return term


def to_term(word: str) -> str:
    """The term of one word: without its possessive, in lower case, stemmed; "" if it is a stopword."""
    word = word.lower()
    if word.endswith(_POSSESSIVES):
        word = word[:-2]
    return "" if word in STOPWORDS else stem(word)


_TERM_CACHE = TermCache()


def analyze(text: str) -> list[str]:
    """The terms of `text` in order, with repeats."""
    return [term for term in map(_TERM_CACHE.__getitem__, split_words(text)) if term]
