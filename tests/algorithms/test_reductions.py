"""Where two settings must come to the same update, on whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinyrun import distance, episodes, equal_weights, metrics, tip_rows, trained, trained_once, weights


@pytest.mark.parametrize(
    ("unit", "old"),
    [
        ("trajectory", "tip_free"),
        pytest.param("iteration", "tip_free", marks=pytest.mark.long),
        pytest.param("trajectory", "acting", marks=pytest.mark.long),
    ],
)
def test_empo2_without_memory_mode_is_grpo(start_model: Path, tmp_path: Path, unit: str, old: str) -> None:
    options = {"p_memory": 0.0, "mode_unit": unit, "old_logprobs": old}
    empo2 = trained(start_model, tmp_path / "empo2", algorithm={"name": "empo2", **options})
    grpo = trained_once(start_model, algorithm={"name": "grpo"})
    assert equal_weights(empo2, grpo)
    assert distance(empo2, start_model) > 1e-3, "nothing was learned: the test shows nothing"
    assert tip_rows(empo2), "tips are written all the same"
    assert [e["steps"] for e in episodes(empo2)] == [e["steps"] for e in episodes(grpo)]
    assert len(metrics(empo2)) == 3


@pytest.mark.parametrize("mode", ["off_policy", pytest.param("on_policy_tips", marks=pytest.mark.long)])
def test_tips_modes_on_an_empty_memory_are_plain(start_model: Path, tmp_path: Path, mode: str) -> None:
    algorithm = {"p_memory": 1.0, "q_off_policy": float(mode == "off_policy"), "mode_unit": "iteration"}
    nothing = trained(start_model, tmp_path / "nothing", algorithm=algorithm, memory={"top_k": 0})
    grpo = trained_once(start_model, algorithm={"name": "grpo"})
    assert {e["mode"] for e in episodes(nothing)} == {mode}
    assert equal_weights(nothing, grpo)


def test_two_seeds_learn_different_weights(start_model: Path, tmp_path: Path) -> None:
    """Guards the others: two seeds must not come to the same weights."""
    one, other = (trained(start_model, tmp_path / str(s), run={"seed": s}, train={"iterations": 1}) for s in (0, 1))
    assert weights(one).keys() == weights(start_model).keys()
    assert not equal_weights(one, other)
