from __future__ import annotations

from dataclasses import fields

from trailnotes.runs.panels import PanelResult
from trailnotes.runs.usage import BY_ROW, BY_RUN, BY_TRAINING, SPENT, Spent, row_costs
from trailnotes_lab.compare.page import HEADS


def test_every_list_has_the_same_names() -> None:
    """They are on disk: in metrics.jsonl, in checkpoints, in table.json."""
    assert SPENT == ("env_steps", "episodes", "tokens_read", "tokens_generated", "tokens_trained", "seconds")
    assert BY_TRAINING == ("env_steps", "episodes", "tokens_generated", "tokens_trained", "seconds")
    assert BY_ROW == ("env_steps", "tokens_generated", "tokens_trained", "seconds")
    assert set(BY_ROW) < {field.name for field in fields(PanelResult)}
    assert tuple(HEADS) == BY_RUN


def test_what_two_phases_spent_is_added_by_name() -> None:
    assert Spent(env_steps=1, seconds=0.5) + Spent(env_steps=2, tokens_read=7) == Spent(3, 0, 7, 0, 0, 0.5)


def test_nothing_was_spent_where_nothing_is_known() -> None:
    assert row_costs({}) == {"env_steps": 0, "tokens_generated": 0, "tokens_trained": 0, "seconds": 0.0}
    assert row_costs({"env_steps": 3.0, "seconds": 1.25, "episodes": 9}) == row_costs({}) | {
        "env_steps": 3,
        "seconds": 1.25,
    }
