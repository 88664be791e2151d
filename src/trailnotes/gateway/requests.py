"""Requests and answers of OpenAI's chat completions and responses, as conversations of a text model.

A conversation is one system text, then turns of the user and the model in alternation. All messages between two turns
of the model (of the user, of tools, later system messages) are one user turn. Tools are described in the system text,
by the model's own chat template where it knows the notation of Hermes and Qwen, in which calls are parsed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from trailnotes.client import AgentSession
from trailnotes.types import Completion, Role, Sampling, TokenIds, replace_surrogates, strip_thinking

Json = dict[str, Any]
ChatTurn = tuple[Role, str]
MODEL: Final = AgentSession.model  # the name that agents ask for
DescribeTools = Callable[[Sequence[Json]], str]  # as `ChatFormat.describe_tools`
Decode = Callable[[TokenIds], str]
_CALL_BEGIN: Final = re.compile(r"<tool_call>\s*(?=\{)")
_CALL_END: Final = re.compile(r"\s*(?:</tool_call>|$)")
_LENIENT: Final = json.JSONDecoder(strict=False)  # models leave line breaks in strings as they are
_TOOLS: Final = (
    "You can call functions. A call is one line, "
    '<tool_call>{{"name": NAME, "arguments": {{...}}}}</tool_call>, and its result comes in the next turn. '
    "The functions, one a line:\n{}"
)
_USER_FORMS: Final = {
    "user": "{}",
    **dict.fromkeys(("system", "developer"), "<system>\n{}\n</system>"),
    **dict.fromkeys(("tool", "function"), "<tool_response>\n{}\n</tool_response>"),
}
"""Role of a message that is no turn of the model -> how the model reads its text."""
_ROLE_TAG: Final = re.compile(r"<(\\*/?(?:system|tool_response)>)")  # gets a backslash where a text holds it
MIN_TEMPERATURE: Final = 0.01  # lower ones overflow logits
MAX_ANSWERS: Final = 128  # to one request, as OpenAI has it
MAX_STOPS: Final = 64  # of a request: each is looked for after each token
MODEL_FAILED: Final = "model_failed"  # code of a refusal that no retry helps
_BEGINNING: Final = "(The conversation begins.)"  # in place of a user's turn before the model's first


class RequestRefused(Exception):  # noqa: N818 (it is an answer)
    """A request that cannot be answered, as OpenAI's API words it."""

    def __init__(self, message: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status, self.code = status, code

    def to_json(self) -> Json:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


@dataclass(frozen=True, slots=True)
class ModelCall:
    messages: tuple[Json, ...]  # as chat completions have them
    tools: tuple[Json, ...] = ()
    stop: tuple[str, ...] = ()  # besides those of the run
    stream: bool = False
    sampling: tuple[tuple[str, Any], ...] = ()  # fields of `Sampling`, sorted
    parallel_calls: bool = True
    num_answers: int = 1
    logprobs: bool = False


@contextlib.contextmanager
def _refuse_malformed() -> Iterator[None]:
    try:
        yield
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise RequestRefused(f"this is no request of OpenAI's API ({error})") from error


@_refuse_malformed()
def parse_chat_call(body: Mapping[str, Any]) -> ModelCall:
    """Parse the body of a chat completion; raises `RequestRefused` for what a text model cannot do."""
    stop = body.get("stop") or ()
    tools = body.get("tools") or () if body.get("tool_choice") != "none" else ()
    call = ModelCall(
        tuple(body["messages"]), tuple(tools), (stop,) if isinstance(stop, str) else tuple(stop),
        bool(body.get("stream")), *_parse_sampling(body), 1 if body.get("n") is None else body["n"],
        bool(body.get("logprobs")),
    )  # fmt: skip
    if not call.messages or not all(isinstance(each, dict) for each in (*call.messages, *call.tools)):
        raise RequestRefused("messages must be a list of objects that is not empty, and tools one of objects")
    if not all(isinstance(tool.get("function"), dict) for tool in call.tools):
        raise RequestRefused("tools must be functions, each in the field function: no other runs here")
    for part in (body, *call.messages):
        if name := next((name for name in ("functions", "function_call") if part.get(name)), ""):
            raise RequestRefused(f"{name} is not supported here: use tools, tool_choice and tool_calls")
    if len(call.stop) > MAX_STOPS or not all(isinstance(each, str) and each for each in call.stop):
        raise RequestRefused(f"stop must be at most {MAX_STOPS} texts, none of them empty")
    if type(call.num_answers) is not int or not 1 <= call.num_answers <= MAX_ANSWERS:
        raise RequestRefused(f"n must be 1 to {MAX_ANSWERS}")
    return call


@_refuse_malformed()
def parse_responses_call(body: Mapping[str, Any]) -> ModelCall:
    """Parse the body of a response; raises as `parse_chat_call`, and where it is streamed or continues another."""
    for name in ("stream", "previous_response_id", "conversation", "background", "n", "logprobs"):
        if body.get(name):
            raise RequestRefused(f"{name} is not supported here: send the whole input, or use chat completions")
    messages = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    messages += _read_items(body.get("input") or [])
    given = body.get("tools") or () if body.get("tool_choice") != "none" else ()
    tools = [{"function": tool} for tool in given if tool.get("type") == "function"]
    if len(tools) < len(given):
        raise RequestRefused("tools must be functions: no other runs here")
    sampling, parallel_calls = _parse_sampling(body)
    return ModelCall(tuple(messages), tuple(tools), sampling=sampling, parallel_calls=parallel_calls)


def _parse_sampling(body: Mapping[str, Any]) -> tuple[tuple[tuple[str, Any], ...], bool]:
    """Parse the fields of `Sampling` that a request sets, and whether it takes several calls in one answer.

    Raises `RequestRefused` for what no answer here can keep to.
    """
    if body.get("model") not in {MODEL, None}:
        raise RequestRefused(f"there is no model {body['model']!r} here: ask for {MODEL!r}", 404, "model_not_found")
    kind = (body.get("response_format") or (body.get("text") or {}).get("format") or {}).get("type", "text")
    if kind != "text":
        raise RequestRefused(f"response_format {kind!r} cannot be enforced here: ask for it in words")
    fields = {name: body[name] for name in ("temperature", "top_p", "seed") if body.get(name) is not None}
    names = "max_tokens", "max_completion_tokens", "max_output_tokens"
    limits = [body[name] for name in names if body.get(name) is not None]
    if limits:
        fields["max_tokens"] = min(limits)
    for name, kinds in (("temperature", (int, float)), ("top_p", (int, float)), ("seed", int), ("max_tokens", int)):
        if name in fields and (isinstance(fields[name], bool) or not isinstance(fields[name], kinds)):
            raise ValueError(f"{name} = {fields[name]!r}")
    Sampling(**fields)  # refuses what is out of range
    if 0 < fields.get("temperature", 1) < MIN_TEMPERATURE or abs(fields.get("seed", 0)) >= 2**63:
        raise ValueError(f"temperature must be 0 or at least {MIN_TEMPERATURE}, seed have 64 bits")
    for name in ("logit_bias", "presence_penalty", "frequency_penalty", "top_logprobs"):
        if body.get(name):
            raise RequestRefused(f"{name} is not supported here")
    if body.get("tool_choice") not in (None, "auto", "none"):  # an object names a function
        raise RequestRefused("tool_choice cannot be enforced here: use auto or none, and ask for the call in words")
    return tuple(sorted(fields.items())), body.get("parallel_tool_calls") is not False


def _read_items(given: str | list[Any]) -> list[Json]:
    """Read the items of a response's input as messages of chat completions."""
    messages: list[Json] = []
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            call = {"id": item.get("call_id"), "function": {k: item.get(k) for k in ("name", "arguments")}}
            if messages and messages[-1]["role"] == "assistant":  # text and calls of one answer
                messages[-1].setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            messages.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
        elif kind != "reasoning":
            raise RequestRefused(f"an item of type {kind!r} is not supported: messages and function calls are")
    return messages


# -- conversations


class ChatPrompt(NamedTuple):
    """A request as a conversation that ends with the user."""

    turns: tuple[ChatTurn, ...]
    newest: str  # message of the last turn: tips stand before it
    place: bytes  # identifies the turns, without the system text


@_refuse_malformed()
def render_conversation(
    call: ModelCall, sampled: Mapping[tuple[bytes | None, str], str], describe_tools: DescribeTools | None = None
) -> ChatPrompt:
    """Render a request as a conversation, in time linear in its length.

    `sampled` has the model's own texts, by the `place` before each and `identify` of the message that the agent was
    sent, and by None and the latter: answers that look alike to the agent may differ in their thinking.
    `describe_tools` words the tools as the model knows them, or gives "".
    """
    head, newest, turns = list[str](), "", list[tuple[Role, list[str]]]()
    place = hashlib.blake2b(digest_size=16)  # of the turns so far: each message is hashed once
    for message in call.messages:
        role, text = message.get("role"), _read_text(message.get("content"))
        if role == "assistant":
            if not turns:
                _add_text(turns, place, "user", _BEGINNING)
            name = identify(message)
            own = sampled.get((place.copy().digest(), name)) or sampled.get((None, name))
            _add_text(turns, place, "assistant", own or _render_assistant(message, text))
            continue
        if role in {"system", "developer"} and not turns:
            head += [text] if text or head else []
            continue
        if role not in _USER_FORMS:
            raise RequestRefused(f"a message has the role {role!r}: use system, user, assistant or tool")
        newest = _USER_FORMS[role].format(_ROLE_TAG.sub(r"<\\\1", text))
        _add_text(turns, place, "user", newest)
    if not turns or turns[-1][0] != "user":
        raise RequestRefused("the last message must be the user's or a tool's")
    if call.tools:
        head.append(_describe_tools(call.tools, describe_tools))
    opening = "\n\n".join(head).strip()
    system: tuple[ChatTurn, ...] = (("system", opening),) if opening else ()
    texts = ((role, "\n".join(parts)) for role, parts in turns)
    return ChatPrompt((*system, *texts), newest, place.copy().digest())


def _add_text(turns: list[tuple[Role, list[str]]], place: hashlib.blake2b, role: Role, text: str) -> None:
    """Add a text to a conversation, in which texts of one role in a row are one turn, and to the hash of its turns."""
    if turns and turns[-1][0] == role:
        turns[-1][1].append(text)
        place.update(b"\n")
    else:
        turns.append((role, [text]))
        place.update(b"\xff" + role.encode() + b"\xff")  # a byte that no text in UTF-8 has
    place.update(text.encode("utf-8", "surrogatepass"))


def _describe_tools(tools: Sequence[Json], own: DescribeTools | None) -> str:
    if own and (text := own([{"type": "function", **tool} for tool in tools])):
        return text
    lines = (json.dumps(tool.get("function"), ensure_ascii=False, sort_keys=True) for tool in tools)
    return _TOOLS.format("\n".join(lines))


def identify(message: Mapping[str, Any]) -> str:
    """Return what identifies an assistant's message that comes back: the ids of its calls, else its text."""
    if calls := message.get("tool_calls"):
        return "\n".join(str(call.get("id")) for call in calls)
    return _read_text(message.get("content")).strip()


def _render_assistant(message: Mapping[str, Any], text: str) -> str:
    lines = []
    for each in message.get("tool_calls") or ():
        function = each["function"]
        arguments = _read_arguments(function.get("arguments")) or {}
        call = json.dumps({"name": function.get("name"), "arguments": arguments}, ensure_ascii=False)
        lines.append(f"<tool_call>{call}</tool_call>")
    return "\n".join([text, *lines] if text else lines)


def _read_text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if not isinstance(part, dict) or kind not in {"text", "input_text", "output_text", "refusal"}:
            raise RequestRefused(f"content of type {kind!r} cannot be read: the model reads text alone")
        texts.append(str(part.get("text", part.get("refusal", ""))))
    return "\n".join(texts)


def _read_arguments(value: object) -> Json | None:
    """Read the arguments of a call, which may be JSON in a text, or in a text within one; None for no object."""
    with contextlib.suppress(ValueError, RecursionError):
        while isinstance(value, str):
            value = _LENIENT.decode(value) if value.strip() else None
        json.dumps(value, allow_nan=False)
        return {} if value is None else value if isinstance(value, dict) else None
    return None


# -- answers


@dataclass(frozen=True, slots=True)
class ModelReply:
    id: str
    created: int
    content: str
    calls: tuple[Json, ...]  # of functions, as chat completions have them
    finish_reason: str
    usage: tuple[int, int]  # tokens read, tips included, and sampled
    logprobs: tuple[Json, ...] | None  # of all sampled tokens, thinking and the end of the turn included

    @property
    def message(self) -> Json:
        message: Json = {"role": "assistant", "content": self.content or (None if self.calls else "")}
        return {**message, "tool_calls": list(self.calls)} if self.calls else message


def make_reply(call: ModelCall, completion: Completion, decode: Decode | None = None) -> ModelReply:
    """Make the answer to `call`: without thinking, cut at its stop strings, with its calls of functions apart.

    `decode` is what log-probabilities are given with, if the call wants them.
    """
    text = replace_surrogates(strip_thinking(completion.text))
    whole, text = text, text[: min((place for stop in call.stop if (place := text.find(stop)) >= 0), default=len(text))]
    calls, first = _read_calls(text) if call.tools else ([], 0)
    calls = calls if call.parallel_calls else calls[:1]
    reason = "tool_calls" if calls else "stop" if text != whole else completion.finish_reason
    if calls:
        text = text[:first].strip()
    logprobs: tuple[Json, ...] | None = None
    if call.logprobs and decode is not None:
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        logprobs = tuple(
            {"token": decode((i,)), "logprob": value, "bytes": None, "top_logprobs": []} for i, value in pairs
        )
    return ModelReply(
        f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), text, tuple(calls),
        reason, (completion.num_prompt_tokens, completion.num_tokens), logprobs,
    )  # fmt: skip


def _read_calls(text: str) -> tuple[list[Json], int]:
    """Read the calls of functions in an answer, and find where the first begins.

    A call ends with its JSON, whose strings may hold the closing tag. One without a name, without an object of
    arguments, or with what JSON does not have, such as NaN, stays text.
    """
    calls, first, place = list[Json](), len(text), 0
    while begin := _CALL_BEGIN.search(text, place):
        place = begin.end()
        with contextlib.suppress(ValueError, RecursionError):
            value, end = _LENIENT.raw_decode(text, place)
            arguments = _read_arguments(value.get("arguments"))
            if isinstance(value.get("name"), str) and arguments is not None and (closed := _CALL_END.match(text, end)):
                function = {"name": value["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
                function = {name: replace_surrogates(part) for name, part in function.items()}
                calls.append({"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function})
                first, place = min(first, begin.start()), closed.end()
    return calls, first


def build_chat_answer(replies: Sequence[ModelReply]) -> Json:
    choices = []
    for index, reply in enumerate(replies):
        logprobs = None if reply.logprobs is None else {"content": list(reply.logprobs), "refusal": None}
        choice = {"index": index, "message": reply.message, "finish_reason": reply.finish_reason}
        choices.append({**choice, "logprobs": logprobs})
    first, written = replies[0], sum(reply.usage[1] for reply in replies)
    head = {"id": first.id, "object": "chat.completion", "created": first.created, "model": MODEL}
    usage = {"prompt_tokens": first.usage[0], "completion_tokens": written, "total_tokens": first.usage[0] + written}
    return {**head, "choices": choices, "usage": usage}


def iter_chat_events(replies: Sequence[ModelReply]) -> Iterator[str]:
    """Yield the server-sent events of a streamed chat completion, which is sampled before the first of them."""
    whole = build_chat_answer(replies)
    head = {**whole, "object": "chat.completion.chunk", "usage": None}
    for choice in whole["choices"]:
        delta, reason = choice.pop("message"), choice.pop("finish_reason")
        if "tool_calls" in delta:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
        end = {**choice, "delta": {}, "finish_reason": reason, "logprobs": None}
        usage = whole["usage"] if choice is whole["choices"][-1] else None
        yield f"data: {json.dumps({**head, 'choices': [{**choice, 'delta': delta, 'finish_reason': None}]})}\n\n"
        yield f"data: {json.dumps({**head, 'choices': [end], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


def build_responses_answer(reply: ModelReply) -> Json:
    output: list[Json] = []
    if reply.content or not reply.calls:
        part = {"type": "output_text", "text": reply.content, "annotations": []}
        output.append({"type": "message", "id": f"msg_{reply.id}", "role": "assistant", "status": "completed",
                       "content": [part]})  # fmt: skip
    output += [
        {"type": "function_call", "id": f"fc_{call['id']}", "call_id": call["id"], "status": "completed",
         **cast("Json", call["function"])}
        for call in reply.calls
    ]  # fmt: skip
    read, written = reply.usage
    usage = {
        "input_tokens": read, "output_tokens": written, "total_tokens": read + written,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    cut = {"reason": "max_output_tokens"} if reply.finish_reason == "length" else None
    return {
        "id": f"resp_{reply.id}", "object": "response", "created_at": reply.created, "model": MODEL,
        "status": "incomplete" if cut else "completed", "output": output,
        "error": None, "incomplete_details": cut, "instructions": None, "metadata": {}, "temperature": None,
        "top_p": None, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage,
    }  # fmt: skip
