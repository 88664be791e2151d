from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from small import small_config
from trailnotes.reporting.intervals import MIN_FAMILIES, Interval, compute_wilson_limits, t_quantile
from trailnotes.runs import panels
from trailnotes.runs.load_policy import EvaluatedModel
from trailnotes.types import Completion, Observation, Step, Task, Trajectory


def episode(task: str, success: bool, value: float = 0.0) -> Trajectory:
    """An episode of one step, whose return is `value`."""
    step = Step(Observation("room"), (), Completion((), (), (), "wait"), (), "wait", value)
    return Trajectory(Task(task, "waymarks"), (step,), Observation("end"), "terminated", success, float(success))


def test_interval_on_the_panel_with_few_families() -> None:
    episodes = [episode(f"w/route/amber/test-{i}", i < 5) for i in range(10)]
    mean, interval, name = panels.estimate_interval(episodes, small_config())
    assert name.startswith("on this panel, of this one model: the same games played again, Wilson's, 95%")
    assert name.endswith(f"for other games it takes {MIN_FAMILIES} families (here: 1)")
    assert (mean, interval.low, interval.high) == pytest.approx((0.5, 0.2366, 0.7634), abs=1e-4)


def test_with_families_enough_they_are_the_sample() -> None:
    """Five of ten families won, with four games each: as good as nine games, not as 40."""
    episodes = [episode(f"w/route/{name}/test-{i}", name < "f") for name in "abcdefghij" for i in range(4)]
    mean, interval, name = panels.estimate_interval(episodes, small_config())
    assert name == "beyond this panel, of this one model: its 10 families are a sample, Wilson's, 95%"
    low, high = compute_wilson_limits(0.5, 9, t_quantile(9, 0.95))
    assert (mean, interval) == (0.5, Interval(0.5, pytest.approx(float(low)), pytest.approx(float(high))))


def test_returns_have_students_interval_or_none() -> None:
    config = small_config(eval={"metric": "return"})
    episodes = [episode(f"w/a/{i}", False, value) for i, value in enumerate((0.0, 2.0, 4.0))]
    mean, interval, name = panels.estimate_interval(episodes, config)
    assert "Student's t, 95%" in name
    assert (mean, interval.high) == pytest.approx((2.0, 2 + 4.303 * 2 / 3**0.5), abs=1e-3)
    result = panels.build_panel_result(episodes[:1], config, EvaluatedModel("m", "grpo"), memory=False)
    assert (result.ci_low, result.ci_high, str(result)) == (None, None, "0.00 no interval")
    assert "| no interval |" in panels.format_markdown_table([result])
    assert panels.estimate_interval([episodes[1]] * 3, config)[1] is None, "all alike"


def test_a_trial_without_a_win_is_remarked_only_where_no_trial_has_one() -> None:
    lost, won = (
        panels.build_panel_result(
            [episode("w/a/0", success)], small_config(), EvaluatedModel("m", "grpo"), memory=False
        )
        for success in (False, True)
    )
    assert panels.NO_SUCCESS in panels.format_markdown_table([lost, lost])
    assert panels.NO_SUCCESS not in panels.format_markdown_table([won, lost])


def test_table_files(tmp_path: Path) -> None:
    row = panels.PanelResult("empo2", True, "test", "success", 0.5, 0.25, 0.75, 38400, 2, 80, 160, "Wilson 95%")
    panels.write_table([row], tmp_path)
    assert json.loads((tmp_path / "table.json").read_text()) == {"rows": [asdict(row)]}
    text = (tmp_path / "table.md").read_text()
    assert text == panels.format_markdown_table([row])
    assert "| empo2 | with | test (80) | success | 0.500 | [0.250, 0.750] | 38,400 | 2 |" in text
    assert text.endswith("\nIntervals: Wilson 95%.\n")
    head, rule, first = text.splitlines()[:3]
    assert head.count("|") == rule.count("|") == first.count("|")
