"""ECHO: which tokens of an episode are learned as what the environment answered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tiny import group, step, trajectory
from tinyrun import distance, metrics, tiny_config, train_in_process
from trailnotes.learner.samples import build_observation_samples, build_samples
from trailnotes.types import Mode, Tip

TOLD = (Tip("task", "left", "", 1.0),)


def test_what_lies_between_decisions_is_learned() -> None:
    """1 2 | 3 | 4 5 | 6: the task, an answer, an observation, an answer."""
    rows = build_samples([group(trajectory([step([1, 2], [3]), step([1, 2, 3, 4, 5], [6])]))], [[0.0]])
    (row,) = build_observation_samples(rows, 0.1)
    assert (row.token_ids, row.loss_mask) == ((1, 2, 3, 4, 5, 6), (0, 0, 0, 1, 1, 0))
    assert (row.role, row.imitate, row.hold, any(row.advantages)) == ("observation", 0.1, 0.0, False)


def test_contexts_with_tips_and_single_decisions_have_no_observation_rows() -> None:
    with_tips = [step([1, 9], [3], plain=[1]), step([1, 9, 3, 4], [6], plain=[1, 3, 4])]
    shown = [replace(with_tips[0], tips=TOLD), with_tips[1]]
    on_policy = build_samples([group(trajectory(shown, "on_policy_tips"))], [[1.0]])
    assert on_policy[0].shows_tips
    assert build_observation_samples(on_policy, 0.1) == []
    (off_policy,) = build_observation_samples(build_samples([group(trajectory(shown, "off_policy"))], [[1.0]]), 0.1)
    assert off_policy.token_ids == (1, 3, 4, 6), "without the tip there is nothing to hide"
    assert build_observation_samples(build_samples([group(trajectory([step([1], [3])]))], [[1.0]]), 0.1) == []


def test_a_row_shows_tips_where_its_own_context_has_them() -> None:
    """An agent that begins a second conversation in one episode: the first one was given a tip, the other none."""
    first = replace(step([1, 9], [3], plain=[1]), tips=TOLD)
    steps = [first, step([1, 9, 3, 4], [6], plain=[1, 3, 4]), step([7, 8], [5]), step([7, 8, 5, 2], [6])]
    cases: list[tuple[Mode, list[bool]]] = [("on_policy_tips", [True, False]), ("off_policy", [False, False])]
    for mode, flags in cases:
        rows = build_samples([group(trajectory(steps, mode))], [[1.0]])
        assert [row.shows_tips for row in rows] == flags
    rows = build_samples([group(trajectory(steps, "on_policy_tips"))], [[1.0]])
    assert [row.token_ids for row in build_observation_samples(rows, 0.1)] == [(7, 8, 5, 2, 6)]


def test_a_run_learns_from_what_it_saw(start_model: Path, tmp_path: Path) -> None:
    runs = {}
    for weight in (0.0, 0.5):
        config = tiny_config(start_model, algorithm={"name": "grpo"}, loss={"observations": weight, "kl": 0.0},
                             train={"iterations": 2})  # fmt: skip
        train_in_process(config, tmp_path / str(weight))
        runs[weight] = metrics(tmp_path / str(weight))
    assert distance(tmp_path / "0.5", tmp_path / "0.0") > 1e-4
    assert runs[0.5][0]["update/tokens_observation"] > 0
    assert runs[0.5][1]["update/nll_observation"] < runs[0.5][0]["update/nll_observation"]
    assert "update/tokens_observation" not in runs[0.0][0]


@pytest.mark.long
@pytest.mark.parametrize("settings", [{"mismatch": "mask"}, {"max_negative_kl": 1e-3}])
def test_mismatch_corrections_are_exact_without_mismatch(
    start_model: Path, tmp_path: Path, settings: dict[str, object]
) -> None:
    """To the last bit, with one step an update: the weights that learn are those that sampled."""
    own = {"algorithm": {"name": "grpo"}, "optim": {"epochs": 1, "minibatch": 0}, "train": {"iterations": 2}}
    for name, loss in (("with", settings), ("without", {})):
        train_in_process(tiny_config(start_model, loss=loss, **own), tmp_path / name)
    assert distance(tmp_path / "with", tmp_path / "without") == 0.0
    assert distance(tmp_path / "with", start_model) > 1e-4, "nothing was learned: the test shows nothing"
