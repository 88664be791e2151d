"""RLOO: the others are the baseline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyrun import metrics, tiny_config, train_in_process
from trailnotes.learner.credit.episodes import group_relative, leave_one_out


@pytest.mark.parametrize("returns", [[0.1] * 7, [5.0], []])
def test_without_a_difference_there_is_no_advantage(returns: list[float]) -> None:
    assert leave_one_out(returns).tolist() == [0.0] * len(returns)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8))
def test_it_is_grpo_without_deviation_but_for_a_factor(returns: list[float]) -> None:
    n = len(returns)
    others = [returns[i] - (sum(returns) - returns[i]) / (n - 1) for i in range(n)]
    np.testing.assert_allclose(leave_one_out(returns), others, atol=1e-9)
    np.testing.assert_allclose(leave_one_out(returns), n / (n - 1) * group_relative(returns, False), atol=1e-9)


def test_a_run_takes_the_gradient_of_grpo_but_for_the_factor(start_model: Path, tmp_path: Path) -> None:
    for name in ("rloo", "grpo"):
        algorithm, optim = {"name": name, "normalize_std": False}, {"epochs": 1, "lr": 1e-2}
        config = tiny_config(start_model, algorithm=algorithm, loss={"kl": 0.0}, optim=optim, train={"iterations": 1})
        train_in_process(config, tmp_path / name)
    (rloo,), (grpo,) = metrics(tmp_path / "rloo"), metrics(tmp_path / "grpo")
    for name in ("update/grad_norm", "update/advantage_std"):
        assert rloo[name] == pytest.approx(grpo[name] * 4 / 3, rel=1e-5)  # groups of four
        assert grpo[name] > 0
