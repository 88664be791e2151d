"""Texts as word ids for the critic: a vocabulary made from its own data, and saved with it as a JSON list."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

WORD = re.compile(r"\w+|[^\w\s]")
MAX_KNOWN_WORDS = 8192  # words with an id of their own; as many entries as the release's SentencePiece vocabulary
NUM_HASHED = 256  # ids that all other words share
MAX_TEXT_WORDS = 256  # of a text; what follows is not read
EMPTY_ID = 0  # stands for a text without words


class Vocabulary:
    """Words to ids: 0 for an empty text, then the known words, then a few that unknown words are hashed to.

    Unknown words are told apart from each other, though not from the known ones by training: no text is unreadable.
    """

    def __init__(self, known: Sequence[str]) -> None:
        self.known = tuple(known)
        self._ids = {word: 1 + index for index, word in enumerate(self.known)}

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Vocabulary:
        """The most frequent words of `texts`, ties in the order of the alphabet."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(_split_words(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(ranked[:MAX_KNOWN_WORDS])

    @property
    def size(self) -> int:
        """Number of ids."""
        return 1 + len(self.known) + NUM_HASHED

    def encode(self, text: str) -> list[int]:
        """At least one id, at most `MAX_WORDS`."""
        ids = [self._ids.get(word) or self._hash_word(word) for word in _split_words(text)[:MAX_TEXT_WORDS]]
        return ids or [EMPTY_ID]

    def _hash_word(self, word: str) -> int:
        return 1 + len(self.known) + zlib.crc32(word.encode("utf-8", "replace")) % NUM_HASHED


def _split_words(text: str) -> list[str]:
    return WORD.findall(text.lower())
