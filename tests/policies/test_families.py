"""The chat templates of families of models, each with a tokenizer of its kind: contexts, masks, ends and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from families import FAMILIES, family_tokenizer

from trailnotes.policies.chat import ChatFormat
from trailnotes.types import Message

SPOKEN = ("A hall.", "go north", "A key.", "take key", "Taken.")


def talk(*contents: str, system: str | None = None) -> list[Message]:
    head = [] if system is None else [Message("system", system)]
    return head + [Message("assistant" if i % 2 else "user", text) for i, text in enumerate(contents)]


def rendered(tokenizer: Any, messages: Sequence[Message], **options: Any) -> str:
    turns = [{"role": m.role, "content": m.content} for m in messages]
    is_prompt = messages[-1].role != "assistant"
    text: str = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=is_prompt, **options)
    return text


def text_of(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


@pytest.fixture(scope="module")
def chats() -> dict[str, ChatFormat]:
    return {name: ChatFormat(family_tokenizer(name)) for name in FAMILIES}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("num", [1, 3, 5])
def test_a_conversation_is_what_the_template_makes_of_it(chats, name, num) -> None:
    chat, messages = chats[name], talk(*SPOKEN[:num])
    assert text_of(chat.tokenizer, chat.encode(messages)) == rendered(chat.tokenizer, messages)
