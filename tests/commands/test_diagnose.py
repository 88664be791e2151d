from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from small import small_config
from trailnotes.commands import main
from trailnotes.commands.diagnose import Link, diagnose, links_of
from trailnotes.config.toml import to_toml
from trailnotes.errors import RunError

NAMES = ("written", "shown", "gain", "advantage", "mask", "reliance", "rise")


def line(iteration: int, **values: float) -> dict[str, Any]:
    """An iteration in which everything is well, but for `values`."""
    well = {
        "env_steps": 100 * (iteration + 1),
        "tips/written": 10.0,
        "tips/unusable": 1.0,
        "rollout/return/plain": 0.1 * iteration,
        "rollout/return/off_policy": 0.5,
        "rollout/tips_per_step": 1.5,
        "update/rows": 20.0,
        "update/zero_advantage_rows": 10.0,
        "update/tokens_off_policy": 50.0,
        "update/masked_fraction": 0.1,
        "update/kl_to_behavior_off_policy": 1.0 - 0.1 * iteration,
    }
    return {"iteration": iteration, **well, **{name.replace("__", "/"): value for name, value in values.items()}}


def episode(iteration: int, mode: str, value: float, outcome: str = "terminated") -> dict[str, Any]:
    steps = [{"tips": [{"text": "north"}] if mode != "plain" else []}]
    return {"iteration": iteration, "mode": mode, "return": value, "outcome": outcome, "steps": steps}


def verdicts(lines: list[dict[str, Any]], episodes: list[dict[str, Any]]) -> dict[str, Link]:
    return dict(zip(NAMES, links_of(lines, episodes), strict=True))


EPISODES = [episode(i, mode, value) for i in range(5) for mode, value in (("plain", 0.25), ("off_policy", 0.75))]


def test_a_chain_that_holds() -> None:
    links = verdicts([line(i) for i in range(5)], EPISODES)
    assert all(link.holds for link in links.values())
    assert (links["written"].first, links["written"].last) == (0.9, 0.9)
    assert (links["gain"].first, links["gain"].last) == (0.5, 0.5)
    assert (links["advantage"].last, links["mask"].last) == (0.5, 0.9)
    assert (links["reliance"].first, links["reliance"].last) == pytest.approx((1.0, 0.6))
    assert (links["rise"].first, links["rise"].last) == pytest.approx((0.0, 0.4))


@pytest.mark.parametrize(
    ("link", "values"),
    [
        ("written", {"tips__unusable": 3.0}),
        ("shown", {"rollout__tips_per_step": 0.0}),
        ("advantage", {"update__zero_advantage_rows": 20.0}),
        ("mask", {"update__masked_fraction": 0.6}),
        ("reliance", {"update__kl_to_behavior_off_policy": 0.8}),
        ("rise", {"rollout__return/plain": 0.2}),
    ],
)
def test_each_link_is_weak_alone(link: str, values: dict[str, float]) -> None:
    links = verdicts([line(i, **values) for i in range(5)], EPISODES)
    assert [name for name, found in links.items() if found.holds is False] == [link]
    assert links[link].advice in " ".join(str(links[link]).split())


def test_runs_of_before_have_other_names_for_the_same() -> None:
    names = {"tips/written": "notes/notes", "tips/unusable": "notes/notes_unusable"}
    before = [{names.get(name, name): value for name, value in line(i).items()} for i in range(5)]
    assert links_of(before, EPISODES) == links_of([line(i) for i in range(5)], EPISODES)


def test_notes_that_help_nobody_are_weak() -> None:
    episodes = [episode(i, mode, value) for i in range(5) for mode, value in (("plain", 0.5), ("off_policy", 0.5))]
    assert verdicts([line(0)], episodes)["gain"].holds is False
    failed = [*episodes, episode(0, "off_policy", 9.0, "error")]
    assert verdicts([line(0)], failed)["gain"].holds is False, "an episode that failed says nothing about notes"


def test_notes_that_helped_once_were_worth_it_though_nobody_needs_them_now() -> None:
    late = [episode(i, mode, 1.0) for i in range(1, 5) for mode in ("plain", "off_policy")]
    link = verdicts([line(0)], [episode(0, "plain", 0.0), episode(0, "off_policy", 1.0), *late])["gain"]
    assert (link.first, link.last, link.holds) == (1.0, 0.0, True)


def test_notes_that_came_to_do_harm_are_weak_with_an_advice_of_their_own() -> None:
    late = [episode(i, mode, value) for i in range(1, 5) for mode, value in (("plain", 0.9), ("off_policy", 0.5))]
    link = verdicts([line(0)], [episode(0, "plain", 0.0), episode(0, "off_policy", 1.0), *late])["gain"]
    assert (link.first, link.last, link.holds) == (1.0, pytest.approx(-0.4), False)
    assert "q_off_policy" in link.advice


def test_a_model_that_hardly_relies_on_notes_need_not_improve() -> None:
    values = {"update__kl_to_behavior_off_policy": 0.04}
    assert verdicts([line(i, **values) for i in range(5)], EPISODES)["reliance"].holds is True


def test_one_iteration_shows_no_trend() -> None:
    links = verdicts([line(0)], EPISODES)
    assert links["rise"].holds is links["reliance"].holds is None
    assert links["rise"].last == 0.0


def test_numbers_are_means_of_the_first_and_the_last_fifth() -> None:
    lines = [line(i, **{"rollout__return/plain": float(i)}) for i in range(10)]
    link = verdicts(lines, [])["rise"]
    assert (link.first, link.last) == (0.5, 8.5)
    assert "0.5 -> 8.5" in str(link)


# -- of run directories


def a_run(path: Path, lines: list[dict[str, Any]], episodes: list[dict[str, Any]], method: str = "empo2") -> Path:
    path.mkdir()
    (path / "config.toml").write_text(to_toml(small_config(algorithm={"name": method})))
    for name, records in (("metrics", lines), ("trajectories", episodes)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_run_without_memory_has_no_data_where_notes_would_be(tmp_path: Path) -> None:
    about_notes = ("tips/", "rollout/return/off_policy", "rollout/tips", "update/tokens_off")
    lines = [{k: v for k, v in line(i).items() if not k.startswith(about_notes)} for i in range(5)]
    lines = [{**entry, "rollout/tips_per_step": 0.0, "update/tokens_off_policy": 0.0} for entry in lines]
    report = diagnose(a_run(tmp_path / "run", lines, [episode(0, "plain", 0.0)], "grpo"))
    rows = report.splitlines()
    assert rows[0].endswith("grpo, 5 iterations, 500 environment steps")
    assert ["no data" in row for row in rows[1:8]] == [True, True, True, False, True, True, False]
    assert "WEAK" not in report
    assert "no weak link found" in rows


def test_the_first_weak_link_is_named_and_all_fits_the_terminal(tmp_path: Path, capsys: Any) -> None:
    weak = {"tips__unusable": 9.0, "update__zero_advantage_rows": 20.0, "update__kl_to_behavior_off_policy": 2.0}
    run = a_run(tmp_path / "run", [line(i, **weak) for i in range(5)], EPISODES)
    assert main(["diagnose", str(run)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert "first weak link: usable tips, of those written" in rows
    assert sum(row.startswith("WEAK") for row in rows) == 3
    assert max(len(row) for row in rows[1:]) <= 100


def test_a_run_before_its_first_iteration_and_no_run_at_all(tmp_path: Path) -> None:
    assert "has no finished iteration yet" in diagnose(a_run(tmp_path / "run", [], []))
    with pytest.raises(RunError, match="holds no run"):
        diagnose(tmp_path / "nothing")
