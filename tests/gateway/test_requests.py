"""What an agent sends as a conversation, and the model's answer as functions to call."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from trailnotes.gateway.requests import (
    ModelCall,
    ModelReply,
    RequestRefused,
    build_responses_answer,
    make_reply,
    parse_chat_call,
    render_conversation,
)
from trailnotes.policies.hf.sampling import TokenSampler
from trailnotes.types import Completion, Sampling

TOOLS = ({"type": "function", "function": {"name": "say"}},)
ROLES = ("user", "system", "tool")
PIECES = ("obey", "\n", "System: ", "<system>", "</system>", "<tool_response>", "</tool_response>", "\\", "<\\/system>")


def render(*messages: tuple[str, str]) -> str:
    """The one turn of the user that these messages make, after a first one."""
    told = [{"role": role, "content": text} for role, text in (("user", "begin"), *messages)]
    return render_conversation(ModelCall(tuple(told)), {}).turns[-1][1].removeprefix("begin\n")


def read(turn: str) -> list[tuple[str, str]]:
    """Read a turn as a model could: what is in the tags of a role is of that role, all the rest of the user."""
    parts = re.split(r"\n?<(system|tool_response)>\n(.*?)\n</\1>(?:\n|$)", f"\n{turn}", flags=re.DOTALL)
    marked = list(zip(parts[1::3], parts[2::3], strict=True))
    return [(role, re.sub(r"<\\(\\*/?(?:system|tool_response)>)", r"<\1", text)) for role, text in marked]


@given(
    st.lists(st.tuples(st.sampled_from(ROLES), st.lists(st.sampled_from(PIECES), min_size=1).map("".join)), min_size=1)
)
def test_no_text_takes_another_role(messages: list[tuple[str, str]]) -> None:
    kinds = {"system": "system", "tool": "tool_response"}
    assert read(render(*messages)) == [(kinds[role], text) for role, text in messages if role in kinds]


NUMBERS = st.floats() | st.integers() | st.sampled_from([10**400, 1e308, 5e-324, 1e-300, True])


@given(NUMBERS, NUMBERS)
@example(float("nan"), 1.0)
@example(10**400, 1.0)
@example(1.0, 1e-300)
def test_numbers_of_a_request_are_refused_or_cost_nobody_an_answer(temperature: Any, top_p: Any) -> None:
    messages = [{"role": "user", "content": "go"}]
    try:
        call = parse_chat_call({"messages": messages, "temperature": temperature, "top_p": top_p})
    except RequestRefused:
        return
    settings = [Sampling(), Sampling(**dict(call.sampling))]
    logits = torch.tensor([[4.0, -30.0, 2.0]]).expand(2, -1)
    sample = TokenSampler([(each, np.full(1, 0.5, dtype=np.float32)) for each in settings])
    sample(logits)
    tokens, logprobs = sample.read()
    assert tokens[0] == [0]
    assert np.isfinite(logprobs).all()


@pytest.mark.parametrize(("text", "reason"), [("a", "length"), ("a", "stop"), ("a\nb", "length")])
def test_a_response_says_why_it_is_incomplete(text: str, reason: Literal["length", "stop"]) -> None:
    cut = (text, reason) == ("a", "length")  # not at a stop text
    reply = make_reply(ModelCall(({"role": "user"},), stop=("\n",)), Completion((1,), (2,), (0.0,), text, reason))
    said, details = build_responses_answer(reply), {"reason": "max_output_tokens"} if cut else None
    assert (said["status"] == "incomplete", said["incomplete_details"], reply.content) == (cut, details, "a")


def answer(text: str) -> ModelReply:
    return make_reply(ModelCall(({"role": "user", "content": "go"},), TOOLS), Completion((1,), (2,), (0.0,), text))


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ('{"text": "x"}', {"text": "x"}),
        ('"{\\"text\\": \\"x\\"}"', {"text": "x"}),
        ("null", {}),
        ('""', {}),
        ('{"text": "a </tool_call> b"}', {"text": "a </tool_call> b"}),
        ('{"text": "one\ntwo"}', {"text": "one\ntwo"}),
        ('{"text": {"deep": [1, {"x": 2}]}}', {"text": {"deep": [1, {"x": 2}]}}),
        ('{"x": NaN}', None),
        ('{"x": 1e999}', None),
        ("[1]", None),
        ("3", None),
        ('"go"', None),
        ("[" * 100_000, None),
    ],
)
def test_a_call_has_one_object_of_arguments(arguments: str, wanted: dict[str, Any] | None) -> None:
    text = f'<tool_call>\n{{"name": "say", "arguments": {arguments}}}\n</tool_call>'
    reply = answer(f"I say.\n{text}\n{text}")
    if wanted is None:
        assert (reply.calls, reply.content) == ((), f"I say.\n{text}\n{text}")
        return
    assert (reply.content, reply.finish_reason, len(reply.calls)) == ("I say.", "tool_calls", 2)
    assert [json.loads(call["function"]["arguments"]) for call in reply.calls] == [wanted, wanted]


def test_half_a_surrogate_pair_of_the_model_becomes_a_question_mark() -> None:
    reply = answer('\udcff <tool_call>{"name": "s\\ud83day", "arguments": {"\\ud83d": "\\ud83d\\ude00"}}</tool_call>')
    function = {"name": "s?ay", "arguments": '{"?": "😀"}'}
    assert (reply.content, reply.calls[0]["function"]) == ("?", function)


def test_an_agent_s_own_calls_are_rendered_with_an_object() -> None:
    for arguments in ('{"a": 1}', '"{\\"a\\": 1}"', {"a": 1}):
        call = {"id": "c", "function": {"name": "say", "arguments": arguments}}
        messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        messages.append({"role": "tool", "content": "done", "tool_call_id": "c"})
        turns = render_conversation(parse_chat_call({"messages": messages}), {}).turns
        assert turns[1] == ("assistant", '<tool_call>{"name": "say", "arguments": {"a": 1}}</tool_call>')


def test_tools_are_worded_as_the_model_knows_them() -> None:
    call = ModelCall(({"role": "system", "content": "Act."}, {"role": "user", "content": "go"}), TOOLS)
    own = render_conversation(call, {}, lambda tools: f"# Tools {json.dumps(tools)}").turns[0][1]
    assert own == f"Act.\n\n# Tools {json.dumps(TOOLS)}"
    assert "You can call functions" in render_conversation(call, {}, lambda tools: "").turns[0][1]
