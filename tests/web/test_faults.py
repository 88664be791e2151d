"""Failures of an endpoint: which are retried, after how long, and what the user reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from trailnotes.web import faults


def test_retry_after_may_be_a_date() -> None:
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert 50 < (faults.parse_retry_after({"retry-after": in_a_minute}) or 0) <= 60


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), ("0.5", 0.5), ("-3", 0.0), ("soon", None), ("Thu, 01 Jan 1970 00:01:40 GMT", 0.0)],
)
def test_retry_after_is_read_as_seconds(value: str, seconds: float | None) -> None:
    assert faults.parse_retry_after({"retry-after": value}) == seconds


def test_waits_double_up_to_a_minute_and_respect_the_server() -> None:
    failures = (1, None), (2, None), (3, None, 503), (20, None), (1, None, 429), (5, None, 429)
    drawn = [[faults.compute_wait(*failure) for _ in range(50)] for failure in failures]
    for seconds, most in zip(drawn, (0.5, 1.0, 2.0, 60.0, 5.0, 60.0), strict=True):
        assert most / 2 <= min(seconds) < max(seconds) <= most
    assert 10.0 <= faults.compute_wait(1, 10.0) <= 10.25
    assert faults.MAX_RETRY_AFTER <= faults.compute_wait(1, 1e9, 429) <= faults.MAX_RETRY_AFTER + 0.25


def test_which_statuses_are_retried() -> None:
    assert all(
        faults.is_retryable(status, {"message": "busy"}) for status in (408, 409, 425, 429, 500, 502, 503, 504, 529)
    )
    assert not any(faults.is_retryable(status, None) for status in (400, 401, 402, 403, 404, 413, 422))
    spent = {"code": "insufficient_quota"}, {"type": "insufficient_quota", "code": None}
    assert not any(faults.is_retryable(429, body) for body in (*spent, *({"error": body} for body in spent)))


@pytest.mark.parametrize(
    ("status", "body", "key"),
    [
        (401, {"message": "bad"}, "endpoint.api_key_env"),
        (403, "forbidden", "MY_KEY"),
        (429, {"message": "no credit", "code": "insufficient_quota"}, "top it up"),
        (402, {"message": "Insufficient Balance", "code": "invalid_request_error"}, "top it up"),
        # as OpenAI, vLLM, llama.cpp, TGI and Anthropic word it
        (400, {"message": "too long", "code": "context_length_exceeded"}, "endpoint.context_tokens"),
        (400, {"message": "This model's maximum context length is 512 tokens."}, "endpoint.context_tokens"),
        (400, {"message": "x", "type": "exceed_context_size_error"}, "endpoint.context_tokens"),
        (422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 512."}, "endpoint.context_tokens"),
        (400, {"message": "prompt is too long: 9 tokens > 8 maximum"}, "endpoint.context_tokens"),
        (413, None, "endpoint.context_tokens"),
        (404, {"message": "none"}, "endpoint.base_url"),
        (400, {"message": "x", "code": "model_not_found"}, "model.path = openai:small"),
        (400, {"message": "Unsupported parameter: 'max_tokens'"}, "endpoint.max_tokens_field"),
        (418, {"message": "I am a teapot"}, "I am a teapot"),
    ],
)
def test_a_refusal_names_the_fix_on_one_line(status: int, body: object, key: str) -> None:
    text = faults.explain_refusal(status, body, url="http://here/v1", model="small", key_env="MY_KEY")
    assert key in text
    assert text.startswith(f"http://here/v1 answers {status}: ")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"error": {"message": "a\nb"}}, "a b"), ({"error": "a"}, "a"), ({"detail": [{"msg": "a"}]}, "[{'msg': 'a'}]"),
        ({"odd": 1}, '{"odd": 1}'), ("<html>", "<html>"), (None, "no reason given"), ("x" * 400, "x" * 300 + " ..."),
    ],
)  # fmt: skip
def test_the_message_of_a_server_is_quoted_on_one_line_and_cut(body: object, text: str) -> None:
    assert faults.extract_error_text(body) == text
