"""The tokens that a server has computed for a run, what they cost, and their limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any

from trailnotes.config.model_schema import LearnerConfig
from trailnotes.errors import BudgetError
from trailnotes.storage.files import append_jsonl, read_jsonl, split_after


@dataclass(slots=True)
class TokenCount:
    prefilled: int = 0  # read only: prompts, and forward passes
    sampled: int = 0
    trained: int = 0  # forward and backward passes

    @property
    def total(self) -> int:
        return self.prefilled + self.sampled + self.trained

    def compute_cost(self, prices: LearnerConfig) -> float:
        read, written = self.prefilled * prices.price_prefill, self.sampled * prices.price_sample
        return (read + written + self.trained * prices.price_train) / 1e6


class TokenLedger:
    """What a run has used of a server, all starts together, as lines of `path`; None keeps them in this process.

    Raises:
        RunError: the file is damaged or cannot be written.
    """

    def __init__(self, config: LearnerConfig, path: Path | None) -> None:
        self.config, self.path, self.count = config, path, TokenCount()
        self._lock = Lock()  # an update and the play beside it are in two threads
        self._reserved = 0  # tokens of the requests under way
        self._before = 0  # tokens when the iteration began
        self._last = 0  # tokens of the last iteration
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            split_after(path)  # a line that was cut short
            for line in read_jsonl(path):
                self._add(line)
                self._last = int(line.get("last", self._last))
        self._before = self.count.total

    def require(self, num_tokens: int) -> None:
        """Refuse a request that could pass `learner.max_tokens_total`; raises `BudgetError`."""
        most = self.config.max_tokens_total
        if most and self.count.total + self._reserved + num_tokens > most:
            raise BudgetError(
                f"another request of {num_tokens:,} tokens would pass learner.max_tokens_total = {most:,}, of which "
                f"{self.count.total:,} are spent, and {self._reserved:,} held back for requests under way: raise "
                "it, with --allow-change learner.max_tokens_total, and the run resumes at the last checkpoint"
            )

    @contextmanager
    def reserve(self, num_tokens: int) -> Iterator[None]:
        """Hold tokens back for a request during the block; raises as `require`."""
        with self._lock:
            self.require(num_tokens)
            self._reserved += num_tokens
        try:
            yield
        finally:
            with self._lock:
                self._reserved -= num_tokens

    def spend(self, **tokens: int) -> None:
        """Count tokens of a request before it is sent. Raises as `require`."""
        with self._lock:
            self.require(sum(tokens.values()))
            self._write(tokens)

    def add(self, **tokens: int) -> None:
        """Count tokens of a `TokenCount`, on disk before they are used."""
        with self._lock:
            self._write(tokens)

    def end_iteration(self) -> dict[str, float]:
        """Return the totals as metrics, and remember what the iteration took."""
        self._last, self._before = self.count.total - self._before, self.count.total
        self.add(last=self._last)
        totals = {f"tokens_{name}": float(value) for name, value in asdict(self.count).items()}
        return totals | {"cost": self.count.compute_cost(self.config)}

    @property
    def is_spent(self) -> bool:
        """Tell whether another iteration like the last one would pass `learner.max_tokens_total`."""
        most = self.config.max_tokens_total
        return bool(most) and self.count.total + self._last > most

    def _write(self, tokens: Mapping[str, int]) -> None:
        self._add(tokens)
        if self.path is not None:
            append_jsonl(self.path, [tokens])

    def _add(self, tokens: Mapping[str, Any]) -> None:
        for each in fields(self.count):
            setattr(self.count, each.name, getattr(self.count, each.name) + int(tokens.get(each.name, 0)))
