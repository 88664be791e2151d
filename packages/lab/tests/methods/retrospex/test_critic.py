"""The critic: transitions from files, the arithmetic of IQL, known values of a small chain, held-out figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.config.schema import Config
from trailnotes.storage.files import append_jsonl, trajectory_to_json
from trailnotes.types import Completion, Observation, Outcome, Step, Task, Trajectory
from trailnotes_lab.methods.retrospex import critic as critics
from trailnotes_lab.methods.retrospex import transitions
from trailnotes_lab.methods.retrospex.critic import (
    IQL,
    Critic,
    CriticNetworks,
    Vocabulary,
    estimate_auc,
    expectile_loss,
    load_critic,
    td_target,
    train_critic,
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def episode(rewards: list[float], outcome: Outcome = "terminated", task: str = "t", success: bool = True) -> Trajectory:
    """An episode that goes through the places 0, 1, 2, ... by the actions a0, a1, ..."""
    steps = [
        Step(Observation(f"place {i}", instruction="walk" if not i else None), (), Completion((), (), (), "x"), (),
             f"a{i}", reward)
        for i, reward in enumerate(rewards)
    ]  # fmt: skip
    end = Observation(f"place {len(rewards)}", terminated=outcome == "terminated", truncated=outcome == "truncated")
    error = "fell" if outcome == "error" else ""
    return Trajectory(Task(task, "e"), tuple(steps), end, outcome, success, sum(rewards), error=error)


def write(path: Path, *episodes: Trajectory, name: str = "trajectories.jsonl") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    append_jsonl(path / name, [{"iteration": 0, **trajectory_to_json(each)} for each in episodes])
    return path


# -- transitions


def test_only_a_terminated_end_is_terminal() -> None:
    first, second = transitions.build_transitions(episode([0.0, 1.0]), 7)
    assert first == transitions.Transition("walk", "place 0", "a0", 0.0, "place 1", False, True, "t", 7)
    assert second == transitions.Transition("walk", "place 1", "a1", 1.0, "place 2", True, True, "t", 7)


def test_episodes_of_all_kinds_of_runs_are_read(tmp_path: Path) -> None:
    run = write(tmp_path / "run", episode([0.0]), episode([1.0], "error", success=False))
    evaluation = write(tmp_path / "eval", episode([0.1]), name="episodes.jsonl")
    places = [run, evaluation, run / "trajectories.jsonl"]
    assert [t.episode_return for t in transitions.read_episodes(places)] == [0.0, 0.1, 0.0]
    assert [step.episode for step in transitions.read_transitions(places)] == [0, 1, 2]


@given(names=st.sets(st.text("abc/", min_size=1, max_size=3)), share=st.floats(0, 0.99), seed=st.integers(0, 3))
def test_held_out_tasks_depend_on_names_and_seed(names: set[str], share: float, seed: int) -> None:
    kept = transitions.select_held_out_tasks(sorted(names), share, seed)
    assert kept == transitions.select_held_out_tasks(sorted(names, reverse=True), share, seed)
    assert kept <= names
    assert len(kept) < max(1, len(names)) or not names
    assert bool(kept) == (share > 0 and len(names) > 1)


# -- arithmetic


def test_expectile_loss_weighs_what_lies_above_by_tau() -> None:
    # 0.7 * 2^2 = 2.8, 0.3 * 1^2 = 0.3; mean 1.55
    assert expectile_loss(torch.tensor([2.0, -1.0]), 0.7).item() == pytest.approx(1.55)
    # tau = 1/2 is half the squared error
    assert expectile_loss(torch.tensor([2.0, -1.0]), 0.5).item() == pytest.approx(1.25)


def test_targets_bootstrap_but_at_the_end_of_a_game() -> None:
    target = td_target(torch.tensor([1.0, 1.0]), torch.tensor([False, True]), torch.tensor([2.0, float("nan")]), 0.9)
    assert target.tolist() == pytest.approx([2.8, 1.0])


def test_the_lesser_head_counts_and_both_are_trained() -> None:
    networks = make_networks()
    columns = (["walk"], ["place 0"], ["a0"])
    heads = networks.target(*columns)[0]
    assert networks.target_q(*columns).item() == heads.min().item() != heads.max().item()
    before = [head[2].bias.item() for head in networks.q.heads]  # type: ignore[index]
    IQL(networks, 0).run_epoch(transitions.build_transitions(episode([5.0]), 0), 0, lambda *_: None)
    after = [head[2].bias.item() for head in networks.q.heads]  # type: ignore[index]
    assert [b - a for a, b in zip(before, after, strict=True)] == pytest.approx([1e-4, 1e-4], rel=1e-2)  # Adam's step


def make_networks() -> CriticNetworks:
    torch.manual_seed(0)
    return CriticNetworks(Vocabulary.from_texts(["walk place 0 1 2 a0 a1 on quit"]))


# -- a chain whose values are known


def chain(end_of_first: str) -> list[transitions.Transition]:
    """Two places; "on" leads from the first to the second and from there to a reward of 1, "quit" ends with 0."""
    blank = transitions.Transition("walk", "place 0", "on", 0.0, "place 1", False, True, "t", 0)
    won = replace(blank, observation="place 1", reward=1.0, next_observation="won", terminated=True)
    lost = [replace(step, action="quit", reward=0.0, next_observation="lost", terminated=True) for step in (blank, won)]
    cut = transitions.build_transitions(episode([0.0], "truncated"), 0)[0]
    assert not cut.terminated
    first = blank if end_of_first == "walked on" else replace(cut, action="on")
    return [first, won, *lost]


@pytest.mark.long
@pytest.mark.parametrize("end_of_first", ["walked on", "was cut off"])
def test_values_of_a_chain_are_those_computed_by_hand(end_of_first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two equally frequent actions worth x and 0: the expectile m solves 0.7 (x - m) = 0.3 m, so m = 0.7 x.
    # V(1) = 0.7; Q(0, on) = 0.99 * 0.7 = 0.693; V(0) = 0.485. Where the episode was cut off after the first step,
    # the same values must come out: a time limit is no end of the game.
    for name, value in {"LEARNING_RATE": 3e-3, "TARGET_RATE": 0.2}.items():
        monkeypatch.setattr(critics, name, value)
    networks = make_networks()
    iql = IQL(networks, seed=0)
    for epoch in range(300):
        iql.run_epoch(chain(end_of_first), epoch, lambda *_: None)
    critic, places = Critic(networks, {}, {}), ["place 0", "place 0", "place 1", "place 1"]
    q, v = critic.predict_values(["walk"] * 4, places, ["on", "quit", "on", "quit"])
    assert q == pytest.approx([0.693, 0.0, 1.0, 0.0], abs=0.03)
    assert v == pytest.approx([0.485, 0.485, 0.7, 0.7], abs=0.03)
    assert critic.compute_advantages("walk", "place 1", ["on", "quit"]) == pytest.approx([0.3, -0.7], abs=0.05)


# -- ranking


def test_the_area_counts_pairs_and_a_tie_counts_half() -> None:
    # won: 3, 1; lost: 2, 1. Pairs: 3>2, 3>1, 1<2, 1=1: 2.5 of 4.
    interval = estimate_auc([3, 1, 2, 1], [True, True, False, False], [0, 1, 2, 3])
    assert interval.low <= interval.mean == 0.625 <= interval.high


def test_steps_of_an_episode_are_resampled_together() -> None:
    rng = np.random.default_rng(0)
    won, scores = rng.random(40) < 0.5, rng.random(40)
    few = estimate_auc(scores.repeat(9), won.repeat(9), np.arange(40).repeat(9))
    many = estimate_auc(scores.repeat(9), won.repeat(9), np.arange(360))
    assert few.high - few.low > 2 * (many.high - many.low)


# -- on disk


def make_config(**retrospex: Any) -> Config:
    return Config(run={"threads": 1}, retrospex={"epochs": 3} | retrospex)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    good = [episode([0.0, 1.0], task=name) for name in "abcde"]
    bad = [episode([0.0], task=name, success=False) for name in "abcde"]
    return write(tmp_path / "run", *good, *bad)


def weights(critic: Critic) -> list[float]:
    return torch.cat([tensor.flatten() for tensor in critic.networks.state_dict().values()]).tolist()


def test_a_critic_comes_back_from_disk_as_it_was(run: Path, tmp_path: Path) -> None:
    config = make_config()
    made = train_critic(config, [run], tmp_path / "critic")
    loaded = load_critic(tmp_path / "critic")
    actions = ["a0", "a1", "never seen"]
    assert loaded.compute_advantages("walk", "place 0", actions) == made.compute_advantages("walk", "place 0", actions)
    assert (loaded.about, loaded.figures) == (made.about, made.figures)
    assert weights(train_critic(config, [run], tmp_path / "critic")) == weights(made)  # finished: loaded, not trained
    assert weights(train_critic(config, [run], tmp_path / "again")) == weights(made)
    assert sorted(p.name for p in (tmp_path / "critic").iterdir()) == [
        "critic.json", "critic.safetensors", "vocabulary.json",
    ]  # fmt: skip


def test_training_goes_on_after_the_last_epoch_bit_for_bit(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_critic(make_config(), [run], tmp_path / "whole")
    passes = []
    run_epoch = IQL.run_epoch

    def dying(self: IQL, data: Any, epoch: int, progress: Any) -> dict[str, float]:
        passes.append(epoch)
        if passes == [0, 1]:
            raise KeyboardInterrupt
        return run_epoch(self, data, epoch, progress)

    monkeypatch.setattr(IQL, "run_epoch", dying)
    with pytest.raises(KeyboardInterrupt):
        train_critic(make_config(), [run], tmp_path / "cut")
    assert weights(train_critic(make_config(), [run], tmp_path / "cut")) == weights(whole)
    assert passes == [0, 1, 1, 2]


def test_nothing_of_a_held_out_task_is_learned_from(run: Path, tmp_path: Path) -> None:
    first = train_critic(make_config(), [run], tmp_path / "first")
    kept = set(first.about["held_out_tasks"])
    assert len(kept) == 1
    assert first.figures["held_out_episodes"] == 2
    assert first.figures["held_out_steps_won"] == 2
    episodes = list(transitions.read_episodes([run]))
    strange = {"action": "xyzzy", "reward": 9.0}
    other = [
        replace(e, steps=(replace(e.steps[0], **strange), *e.steps[1:])) if e.task.id in kept else e for e in episodes
    ]
    second = train_critic(make_config(), [write(tmp_path / "other", *other)], tmp_path / "second")
    assert second.about["fingerprint"] != first.about["fingerprint"]
    assert weights(second) == weights(first)
    assert "xyzzy" not in (tmp_path / "second" / "vocabulary.json").read_text(encoding="utf-8")
