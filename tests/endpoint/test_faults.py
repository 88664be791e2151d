from __future__ import annotations

from typing import Any

import pytest

from trailnotes.endpoint.faults import (
    MAX_RETRY_AFTER,
    compute_wait,
    explain_missing_model,
    explain_refusal,
    extract_error_text,
    is_retryable,
    parse_retry_after,
)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0),  # an HTTP date, read a minute after the epoch
        ("Thu, 01 Jan 1970 00:00:10 GMT", 0.0),  # it has passed
        ("soon", None),
        ("nan", None),
        ("Thu, 99 Jan 1970", None),
    ],
)
def test_retry_after_is_read_as_seconds_and_as_a_date(value: str, seconds: float | None) -> None:
    assert parse_retry_after({"retry-after": value}, now=60.0) == seconds


def test_no_retry_after_is_none() -> None:
    assert parse_retry_after({}) is None


def test_pauses_double_up_to_a_minute_and_vary() -> None:
    drawn = [[compute_wait(tries, None) for _ in range(50)] for tries in (1, 2, 3, 20)]
    for seconds, most in zip(drawn, (0.5, 1.0, 2.0, 60.0), strict=True):
        assert most / 2 <= min(seconds) < max(seconds) <= most


def test_a_pause_is_never_shorter_than_the_server_asks_but_for_the_cap() -> None:
    assert 10.0 <= compute_wait(1, 10.0) <= 10.25
    assert MAX_RETRY_AFTER <= compute_wait(1, 1e9) <= MAX_RETRY_AFTER + 0.25


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_these_are_tried_again(status: int) -> None:
    assert is_retryable(status, {"message": "busy"})


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_these_are_not(status: int) -> None:
    assert not is_retryable(status, None)


def test_an_empty_account_is_no_rate_limit() -> None:
    assert not is_retryable(429, {"code": "insufficient_quota"})


SETTING: dict[str, Any] = {"url": "http://here/v1", "model": "small", "key_env": "MY_KEY", "has_key": True}


@pytest.mark.parametrize(
    ("status", "body", "fix"),
    [
        (401, {"message": "bad"}, "environment variable MY_KEY (endpoint.api_key_env) holds no valid key"),
        (403, "forbidden", "MY_KEY"),
        (429, {"message": "no credit", "code": "insufficient_quota"}, "top it up"),
        # as OpenAI, vLLM, llama.cpp, TGI and Anthropic say it
        (400, {"message": "too long", "code": "context_length_exceeded"}, "endpoint.context_tokens"),
        (400, {"message": "This model's maximum context length is 512 tokens."}, "endpoint.context_tokens"),
        (400, {"message": "x", "type": "exceed_context_size_error"}, "endpoint.context_tokens"),
        (422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 512."}, "endpoint.context_tokens"),
        (400, {"message": "prompt is too long: 9 tokens > 8 maximum"}, "endpoint.context_tokens"),
        (413, None, "endpoint.context_tokens"),
        (400, {"message": "x", "param": "temperature", "code": "unsupported_value"}, "rollout.temperature"),
        (400, {"message": "x", "param": "top_p"}, 'add "top_p" to endpoint.omit'),
        (400, {"message": "x", "param": "stop"}, 'add "stop" to endpoint.omit'),
        (400, {"message": "Unsupported parameter: 'max_tokens'"}, 'max_tokens_field = "max_completion_tokens"'),
        (400, {"message": "x", "param": "max_completion_tokens"}, 'max_tokens_field = "max_tokens"'),
        (422, {"detail": "Unexpected fields in the request: {'seed'}"}, "endpoint.send_seed = false"),
        (
            400,
            {"message": "Unrecognized request argument supplied: chat_template_kwargs"},
            "model.template_options = {}",
        ),
        (400, {"message": "Unknown parameter: 'chat_template_kwargs'."}, "model.template_options = {}"),
        (418, {"message": "I am a teapot"}, "answers 418: I am a teapot"),
    ],
)
def test_a_refusal_names_the_fix_on_one_line(status: int, body: object, fix: str) -> None:
    text = explain_refusal(status, body, **SETTING)
    assert fix in text
    assert text.startswith(f"http://here/v1 answers {status}: ")
    assert "\n" not in text


def test_a_field_of_the_users_own_that_is_refused_is_named() -> None:
    body = {"detail": "Unexpected fields in the request: {'top_K'}"}  # as transformers serve says it
    assert explain_refusal(422, body, **SETTING, extra={"top_K": 5}).endswith("; take top_K out of endpoint.extra")
    assert "endpoint.extra" not in explain_refusal(422, body, **SETTING, extra={"min_p": 0.1})


def test_a_missing_key_is_told_from_a_wrong_one() -> None:
    assert "MY_KEY (endpoint.api_key_env) is not set" in explain_refusal(401, None, **SETTING | {"has_key": False})


def test_a_missing_model_is_told_from_a_wrong_address() -> None:
    line = explain_missing_model(404, {"message": "none"}, url="u", model="smal", offered=["large", "small"])
    assert line.endswith("it has no model 'smal': set model.path to openai: and one of large, small")
    line = explain_missing_model(404, "Not Found", url="u", model="small", offered=[])
    assert "endpoint.base_url" in line
    assert "model.path = openai:small" in line


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"error": {"message": "a\nb"}}, "a b"),
        ({"error": "a"}, "a"),
        ({"detail": [{"msg": "a"}]}, "[{'msg': 'a'}]"),
        ({"odd": 1}, '{"odd": 1}'),
        ("<html>", "<html>"),
        (None, "no reason given"),
        ("x" * 400, "x" * 300 + " ..."),
    ],
)
def test_what_a_server_says_is_quoted_on_one_line_and_cut(body: object, text: str) -> None:
    assert extract_error_text(body) == text
