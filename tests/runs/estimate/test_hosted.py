"""The tokens and the cost of a run at a server, told before it begins."""

from __future__ import annotations

import pytest

from trailnotes.commands import main
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.runs.estimate.hosted import count_tokens, estimate_hosted
from trailnotes.types import Completion, Observation, Step, Task, Trajectory
from trailnotes.web.ledger import TokenCount

TASK = Task("task", "numbers")


def make_config(*words: str) -> Config:
    settings = "--learner.name tinker --learner.price_prefill 0.5 --learner.price_sample 2 --learner.price_train 1"
    return load_config("demo-small", [*settings.split(), *words])


def play(*lengths: tuple[int, int]) -> Trajectory:
    """An episode whose prompts and answers have these many tokens; those of a script are bytes."""
    seen = Observation("here")
    steps = []
    for prompt, said in lengths:
        completion = Completion((0,) * prompt, (0,) * 4 * said, (0.0,) * 4 * said, "go")
        steps.append(Step(seen, (), completion, (), "go", 0.0))
    return Trajectory(TASK, tuple(steps), seen, "terminated", True, 1.0)


def test_an_iteration_of_plain_grpo_by_hand() -> None:
    config = make_config(
        "--algorithm.name", "grpo", "--loss.kl", "0", "--loss.dual_clip", "0", "--optim.epochs", "3",
        "--rollout.num_tasks", "2", "--rollout.group_size", "5", "--rollout.max_action_tokens", "8",
    )  # fmt: skip
    played = [play((10, 2), (20, 3))]
    # 10 episodes read 10 + 20 tokens, say 2 + 3, and train their last context, 20 + 3, three times; no forward pass
    assert count_tokens(config, played, longest=False) == TokenCount(300, 50, 690)
    # answers of 8 tokens each: 16 said, by half of which each of the two contexts is longer, the last one by all
    assert count_tokens(config, played, longest=True) == TokenCount(460, 160, 1320)


def test_what_the_loss_and_the_memory_take_besides() -> None:
    words = ("--rollout.num_tasks", "1", "--rollout.group_size", "4", "--optim.epochs", "1")
    played = [play((10, 2), (20, 3))]
    unclipped = make_config(*words, "--algorithm.name", "grpo", "--loss.kl", "0", "--loss.dual_clip", "0")
    plain = count_tokens(unclipped, played, longest=False)
    clipped = count_tokens(make_config(*words, "--algorithm.name", "grpo", "--loss.kl", "0"), played, longest=False)
    held = count_tokens(make_config(*words, "--algorithm.name", "grpo"), played, longest=False)
    tips = count_tokens(make_config(*words, "--empo2.q_off_policy", "1"), played, longest=False)
    assert clipped.prefilled - plain.prefilled == 4 * 23  # the dual bound is sent by its gradient: one forward pass
    assert held.prefilled - clipped.prefilled == 4 * 23  # the start model scores each row
    # a quarter of the members acts with tips and is scored without them; all write, from a context of an episode
    assert tips.prefilled - held.prefilled == 23 + 4 * 23
    assert tips.sampled - held.sampled == 4 * 8
    assert plain.trained == clipped.trained == held.trained == tips.trained == 4 * 23


def test_the_report_counts_iterations_and_money(capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config("--train.max_env_steps", "0", "--train.iterations", "7")
    found = estimate_hosted(config)
    assert found.iterations == 7
    cost = found.low.compute_cost(config.learner) * 7
    assert cost == pytest.approx(7e-6 * (0.5 * found.low.prefilled + 2 * found.low.sampled + found.low.trained))
    assert f"cost       {cost:,.2f} to " in found.report(config)
    words = ["--learner.name", "tinker", "--model.path", "no/such-model", "--train.iterations", "2"]
    assert main(["train", "demo-small", *words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "estimate of no/such-model at a server, 2 iterations, four bytes for a token" in said
    assert "set learner.price_prefill" in said
