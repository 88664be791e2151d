"""Where a completion ends, and the text that it then is: the same for every engine that gives token ids."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

from trailnotes.types import FinishReason, Sampling, TokenIds

Decode = Callable[[TokenIds], str]  # without special tokens

CACHE_SIZE = 65536  # decoded texts remembered


class Endings:
    """The rule by which sampled ids are a whole completion: an end token, a stop text, or the limit.

    Args:
        decode: ids to text.
        end_ids: tokens that end a turn; they belong to the ids of a completion, and not to its text.
        opening: the tag of thinking that every prompt ends with, "" for none: the texts of completions begin with it.
    """

    def __init__(self, decode: Decode, end_ids: Collection[int], opening: str = "") -> None:
        self.end_ids = frozenset(end_ids)
        self.opening = opening
        self._decode = lru_cache(CACHE_SIZE)(decode)

    def end(self, sampled: Sequence[int], sampling: Sampling) -> tuple[str, FinishReason] | None:
        """Text and reason where the newest of the sampled ids, of which there is at least one, ends them; else None."""
        token = sampled[-1]
        ended = token in self.end_ids
        full = len(sampled) >= sampling.max_tokens
        if not (ended or full or any(self._may_end(token, stop) for stop in sampling.stop)):
            return None
        text, stopped = sampling.cut(self.opening + self._decode(tuple(sampled[:-1] if ended else sampled)))
        if not (ended or full or stopped):
            return None
        return text, "stop" if ended or stopped else "length"

    def _may_end(self, token: int, stop: str) -> bool:
        """Whether a stop text may end inside this token: a cheap test that spares decoding the whole each time."""
        last = stop[-1]
        return not last.isascii() or last == " " or last in self._decode((token,))
