from __future__ import annotations

from dataclasses import fields

from trailnotes.runs.panels import PanelResult
from trailnotes.runs.usage import (
    COMPARISON_FIELDS,
    TABLE_FIELDS,
    TRAINING_FIELDS,
    USAGE_FIELDS,
    Usage,
    build_usage_columns,
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


def test_nothing_was_spent_where_nothing_is_known() -> None:
    assert build_usage_columns({}) == {"env_steps": 0, "tokens_generated": 0, "tokens_trained": 0, "seconds": 0.0}
    assert build_usage_columns({"env_steps": 3.0, "seconds": 1.25, "episodes": 9}) == build_usage_columns({}) | {
        "env_steps": 3,
        "seconds": 1.25,
    }
