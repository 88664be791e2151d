from __future__ import annotations

import asyncio

import pytest

from trailnotes.errors import PolicyError
from trailnotes.policies.scripted import END_ID, ROLE_IDS, ScriptedPolicy
from trailnotes.types import Completion, Message, Sampling

USER, ASSISTANT = ROLE_IDS["user"], ROLE_IDS["assistant"]


def answer(policy: ScriptedPolicy, messages: list[Message], **sampling: object) -> Completion:
    return asyncio.run(policy.generate(messages, Sampling(**sampling), "e"))


def test_encoding_by_hand() -> None:
    policy = ScriptedPolicy(lambda messages: "")
    messages = [Message("user", "hi"), Message("assistant", "ok", (7, END_ID)), Message("user", "é")]
    first, last = (USER, 104, 105, END_ID), (USER, 0xC3, 0xA9, END_ID)
    assert policy.encode(messages) == (*first, ASSISTANT, 7, END_ID, *last, ASSISTANT)
    cut_off = Message("assistant", "go", (103, 111))
    assert policy.encode([cut_off]) == (ASSISTANT, 103, 111, END_ID, ASSISTANT)
    assert policy.decode(policy.encode(messages[2:])) == "é"
    assert policy.count_tokens("é!") == 3


def test_stop_text_and_length_end_a_completion() -> None:
    policy = ScriptedPolicy(lambda messages: "go east\nthen")
    stopped = answer(policy, [Message("user", "")], stop=("\n",))
    assert (stopped.text, stopped.finish_reason, stopped.token_ids[-1]) == ("go east", "stop", END_ID)
    cut = answer(policy, [Message("user", "")], max_tokens=2)
    assert (cut.text, cut.finish_reason, cut.token_ids) == ("go", "length", (103, 111))


def test_a_full_context_is_refused() -> None:
    policy = ScriptedPolicy(lambda messages: "go", context_length=10)
    assert answer(policy, [Message("user", "hall")], max_tokens=3).text == "go"  # 7 + 3
    with pytest.raises(PolicyError, match="7 tokens leaves no room for 4"):
        answer(policy, [Message("user", "hall")], max_tokens=4)
