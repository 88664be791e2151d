"""Where an answer ends: stop texts and tokens need not begin and end in the same places."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from trailnotes.policies.hf.engine import MAX_CACHED_TOKENS, StopCondition
from trailnotes.types import Sampling, TokenIds

TEXTS = (
    "go", " north", ".\n\nThen", "\n", " \n ", "</act", "ion>", "</action> ", "x</", "action", ">", "\r\n", "é", "",
)  # fmt: skip
BYTES = "走".encode()
END = 99


def decode(ids: TokenIds) -> str:
    """Tokens 20, 21 and 22 are the bytes of one character, as in byte-level vocabularies."""
    data = b"".join(BYTES[i - 20 : i - 19] if i >= 20 else TEXTS[i].encode() for i in ids)
    return data.decode("utf-8", "replace")


def find_end(ids: TokenIds, *stop: str, max_tokens: int = 1000) -> tuple[int, str, str]:
    """Tokens taken, text and reason."""
    endings, sampling = StopCondition(decode, {END}), Sampling(max_tokens=max_tokens, stop=stop)
    for num in range(1, len(ids) + 1):
        if end := endings.find_end(ids[:num], sampling):
            return num, *end
    raise AssertionError("it never ends")


STOPS = ("\n", "\n\n", "</action>", "走")


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([*range(len(TEXTS)), 20, 21, 22]), max_size=2 * MAX_CACHED_TOKENS).map(tuple),
    st.lists(st.sampled_from(STOPS), min_size=1, unique=True),
)
@example((0, 8, 9, 10, 0), ["</action>"])  # in three tokens, the first of which begins with something else
@example((0, 20, 21, 22, 0), ["走"])  # a character of three tokens
def test_an_answer_ends_with_the_first_token_that_completes_a_stop_text(ids: TokenIds, stops: list[str]) -> None:
    wanted = next((n for n in range(len(ids) + 1) if any(stop in decode(ids[:n]) for stop in stops)), len(ids) + 1)
    num, text, reason = find_end((*ids, END), *stops)
    whole = decode(ids[:num])
    assert (num, reason) == (wanted, "stop")
    assert text == whole[: min((whole.find(stop) for stop in stops if stop in whole), default=len(whole))]
