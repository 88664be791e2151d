from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from small import demonstration_texts
from trailnotes.policies.chat import ChatFormat
from trailnotes.types import Message
from trailnotes.warmstart.small_model import END, train_tokenizer

TEXTS = demonstration_texts(200)
TOKENIZER = train_tokenizer(TEXTS, 512)
WORDS = ["north", "archive", "unlock", "ruby", "nothing", "exits"]


def ids_of(text: str, tokenizer: Any = TOKENIZER) -> list[int]:
    ids: list[int] = tokenizer(text)["input_ids"]
    return ids


@pytest.mark.parametrize("word", WORDS)
def test_a_frequent_word_is_one_token_wherever_it_stands(word: str) -> None:
    (alone,) = ids_of(word)
    other = "east" if word != "east" else "west"
    assert ids_of(f"{word} {other}")[0] == alone
    assert ids_of(f"{other} {word}")[-1] == alone
    assert ids_of(f"{other}\n{word}")[-1] == alone


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_any_text_is_encodable_and_comes_back_but_for_blanks(text: str) -> None:
    ids = ids_of(text)
    assert TOKENIZER.pad_token_id not in ids, "the pad stands for unknown text, of which there is none"
    assert "".join(TOKENIZER.decode(ids).split()) == "".join(unicodedata.normalize("NFC", text).split())


def test_the_chat_template_keeps_the_append_only_property() -> None:
    chat = ChatFormat(TOKENIZER)
    assert chat.append_only
    assert chat.end_ids == frozenset({TOKENIZER.eos_token_id})
    ids = chat.encode([Message("user", "exits north"), Message("assistant", "north"), Message("user", "won")])
    names = TOKENIZER.convert_ids_to_tokens(list(ids))
    assert [n for n in names if n.startswith("<|")] == ["<|user|>", "<|assistant|>", END, "<|user|>", "<|assistant|>"]
