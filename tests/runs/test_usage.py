from __future__ import annotations

from dataclasses import fields

from trailnotes.runs.panels import PanelResult
from trailnotes.runs.usage import (
    COMPARISON_FIELDS,
    TABLE_FIELDS,
    TRAINING_FIELDS,
    USAGE_FIELDS,
    Usage,
)
from trailnotes_lab.compare.page import COST_HEADINGS


def test_every_list_has_the_same_names() -> None:
    """They are on disk: in metrics.jsonl, in checkpoints, in table.json."""
    assert USAGE_FIELDS == ("env_steps", "episodes", "tokens_read", "tokens_generated", "tokens_trained", "seconds")
    assert TRAINING_FIELDS == ("env_steps", "episodes", "tokens_generated", "tokens_trained", "seconds")
    assert TABLE_FIELDS == ("env_steps", "tokens_generated", "tokens_trained", "seconds")
    assert set(TABLE_FIELDS) < {field.name for field in fields(PanelResult)}
    assert tuple(COST_HEADINGS) == COMPARISON_FIELDS


def test_what_two_phases_spent_is_added_by_name() -> None:
    assert Usage(env_steps=1, seconds=0.5) + Usage(env_steps=2, tokens_read=7) == Usage(3, 0, 7, 0, 0, 0.5)
