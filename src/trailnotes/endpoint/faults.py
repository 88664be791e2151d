"""Failures of an endpoint: which to retry, how long to wait, and the error for the user."""

from __future__ import annotations

import email.utils
import json
import math
import random
import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

MIN_WAIT = 0.5  # seconds before the first retry; doubles with each
MAX_WAIT: Final = 60.0
MAX_RETRY_AFTER: Final = 300.0  # a server that wants more is asked again after this
MAX_ERROR_CHARS: Final = 300  # characters of what a server says that an error quotes
_QUOTA_CODES = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
_CONTEXT_OVERFLOW = re.compile(
    r"context.?length|context.?size|context.?window|maximum context|prompt is too long|longer than the model|"
    r"max_new_tokens.{1,20}must be|exceeds? the (?:available|maximum) (?:context|number of tokens)"
)
_UNKNOWN_PARAMETER = re.compile(
    r"(?:unsupported|unknown) (?:parameter|value): '(\w+)'|unexpected fields?.*?'(\w+)'|"
    r"unrecognized request argument.*?: (\w+)"
)
_PARAMETER_FIXES: Final = {  # of a request, and what to do where a model refuses it
    "temperature": 'add "temperature" to endpoint.omit, or set rollout.temperature and eval.temperature to what it '
    "takes",
    "top_p": 'add "top_p" to endpoint.omit, or set rollout.top_p to what it takes',
    "stop": 'add "stop" to endpoint.omit (answers are cut at rollout.stop all the same)',
    "seed": "set endpoint.send_seed = false",
    "max_tokens": 'set endpoint.max_tokens_field = "max_completion_tokens"',
    "max_completion_tokens": 'set endpoint.max_tokens_field = "max_tokens"',
    "chat_template_kwargs": "set model.template_options = {}",
}


class RetryableError(Exception):
    """A failure that another try may not meet."""

    def __init__(self, reason: str, *, wait: float | None = None, billed: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait  # seconds that the server asks for
        self.billed = billed  # whether the server may have generated, and charged for, an answer


class AnswerTimeoutError(RetryableError):
    """An answer that did not come in time."""


def is_retryable(status: int, body: object) -> bool:
    """Tell whether a refused request is worth another try."""
    if status == 429:
        return not isinstance(body, Mapping) or body.get("code") not in _QUOTA_CODES
    return status in {408, 409, 425} or status >= 500


def parse_retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Parse the seconds that a server asks to wait (RFC 9110, section 10.2.3); None if it does not ask."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - (time.time() if now is None else now)
        except ValueError:
            return None
    return None if math.isnan(seconds) else max(0.0, seconds)


def compute_wait(tries: int, asked: float | None) -> float:
    """Compute the seconds to wait after `tries` failures: doubling, with jitter, and at least `asked` up to its cap."""
    usual = min(MIN_WAIT * 2.0 ** (tries - 1), MAX_WAIT)
    if asked is None:
        return usual * random.uniform(0.5, 1.0)
    return min(asked, MAX_RETRY_AFTER) + usual * random.uniform(0.0, 0.5)


def extract_error_text(body: object) -> str:
    """Extract a server's message from an error's body, on one line, cut."""
    text: object = body
    while isinstance(text, Mapping):
        text = next((text[name] for name in ("error", "message", "detail", "msg") if text.get(name)), json.dumps(text))
    words = " ".join(str(text or "no reason given").split())
    return words if len(words) <= MAX_ERROR_CHARS else f"{words[:MAX_ERROR_CHARS]} ..."


def is_missing_model(status: int, body: object) -> bool:
    """Tell whether the server misses the model, or the address is wrong."""
    facts = body if isinstance(body, Mapping) else {}
    return status == 404 or facts.get("code") == "model_not_found" or facts.get("param") == "model"


def explain_refusal(
    status: int, body: object, *, url: str, model: str, key_env: str, has_key: bool, extra: Collection[str] = ()
) -> str:
    """Explain in one line what was refused, and the fix; `extra` are the fields that the config adds."""
    text = f"{url} answers {status}: {extract_error_text(body)}"
    if status == 401:
        fix = "holds no valid key for it" if has_key else "is not set: export it with your key"
        return f"{text}; the environment variable {key_env} (endpoint.api_key_env) {fix}"
    if status == 403:
        return f"{text}; the key in {key_env} (endpoint.api_key_env) does not allow this, or not the model {model!r}"
    if status == 429:
        return f"{text}; the account has nothing left to spend: top it up, and run the same command again"
    if status == 413 or is_context_overflow(body):
        fix = f"set endpoint.context_tokens to what the model {model!r} holds, so that episodes end before"
        return f"{text}; {fix}, and run the same command again"
    fixes = _PARAMETER_FIXES | {name.lower(): f"take {name} out of endpoint.extra" for name in extra}
    if parameter := _find_refused_parameter(body, fixes):
        return f"{text}; {fixes[parameter]}"
    return text


def explain_missing_model(status: int, body: object, *, url: str, model: str, offered: Sequence[str]) -> str:
    """Explain in one line whether the model's name or the address is wrong."""
    text = f"{url} answers {status}: {extract_error_text(body)}"
    if offered and model not in offered:
        names = ", ".join(offered[:20]) + (", ..." if len(offered) > 20 else "")
        return f"{text}; it has no model {model!r}: set model.path to openai: and one of {names}"
    return (
        f"{text}; either it has no model {model!r} (model.path = openai:{model}), or endpoint.base_url is not the "
        "address of its API, which mostly ends in /v1"
    )


def is_context_overflow(body: object) -> bool:
    """Tell whether a text was longer than the model takes."""
    if isinstance(body, Mapping) and "context" in str(body.get("code") or body.get("type") or ""):
        return True
    return _CONTEXT_OVERFLOW.search(extract_error_text(body).lower()) is not None


def _find_refused_parameter(body: object, known: Collection[str]) -> str:
    facts: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    if facts.get("param") in known:
        return str(facts["param"])
    quoted = _UNKNOWN_PARAMETER.search(extract_error_text(body).lower())
    name = next((group for group in quoted.groups() if group), "") if quoted else ""
    return name if name in known else ""
