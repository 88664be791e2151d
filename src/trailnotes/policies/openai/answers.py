"""What an endpoint has answered: kept on disk, so that nothing is paid for twice, and counted against the limits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trailnotes.config.model_schema import EndpointConfig
from trailnotes.errors import RunError
from trailnotes.storage.files import append_jsonl, read_jsonl, split_after
from trailnotes.types import FinishReason, Message, Sampling


@dataclass(frozen=True, slots=True)
class PaidAnswer:
    """What came of one request, and what it cost."""

    key: str  # of the request, see `hash_request`; "" for one of which nothing came
    text: str  # as the server wrote it
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cost: float  # at the prices of the day, in the currency of `endpoint.price_input`
    estimated: bool = False  # the tokens are our estimate: the server did not count them
    retries: int = 0  # tries before this one
    lost: str = ""  # why nothing came of it, though it may have been billed: its tokens are then the most it can be
    model: str = ""  # as the server names it


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of a request, or the most that it can take."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request as the policy sees it."""

    key: str
    messages: Sequence[Message]
    sampling: Sampling
    most: TokenUsage  # reserved while it is under way


class AnswerCache:
    """All answers of a run, by key, and the sums over them. Kept in `path`, one JSON object a line; None keeps no file.

    A line is on disk before its answer is used. Prompts are not in it; with `endpoint.log_prompts` they go to
    ``requests.jsonl`` beside it.

    Raises:
        RunError: a damaged line, or a file that cannot be written.
    """

    def __init__(self, path: Path | None, endpoint: EndpointConfig) -> None:
        self.path, self.endpoint = path, endpoint
        self.requests = self.retries = self.lost = self.tokens_read = self.tokens_generated = 0
        self.cost = 0.0
        self.reused = 0  # answers of before this start that were asked for again
        self.reserved: list[TokenUsage] = []  # of the requests under way
        self._answers: dict[str, PaidAnswer] = {}
        self._old: frozenset[str] = frozenset()
        if path is not None:
            for file in (path, self._requests_path(path)):
                split_after(file)
            for number, record in enumerate(read_jsonl(path), 1):
                try:
                    self._add_to_totals(PaidAnswer(**record))
                except TypeError:
                    raise RunError(f"{path}: line {number} is damaged: delete it, or restore the file") from None
            self._old = frozenset(self._answers)

    def find(self, key: str) -> PaidAnswer | None:
        """The answer to a request, if there is one."""
        self.reused += key in self._old
        return self._answers.get(key)

    def store(self, answer: PaidAnswer, query: ChatRequest) -> None:
        """Write down an answer, and count it."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_jsonl(self.path, [asdict(answer)], sync=True)
            if self.endpoint.log_prompts:
                messages = [{"role": message.role, "content": message.content} for message in query.messages]
                record = {"messages": messages, "sampling": asdict(query.sampling), "answer": asdict(answer)}
                append_jsonl(self._requests_path(self.path), [record])
        self._add_to_totals(answer)

    def compute_cost(self, amount: TokenUsage) -> float:
        """What so many tokens cost."""
        endpoint = self.endpoint
        return (
            endpoint.price_input * amount.prompt_tokens + endpoint.price_output * amount.completion_tokens
        ) / 1_000_000

    def explain_limit(self, amount: TokenUsage) -> str:
        """Why a request must not be sent now: with it and those under way, a limit could be passed. "" if it may."""
        under_way = [*self.reserved, amount]
        tokens = sum(each.prompt_tokens + each.completion_tokens for each in under_way)
        spent, limit = self.tokens_read + self.tokens_generated, self.endpoint.max_tokens_total
        if limit and spent + tokens > limit:
            return (
                f"the next request could pass endpoint.max_tokens_total = {limit}: {spent} tokens are spent, and it "
                f"may take {tokens}; raise the limit and run the same command again"
            )
        cost, most = sum(map(self.compute_cost, under_way)), self.endpoint.max_cost
        if most and self.cost + cost > most:
            return (
                f"the next request could pass endpoint.max_cost = {most:g}: {self.cost:.6g} is spent, and it may cost "
                f"{cost:.2g}; raise the limit and run the same command again"
            )
        return ""

    def metrics(self) -> dict[str, float]:
        """Totals of the run, earlier starts included."""
        return {
            "endpoint/requests": self.requests,
            "endpoint/retries": self.retries,
            "endpoint/lost": self.lost,
            "endpoint/tokens_read": self.tokens_read,
            "endpoint/tokens_generated": self.tokens_generated,
            "endpoint/cost": self.cost,
            "endpoint/reused": self.reused,
        }

    def _add_to_totals(self, answer: PaidAnswer) -> None:
        self.requests += not answer.lost
        self.lost += bool(answer.lost)
        self.retries += answer.retries
        self.tokens_read += answer.prompt_tokens
        self.tokens_generated += answer.completion_tokens
        self.cost += answer.cost
        if answer.key:
            self._answers[answer.key] = answer

    @staticmethod
    def _requests_path(path: Path) -> Path:
        return path.with_name("requests.jsonl")


def hash_request(
    url: str, model: str, messages: Sequence[Message], sampling: Sampling, options: Mapping[str, Any] | None = None
) -> str:
    """A hash of all that an answer depends on; the same in every process."""
    said = [(message.role, message.content) for message in messages]
    asked = [url.rstrip("/"), model, said, asdict(sampling), *([options] if options else [])]
    text = json.dumps(asked)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
