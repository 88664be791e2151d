from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from small import small_config
from trailnotes.commands import main
from trailnotes.config.toml import to_toml
from trailnotes.runs.diagnose import Check, diagnose, run_checks

NAMES = ("read", "written", "shown", "gain", "advantage", "engine", "mask", "reliance", "rise")


def line(iteration: int, **values: float) -> dict[str, Any]:
    """An iteration in which everything is well, but for `values`."""
    well = {
        "env_steps": 100 * (iteration + 1), "rollout/unparsable": 0.1, "tips/written": 10.0, "tips/unusable": 1.0,
        "rollout/return/plain": 0.1 * iteration, "rollout/return/off_policy": 0.5, "rollout/tips_per_step": 1.5,
        "rollout/env_steps": 40.0, "update/rows": 20.0, "update/zero_advantage_rows": 10.0,
        "engine/difference": 1e-6, "update/tokens_off_policy": 50.0, "update/masked_fraction": 0.1,
        "update/kl_to_behavior_off_policy": 1.0 - 0.1 * iteration,
    }  # fmt: skip
    return {"iteration": iteration, **well, **{name.replace("__", "/"): value for name, value in values.items()}}


def episode(iteration: int, mode: str, value: float, outcome: str = "terminated") -> dict[str, Any]:
    steps = [{"tips": [{"text": "north"}] if mode != "plain" else []}]
    return {"iteration": iteration, "mode": mode, "return": value, "outcome": outcome, "steps": steps}


def verdicts(
    lines: list[dict[str, Any]], episodes: list[dict[str, Any]], **sections: dict[str, Any]
) -> dict[str, Check]:
    own = {"memory": {"threshold": 0.5}, "loss": {"kl": 0.1}, "algorithm": {"old_logprobs": "acting"}}
    config = small_config(**own | sections)
    return dict(zip(NAMES, run_checks(lines, episodes, config), strict=True))


def played(num: int, *pairs: tuple[str, float], iterations: range = range(5)) -> list[dict[str, Any]]:
    """`num` episodes of each mode and return, in each iteration."""
    return [episode(i, mode, value) for i in iterations for mode, value in pairs for _ in range(num)]


EPISODES = played(10, ("plain", 0.25), ("off_policy", 0.75))


def test_a_healthy_run_passes_every_check() -> None:
    checks = verdicts([line(i) for i in range(5)], EPISODES)
    assert all(check.holds for check in checks.values())
    rounded = verdicts([line(i, engine__difference=0.02) for i in range(5)], EPISODES, learner={"name": "tinker"})
    assert rounded["engine"].holds
    assert (checks["written"].first, checks["written"].last) == (0.9, 0.9)
    assert (checks["gain"].first, checks["gain"].last) == (0.5, 0.5)
    assert (checks["advantage"].last, checks["mask"].last) == (0.5, 0.9)
    assert (checks["reliance"].first, checks["reliance"].last) == pytest.approx((1.0, 0.6))
    assert (checks["rise"].first, checks["rise"].last) == pytest.approx((0.0, 0.4))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("written", {"tips__unusable": 3.0}), ("shown", {"rollout__tips_per_step": 0.0}),
        ("advantage", {"update__zero_advantage_rows": 20.0}), ("engine", {"engine__difference": 0.01}),
        ("mask", {"update__masked_fraction": 0.6}), ("reliance", {"update__kl_to_behavior_off_policy": 0.8}),
        ("rise", {"rollout__return/plain": 0.2}),
    ],
)  # fmt: skip
def test_each_fault_fails_one_check(name: str, values: dict[str, float]) -> None:
    checks = verdicts([line(i, **values) for i in range(5)], EPISODES)
    assert [each for each, check in checks.items() if check.holds is False] == [name]
    assert checks[name].advice in " ".join(str(checks[name]).split())


def test_what_training_broke_is_a_weak_link() -> None:
    broken = {"rollout__unparsable": 1.0, "tips__unusable": 10.0, "update__masked_fraction": 1.0}
    checks = verdicts([line(i, **(broken if i >= 5 else {})) for i in range(10)], EPISODES)
    assert [name for name, check in checks.items() if check.holds is False] == ["read", "written", "mask"]


FIRST, LATER = range(1), range(1, 5)
NOISY = [*played(10, ("off_policy", 0.0), ("plain", 0.0)), *played(10, ("off_policy", 1.0), ("plain", 1.0)),
         *played(1, ("plain", 1.0))]  # -0.02 with an interval of 0.3  # fmt: skip


@pytest.mark.parametrize(
    ("episodes", "first", "last", "holds"),
    [
        (played(10, ("plain", 0.5), ("off_policy", 0.5)), 0.0, 0.0, False),
        # a failed episode does not count
        ([*played(10, ("plain", 0.5), ("off_policy", 0.5)), episode(0, "off_policy", 9.0, "error")], 0.0, 0.0, False),
        # they helped at first; later the policy wins without them
        (played(10, ("plain", 0.0), ("off_policy", 1.0), iterations=FIRST)
         + played(10, ("plain", 1.0), ("off_policy", 1.0), iterations=LATER), 1.0, 0.0, True),
        # later they do harm
        (played(10, ("plain", 0.0), ("off_policy", 1.0), iterations=FIRST)
         + played(10, ("plain", 0.9), ("off_policy", 0.5), iterations=LATER), 1.0, -0.4, False),
        # three episodes with tips and six without
        (played(3, ("off_policy", 0.0)) + played(5, ("plain", 0.0)) + played(1, ("plain", 1.0)), -1 / 6, -1 / 6, None),
        (NOISY, -1 / 42, -1 / 42, None),
        (NOISY * 100, -1 / 42, -1 / 42, False),
    ],
)  # fmt: skip
def test_the_gain_of_tips(episodes: list[dict[str, Any]], first: float, last: float, holds: bool | None) -> None:
    check = verdicts([line(0)], episodes)["gain"]
    assert (check.first, check.last, check.holds) == (pytest.approx(first), pytest.approx(last), holds)


@pytest.mark.parametrize("name", ["written", "shown", "advantage", "mask"])
def test_few_counts_give_no_verdict(name: str) -> None:
    few = {"tips__written": 4.0, "tips__unusable": 4.0, "rollout__env_steps": 4.0, "rollout__tips_per_step": 0.0}
    few |= {"update__rows": 4.0, "update__zero_advantage_rows": 4.0, "update__tokens_off_policy": 4.0}
    check = verdicts([line(i, **few, update__masked_fraction=0.9) for i in range(5)], [])[name]
    assert (check.holds, check.counts) == (None, (4, 4))


@pytest.mark.parametrize(
    ("values", "first", "last", "holds"),
    [
        ([0.2, 0.8, 0.3, 0.7, 0.2, 0.8, 0.3, 0.7, 0.2, 0.1], 0.5, 0.15, None),  # within the noise
        ([float(i) for i in range(10)], 0.5, 8.5, True),  # means of the first and the last fifth
        ([0.0], 0.0, 0.0, None),
    ],
)
def test_a_trend_needs_iterations(values: list[float], first: float, last: float, holds: bool | None) -> None:
    lines = [line(i, **{"rollout__return/plain": value}) for i, value in enumerate(values)]
    rise = verdicts(lines, [])["rise"]
    assert (rise.first, rise.last, rise.holds) == (first, pytest.approx(last), holds)
    assert "memory.threshold = 0.5" in verdicts(lines, [])["shown"].advice


@pytest.mark.parametrize(("nats", "first", "last"), [(0.04, 0.04, 0.04), (None, 0.5, 0.1)])
def test_reliance_passes_where_it_is_small_or_falls(nats: float | None, first: float, last: float) -> None:
    """Measured before the update where the ratio knows no tips; a model that hardly relies on them need not improve."""
    old = "acting" if nats else "tip_free"
    values = {"update__kl_to_behavior_off_policy": nats or 0.0}
    lines = [line(i, **values, **({} if nats else {"tips__reliance": 0.5 - 0.1 * i})) for i in range(5)]
    check = verdicts(lines, EPISODES, algorithm={"old_logprobs": old})["reliance"]
    assert (check.first, check.last, check.holds) == (first, pytest.approx(last), True)
    for settings in ({"old_logprobs": "tip_free"}, {"old_logprobs": "acting", "distilled_context": "release"}):
        assert verdicts([line(0)], EPISODES, algorithm=settings)["reliance"].last is None


# -- of run directories


def a_run(path: Path, lines: list[dict[str, Any]], episodes: list[dict[str, Any]], method: str = "empo2") -> Path:
    path.mkdir()
    (path / "config.toml").write_text(to_toml(small_config(algorithm={"name": method, "old_logprobs": "acting"})))
    for name, records in (("metrics", lines), ("trajectories", episodes)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_run_without_memory_has_no_data_about_tips(tmp_path: Path) -> None:
    about_tips = ("tips/", "rollout/return/off_policy", "rollout/tips", "update/tokens_off")
    none = {"rollout/tips_per_step": 0.0, "update/tokens_off_policy": 0.0}
    lines = [{k: v for k, v in line(i).items() if not k.startswith(about_tips)} | none for i in range(5)]
    report = diagnose(a_run(tmp_path / "run", lines, [episode(0, "plain", 0.0)], "grpo"))
    rows = report.splitlines()
    assert rows[0].endswith("grpo, 5 iterations, 500 environment steps")
    assert rows.pop(1) == "no data for 5 of 9 checks"
    assert ["no data" in row for row in rows[1:10]] == [False, True, True, True, False, False, True, True, False]
    assert "WEAK" not in report
    assert [row for row in rows if row.startswith("no weak link in 4 of 9 checks")]


def test_the_first_failed_check_is_named_within_100_columns(tmp_path: Path, capsys: Any) -> None:
    weak = {"tips__unusable": 9.0, "update__zero_advantage_rows": 20.0, "update__kl_to_behavior_off_policy": 2.0}
    run = a_run(tmp_path / "run", [line(i, **weak) for i in range(5)], EPISODES)
    assert main(["diagnose", str(run)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert "first weak link: usable tips, of those written" in rows
    assert sum(row.startswith("WEAK") for row in rows) == 3
    assert max(len(row) for row in rows[1:]) <= 100
