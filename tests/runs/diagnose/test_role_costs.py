"""What an exchange of roles says, from numbers that can be checked by hand."""

from __future__ import annotations

import re

import pytest

from trailnotes.config.toml import collect_fields
from trailnotes.errors import ConfigError
from trailnotes.runs.diagnose.roles import REMEDIES, ROLE_NAMES, ROLES_BY_ROW, RoleAnalysis, analyse_roles

GAMES = [f"route/{name}/{i}" for name in ("amber", "birch") for i in range(10)]


def found(metric: str = "success", num: int = 20, **rows: tuple[float, ...]) -> RoleAnalysis:
    """Trials of success 0, 1, 1 in every row, but for those given: shares of the games won in each trial."""
    curves = {row: rows.get(row, (0.0, 1.0, 1.0)) for row in ROLES_BY_ROW}
    games = GAMES[:num]
    values = {
        row: [{game: float(i < round(share * num)) for i, game in enumerate(games)} for share in curve]
        for row, curve in curves.items()
    }
    return analyse_roles(values, {game: game.rpartition("/")[0] for game in games}, metric, 0.95)


@pytest.mark.parametrize("link", ROLE_NAMES)
def test_the_link_whose_exchange_costs_most_is_named_with_what_mends_it(link: str) -> None:
    other = ROLE_NAMES[ROLE_NAMES.index(link) - 1]
    said = found(**{link: (0.0, 0.25, 0.25), other: (0.0, 0.5, 0.75), "all": (0.0, 0.0, 0.0)})
    assert said.costs[link].mean == pytest.approx(0.75)
    assert said.costs[other].mean == pytest.approx(0.375)
    assert [cost.row for cost in said.weak_roles] == [link, other]
    first, second = said.verdict()
    assert first.startswith(f"weak link: the {link}. Its exchange costs 0.75 [0.")
    assert f"] of success in trials 1 to 2; what usually mends it: {REMEDIES[link]}" in first
    assert second.startswith(f"weak link: the {other}. Its exchange costs 0.3")


def test_nothing_is_weak_where_nothing_changed_or_chance_may_have_done_it() -> None:
    for said in (found(), found(reader=(0.0, 1.0, 0.9)), found(author=(0.5, 1.0, 1.0))):
        assert not said.weak_roles
        assert len(said.verdict()) == 1
        assert said.verdict()[0].startswith("no weak link: the largest cost in trials 1 to 2, 0.0")
        assert said.verdict()[0].endswith("could be chance")


def test_a_model_that_became_better_has_no_weak_link() -> None:
    said = found(none=(0.0, 0.0, 0.5))
    assert all(cost.mean == -0.75 for cost in said.costs.values())
    assert not said.weak_roles


def test_of_few_games_nothing_is_concluded() -> None:
    said = found(num=5, author=(0.0, 0.0, 0.0))
    assert said.costs["author"].mean == 1.0
    assert said.costs["author"].interval is None
    assert not said.weak_roles
    assert "(no interval)" in said.table()[1][1][-1]


def test_links_that_cost_only_together_are_told() -> None:
    assert "; but all three together cost 1.00 [" in found(all=(0.0, 0.0, 0.0)).verdict()[0]


def test_where_there_are_families_enough_the_verdict_also_says_what_holds_beyond_them() -> None:
    games = [f"keys/{letter}/{i}" for letter in "abcdefghij" for i in range(2)]
    lost = [dict.fromkeys(games, 0.0)] * 2
    won = [lost[0], dict.fromkeys(games, 1.0)]
    families = {game: game[:6] for game in games}
    said = analyse_roles({row: lost if row == "author" else won for row in ROLES_BY_ROW}, families, "success", 0.95)
    assert [cost.row for cost in said.weak_roles] == ["author"]
    (line,) = said.verdict()
    assert "of success in trial 1, and 1.00 [" in line
    assert "] beyond this panel; what" in line
    cost = said.costs["author"]
    assert cost.interval
    assert cost.beyond
    assert 0 < cost.beyond.low < cost.interval.low, "ten families say less than twenty games"
    assert all(cost.beyond is None for cost in found().costs.values())


def test_games_that_a_row_could_not_play_are_left_out() -> None:
    won = {"a/0": 1.0, "a/1": 0.0}
    values = {row: [won, won] for row in ROLES_BY_ROW} | {"author": [won, {"a/0": 1.0}]}
    said = analyse_roles(values, dict.fromkeys(won, "a"), "success", 0.95)
    assert said.num_games == 1
    assert said.means["none"] == [1.0, 1.0]


def test_where_no_game_is_left_nothing_is_said() -> None:
    with pytest.raises(ConfigError, match="no game could be played in every trial"):
        analyse_roles({row: [{}, {}] for row in ROLES_BY_ROW}, {"a/0": "a"}, "success", 0.95)


def test_returns_have_no_bounds() -> None:
    games = {game: i / 10 for i, game in enumerate(GAMES)}
    better = {game: 5 + 2 * value for game, value in games.items()}
    values = {row: [games, games if row == "reader" else better] for row in ROLES_BY_ROW}
    said = analyse_roles(values, dict.fromkeys(games, "one"), "return", 0.95)
    assert said.costs["reader"].mean == pytest.approx(5.95)
    assert [cost.row for cost in said.weak_roles] == ["reader"]


def test_advice_names_only_settings_that_exist() -> None:
    for role in ROLE_NAMES:
        named = re.findall(r"\b[a-z]+\.[a-z_]+\b", REMEDIES[role])
        assert named
        assert set(named) <= collect_fields().keys()


def test_the_table_has_a_row_for_each_exchange() -> None:
    head, rows = found(author=(0.0, 0.25, 0.25)).table()
    assert head == ["by the trained model", "trial 0", "trial 1", "trial 2", "cost"]
    assert rows[0] == ["none", "0.00", "1.00", "1.00", "-"]
    assert rows[1][:-1] == ["author", "0.00", "0.25", "0.25"]
    assert rows[1][-1].startswith("0.75 [")
