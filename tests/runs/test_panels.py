from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from small import small_config
from trailnotes.errors import ConfigError
from trailnotes.runs.panels import (
    PanelResult,
    family_of,
    interval_of,
    markdown_table,
    panel_result,
    write_episodes,
    write_table,
)
from trailnotes.runs.players import Subject
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Observation, Task, Trajectory


def episode(task: str, success: bool, value: float = 0.0) -> Trajectory:
    return Trajectory(
        Task(task, "waymarks"), (), Observation("end", reward=value), "terminated", success, float(success)
    )


def test_one_family_of_single_episodes_gets_wilsons_interval() -> None:
    episodes = [episode(f"w/route/amber/test-{i}", i < 5) for i in range(10)]
    interval, name = interval_of(episodes, small_config())
    assert name == "Wilson 95%"
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.5, 0.2366, 0.7634), abs=1e-4)


@pytest.mark.parametrize("clustered", ["families", "samples", "return"])
def test_clusters_and_returns_get_a_bootstrap(clustered: str) -> None:
    family = ["amber", "birch"] if clustered == "families" else ["amber", "amber"]
    games = range(2) if clustered == "samples" else range(4)
    episodes = [episode(f"w/route/{name}/test-{i}", n == 0) for n, name in enumerate(family) for i in games]
    config = small_config(eval={"metric": "return" if clustered == "return" else "success", "confidence": 0.9})
    interval, name = interval_of(episodes, config)
    assert name == "bootstrap over families, then games, 90%"
    if clustered == "families":  # one family all won, one all lost: the families decide how wide it is
        assert (interval.mean, interval.low, interval.high) == (0.5, 0.0, 1.0)


def test_a_family_is_the_task_without_its_last_part() -> None:
    assert family_of(Task("waymarks/route/amber/test-3", "waymarks")) == "waymarks/route/amber"
    assert family_of(Task("coin", "textworld")) == "textworld"


def test_a_panel_that_nobody_played_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no episode of split 'test' could be played"):
        panel_result([], small_config(), Subject("m", "grpo"), memory=False)


def test_tables_hold_every_field_and_the_name_of_the_interval(tmp_path: Path) -> None:
    row = PanelResult("empo2", True, "test", "success", 0.5, 0.25, 0.75, 38400, 2, 80, 160, "Wilson 95%")
    write_table([row], tmp_path)
    assert json.loads((tmp_path / "table.json").read_text()) == {"rows": [asdict(row)]}
    text = (tmp_path / "table.md").read_text()
    assert text == markdown_table([row])
    assert "| empo2 | with | test (80) | success | 0.500 | [0.250, 0.750] | 38,400 | 2 |" in text
    assert text.endswith("\nIntervals: Wilson 95%.\n")
    head, rule, first = text.splitlines()[:3]
    assert head.count("|") == rule.count("|") == first.count("|")


def test_the_figures_of_one_run_go_by_their_names(tmp_path: Path) -> None:
    row = PanelResult("empo2-tips", True, "test", "success", 0.5, 0.25, 0.75, 38400, 1, 80, 160, "Wilson 95%")
    write_table([row], tmp_path, ["trial 3"])
    (record,) = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert next(iter(record)) == "figure"
    assert record == {"figure": "trial 3", **asdict(row)}
    assert (tmp_path / "table.md").read_text().splitlines() == [
        "| figure | memory | panel | metric | mean | interval | env steps |",
        "|---|---|---|---|---|---|---|",
        "| trial 3 | with | test (80) | success | 0.500 | [0.250, 0.750] | 38,400 |",
        "",
        "Intervals: Wilson 95%.",
    ]
    assert markdown_table([], []).startswith("| figure |"), "before the first figure"


def test_episodes_keep_text_that_is_no_unicode(tmp_path: Path) -> None:
    odd = Trajectory(Task("a/0", "own"), (), Observation("half \ud800"), "terminated", False, 0.0)
    write_episodes([odd], tmp_path / "episodes.jsonl")
    assert next(read_jsonl(tmp_path / "episodes.jsonl"))["final_observation"]["text"] == "half \ud800"
