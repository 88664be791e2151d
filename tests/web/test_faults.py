from __future__ import annotations

import pytest

from trailnotes.web.faults import (
    MAX_RETRY_AFTER,
    compute_wait,
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
        ("soon", None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 0.0),
    ],
)
def test_retry_after_is_read_as_seconds(value: str, seconds: float | None) -> None:
    assert parse_retry_after({"retry-after": value}) == seconds


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


SETTING: dict[str, str] = {"url": "http://here/v1", "model": "small", "key_env": "MY_KEY"}


@pytest.mark.parametrize(
    ("status", "body", "fix"),
    [
        (401, {"message": "bad"}, "environment variable MY_KEY (endpoint.api_key_env) holds no key"),
        (403, "forbidden", "MY_KEY"),
        (429, {"message": "no credit", "code": "insufficient_quota"}, "top it up"),
        # as OpenAI, vLLM, llama.cpp, TGI and Anthropic say it
        (400, {"message": "too long", "code": "context_length_exceeded"}, "endpoint.context_tokens"),
        (400, {"message": "This model's maximum context length is 512 tokens."}, "endpoint.context_tokens"),
        (400, {"message": "x", "type": "exceed_context_size_error"}, "endpoint.context_tokens"),
        (422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 512."}, "endpoint.context_tokens"),
        (400, {"message": "prompt is too long: 9 tokens > 8 maximum"}, "endpoint.context_tokens"),
        (413, None, "endpoint.context_tokens"),
        (404, {"message": "none"}, "endpoint.base_url"),
        (400, {"message": "x", "code": "model_not_found"}, "model.path = openai:small"),
        (400, {"message": "Unsupported parameter: 'max_tokens'"}, "endpoint.max_tokens_field"),
        (418, {"message": "I am a teapot"}, "answers 418: I am a teapot"),
    ],
)
def test_a_refusal_names_the_fix_on_one_line(status: int, body: object, fix: str) -> None:
    text = explain_refusal(status, body, **SETTING)
    assert fix in text
    assert text.startswith(f"http://here/v1 answers {status}: ")
    assert "\n" not in text


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
