"""The chat templates of families of models, each with a tokenizer of its kind: contexts, masks, ends and rows."""

from __future__ import annotations

import logging
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


REFUSES_SYSTEM = ("gemma2", "mistral1")


def shown_of(name: str, messages: list[Message]) -> list[Message]:
    """What is rendered: where there is no system role, its message opens the user's first one."""
    if messages[0].role != "system" or name not in REFUSES_SYSTEM:
        return messages
    return [Message("user", f"{messages[0].content}\n\n{messages[1].content}"), *messages[2:]]


@pytest.mark.parametrize("system", [None, "Explore."])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("num", [1, 3, 5])
def test_a_conversation_is_what_the_template_makes_of_it(chats, name, num, system) -> None:
    chat, messages = chats[name], talk(*SPOKEN[:num], system=system)
    text = rendered(chat.tokenizer, shown_of(name, messages))
    assert text_of(chat.tokenizer, chat.encode(messages)) == text
    assert list(chat.encode(messages)) == chat.tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_probe_says_whether_a_context_only_grows(chats, name) -> None:
    assert chats[name].append_only == (name not in {"qwen3", "mistral3"})


def test_a_template_that_moves_the_system_message_says_what_helps(caplog) -> None:
    with caplog.at_level(logging.WARNING):
        ChatFormat(family_tokenizer("mistral3"))
    assert 'with rollout.system_prompt = "" it leaves earlier turns alone' in caplog.text


@pytest.mark.parametrize("name", FAMILIES)
def test_what_was_sampled_stays_where_the_prompt_ended(chats, name) -> None:
    """The blanks that a template puts around an answer are the model's to write."""
    chat = chats[name]
    (end,) = chat.tokenizer.convert_tokens_to_ids([FAMILIES[name].end])
    for words in ("go north", " go north"):
        sampled = (*chat.tokenizer.encode("x" + words, add_special_tokens=False)[1:], end)
        prompt = chat.encode(talk("A hall."))
        after = chat.encode([*talk("A hall."), Message("assistant", words, sampled), Message("user", "A key.")])
        if name != "mistral3":
            assert after[: len(prompt) + len(sampled)] == prompt + sampled
        end_text, rest = FAMILIES[name].end, text_of(chat.tokenizer, after).partition(words)[2]
        assert rest.startswith(end_text)
        assert not rest.removeprefix(end_text).startswith((end_text, f" {end_text}"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_context_begins_once(chats, name) -> None:
    """Not with a token of the template's and another of the tokenizer's."""
    chat, bos = chats[name], chats[name].tokenizer.bos_token_id
    ids = chat.encode(talk("A hall.", system="Explore."))
    assert bos is None or (ids[0] == bos and ids[1] != bos)
