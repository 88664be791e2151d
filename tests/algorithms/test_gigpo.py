"""GiGPO and HGPO: the published arithmetic, by hand and by table; what they reduce to; whole runs."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyrun import distance, equal_weights, metrics, tiny_config, train_in_process
from trailnotes.algorithms.gigpo import GigpoConfig, TwoLevelAdvantages, compute_two_level_advantages, term_metrics
from trailnotes.config.methods_schema import AlgorithmConfig
from trailnotes.learner.credit.episodes import Scores, group_advantages
from trailnotes.learner.credit.steps import Visits, collect_visits, step_relative

INVALID = 0.1


def scores_by_hand(*walks: list[tuple[str, float, float]]) -> Scores:
    """Episodes as (state, reward, penalty) rows."""
    rewards = tuple(np.array([reward for _, reward, _ in walk]) for walk in walks)
    return Scores(
        returns=np.array([row.sum() for row in rewards]),
        rewards=rewards,
        states=tuple(tuple(state for state, _, _ in walk) for walk in walks),
        penalties=tuple(np.array([penalty for _, _, penalty in walk]) for walk in walks),
    )


def terms_of(scores: Scores, **options: Any) -> TwoLevelAdvantages:
    config = GigpoConfig(**options)
    return compute_two_level_advantages(collect_visits(scores, config.gamma), scores.returns, config)


def advantages(scores: Scores, **options: Any) -> list[float]:
    return [float(a) for row in terms_of(scores, **options).sum_by_episode(scores) for a in row]


# --- the table: A wins, B fails, with a malformed second action

VECTOR = scores_by_hand(
    [("s0", 0, 0), ("s1", 0, 0), ("s2", 10, 0)], [("s0", 0, 0), ("s1", 0, INVALID), ("s1", 0, 0), ("s3", 0, 0)]
)


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        ("mean", [9.5125, 11.3667, 5.0, -9.5125, -8.3333, -8.1333, -5.0]),
        ("mean_std", [1.4142, 1.8618, 0.7071, -1.4142, -1.3076, -1.2754, -0.7071]),
    ],
)
def test_the_published_arithmetic(norm: str, expected: list[float]) -> None:
    """Penalties are taken off after discounting: the scores of s1 are 9.5, -0.1 and 0."""
    assert advantages(VECTOR, norm=norm) == pytest.approx(expected, abs=5.1e-5)


# --- HGPO

FORKS = scores_by_hand(  # from each step on: 4 4 4 | 0 0 0 | 2 2
    [("s0", 0, 0), ("s1", 0, 0), ("s2", 4, 0)], [("x", 0, 0), ("s1", 0, 0), ("s2", 0, 0)], [("s0", 0, 0), ("s1", 2, 0)]
)


def test_levels_of_history_by_hand() -> None:
    # level 1 (weight 2):  1 2 2 | 0 -2 -2 | -1 0     groups s0: 4 2, s1: 4 0 2, s2: 4 0
    # level 2 (weight 3):  - 1 2 | - 0 -2  |  - -1    groups s0 s1: 4 2, s1 s2: 4 0; "x s1" was met once
    expected = [1, (2 * 2 + 3 * 1) / 5, 2, 0, -2, -2, -1, -1]
    assert advantages(FORKS, hierarchical=True, gamma=1.0, history=1) == expected


# --- properties

steps = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(-3, 3).map(float), st.sampled_from([0.0, INVALID])),
    min_size=1,
    max_size=5,
)
groups = st.lists(steps, min_size=2, max_size=5).map(lambda walks: scores_by_hand(*walks))
norms = st.sampled_from(["mean", "mean_std"])
choices = st.fixed_dictionaries({"norm": norms, "hierarchical": st.booleans(), "history": st.integers(0, 2)})


@given(groups, norms)
def test_without_step_weight_or_a_repeated_state_it_is_grpo_bit_for_bit(scores: Scores, norm: str) -> None:
    grpo = np.concatenate(group_advantages(scores, AlgorithmConfig(normalize_std=norm == "mean_std"))).tolist()
    assert advantages(scores, norm=norm, omega=0.0) == grpo
    alone = replace(scores, states=tuple(tuple((i, t) for t in range(len(row))) for i, row in enumerate(scores.states)))
    assert advantages(alone, norm=norm) == grpo


@given(groups, norms)
def test_without_history_hgpo_is_the_step_term_of_gigpo(scores: Scores, norm: str) -> None:
    visits = collect_visits(scores, GigpoConfig().gamma)
    step = step_relative(visits, visits.states, norm == "mean_std", ddof=0)
    assert advantages(scores, norm=norm, hierarchical=True, history=0) == step.tolist()


def reordered(visits: Visits, order: list[int]) -> Visits:
    return Visits(
        visits.trajectory[order],
        visits.step[order],
        tuple(visits.states[i] for i in order),
        visits.episode_scores[order],
        visits.step_scores[order],
    )


def total(visits: Visits, scores: Scores, options: dict[str, Any]) -> np.ndarray[Any, Any]:
    terms = compute_two_level_advantages(visits, scores.returns, GigpoConfig(**options))
    return terms.episode + terms.step


@given(groups, choices, st.integers(0, 10**6))
def test_permuting_samples_permutes_advantages(scores: Scores, options: dict[str, Any], seed: int) -> None:
    visits = collect_visits(scores, 0.95)
    order = list(range(len(visits.step)))
    random.Random(seed).shuffle(order)
    permuted = total(reordered(visits, order), scores, options)
    assert permuted.tolist() == total(visits, scores, options)[order].tolist()


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), min_size=2, max_size=5), choices)
def test_equal_returns_give_exact_zeros(walks: list[list[str]], options: dict[str, Any]) -> None:
    paid_at_the_end = [[(state, 0.1 * (t == len(w) - 1), 0.0) for t, state in enumerate(w)] for w in walks]
    assert set(advantages(scores_by_hand(*paid_at_the_end), **options, gamma=1.0)) == {0.0}


def test_what_the_terms_say_of_themselves() -> None:
    # s0 twice, s1 three times, s2 and s3 once; A^E is 5 * 3 + 5 * 3 + 5.1, A^S 4.5125 * 2 + 6.3667 + 3.2333 + 3.1333
    assert term_metrics([terms_of(VECTOR)]) == pytest.approx(
        {"singletons": 2 / 7, "group_mean": 7 / 4, "group_max": 3, "step_share": 21.7583 / (21.7583 + 35.1)}, rel=1e-4
    )
    assert term_metrics([]) == {}
    assert term_metrics([terms_of(scores_by_hand([("a", 0, 0)], [("b", 0, 0)]))])["step_share"] == 0.0


# --- whole runs

PAID = {"options": {"families": ["keys/granite"], "max_steps": 3}}


@pytest.mark.parametrize("options", [{}, {"hierarchical": True, "norm": "mean_std"}])
def test_a_run_compares_visits_of_one_state(start_model: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    algorithm = {"name": "gigpo", "invalid_penalty": 0.1}
    train_in_process(tiny_config(start_model, algorithm=algorithm, gigpo=options, env=PAID), tmp_path)
    assert distance(tmp_path, start_model) > 1e-3
    assert not (tmp_path / "memory.db").exists()
    lines = metrics(tmp_path)
    assert all(line["gigpo/group_max"] >= line["gigpo/group_mean"] > 1 for line in lines)
    assert all(0 < line["gigpo/step_share"] <= 1 for line in lines)


@pytest.mark.parametrize("name", ["grpo", "gigpo"])
def test_a_penalty_for_unreadable_actions_teaches_where_nothing_pays(
    start_model: Path, tmp_path: Path, name: str
) -> None:
    """Words with certain first letters are cut to nothing; other words are better off, though no game ends or pays."""
    env = {"name": "tinyrun:Echo", "options": {"families": ["keys/granite"], "max_steps": 3}}
    same = {"env": env, "rollout": {"stop": list("\nabcdefghm")}, "loss": {"kl": 0.0}, "train": {"iterations": 1}}
    for penalty in (0.0, 0.5):
        algorithm = {"name": name, "invalid_penalty": penalty}
        train_in_process(tiny_config(start_model, algorithm=algorithm, **same), tmp_path / str(penalty))
    assert equal_weights(tmp_path / "0.0", start_model)
    assert distance(tmp_path / "0.5", start_model) > 1e-3
    assert metrics(tmp_path / "0.5")[0]["credit/valid_actions"] < 1
