"""Index terms of a text, as Lucene's English analyzer makes them."""

from __future__ import annotations

from functools import lru_cache

from trailnotes_worlds.search.porter import stem
from trailnotes_worlds.search.words import split_words

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
