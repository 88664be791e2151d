"""What runs spend, by name: metrics.jsonl, checkpoints, tables and comparisons all take their names from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Spent:
    """What was played and said: the totals of a line in metrics.jsonl."""

    env_steps: int = 0
    episodes: int = 0  # that ended well
    tokens_read: int = 0  # prompts, each counted whole
    tokens_generated: int = 0  # actions and all that was written apart from episodes
    tokens_trained: int = 0  # trained positions, times passes
    seconds: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        a, b = asdict(self), asdict(other)
        return Spent(**{name: a[name] + b[name] for name in a})


SPENT = tuple(field.name for field in fields(Spent))
BY_TRAINING = tuple(name for name in SPENT if name != "tokens_read")  # it is read off the episodes where it is wanted
BY_ROW = tuple(name for name in BY_TRAINING if name != "episodes")  # columns of a panel's table.json
ENDPOINT_COST = "endpoint/cost"  # of metrics.jsonl, so far
SPENDING = "spending"  # what an endpoint charged, in the currency of its prices
BY_PROCESSES = ("cpu_seconds", "peak_memory")  # known only of those that were watched
BY_RUN = (*(name for name in SPENT if name != "episodes"), *BY_PROCESSES, SPENDING)  # columns of a comparison


def row_costs(spent: Mapping[str, float]) -> dict[str, Any]:
    """The columns `BY_ROW`, whole numbers but for the seconds; nothing was spent where nothing is known of it."""
    return {name: round(spent.get(name, 0)) for name in BY_ROW} | {"seconds": float(spent.get("seconds", 0.0))}
