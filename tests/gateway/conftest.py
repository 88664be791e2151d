from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_replacements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a failed episode out at once."""
    monkeypatch.setattr("trailnotes.rollout.groups.MAX_REPLACEMENTS", 0)
