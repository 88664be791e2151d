"""Usage of runs by name, for metrics.jsonl, checkpoints, tables and comparisons."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, slots=True)
class Usage:
    """Totals of steps, episodes, tokens and seconds in a line of metrics.jsonl."""

    env_steps: int = 0
    episodes: int = 0  # that ended well
    tokens_read: int = 0  # prompts, each counted whole
    tokens_generated: int = 0  # actions and all that was written apart from episodes
    tokens_trained: int = 0  # trained positions, times passes
    seconds: float = 0.0  # wall clock, validations of a training included

    def __add__(self, other: Usage) -> Usage:
        a, b = asdict(self), asdict(other)
        return Usage(**{name: a[name] + b[name] for name in a})


USAGE_FIELDS = tuple(field.name for field in fields(Usage))
TRAINING_FIELDS = tuple(name for name in USAGE_FIELDS if name != "tokens_read")  # which episodes tell
TABLE_FIELDS = tuple(name for name in TRAINING_FIELDS if name != "episodes")  # columns of a panel's table.json
ENDPOINT_COST = "endpoint/cost"  # of metrics.jsonl, so far
COSTS = (ENDPOINT_COST, "tinker/cost")
SPENDING = "spending"  # what servers charged, in the currency of their prices
PROCESS_FIELDS = ("cpu_seconds", "peak_memory")  # only of processes that were measured
COMPARISON_FIELDS = (*(name for name in USAGE_FIELDS if name != "episodes"), *PROCESS_FIELDS, SPENDING)
