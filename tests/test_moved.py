"""Paths of before the rooms still answer, and name the new ones."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

import trailnotes
from trailnotes.moved import MOVED


@pytest.mark.parametrize("old", sorted(MOVED))
def test_old_paths_still_work_and_name_the_new(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=re.escape(f"{old} is now {' and '.join(MOVED[old])}")):
        moved = importlib.import_module(old)
    homes = [importlib.import_module(home) for home in MOVED[old]]
    new = {name: value for home in reversed(homes) for name, value in vars(home).items() if not name.startswith("_")}
    assert all(getattr(moved, name) is value for name, value in new.items())
    assert [home.__spec__.name for home in homes] == list(MOVED[old]), "the modules themselves are untouched"
    with pytest.raises(AttributeError, match="nothing"):
        moved.nothing  # noqa: B018


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_old_paths_were_imported_for_is_there() -> None:
    from trailnotes.logs import Progress, RunDir, RunLock, read_jsonl, run_config, trajectory_to_json  # noqa: F401
    from trailnotes.training import open_run, train

    assert train is trailnotes.train
    assert open_run.__module__ == "trailnotes.runs.opening"
