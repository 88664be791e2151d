"""The tokens and the cost of a run at a server, told before it begins."""

from __future__ import annotations

import pytest

from trailnotes.commands import main
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.runs.estimate.hosted import count_tokens
from trailnotes.types import Completion, Observation, Step, Task, Trajectory
from trailnotes.web.ledger import TokenCount

OFF = ("--loss.kl", "0", "--loss.dual_clip", "0")


def count(*words: str, epochs: int = 1) -> TokenCount:
    """The tokens of an iteration of five episodes with answers of at most 8 tokens, to prompts of 10 and 20."""
    seen = Observation("here")
    steps = [Step(seen, (), Completion((0,) * size, (0,), (0.0,), "go"), (), "go", 0.0) for size in (10, 20)]
    rollout = ("--rollout.num_tasks", "1", "--rollout.group_size", "5", "--rollout.max_action_tokens", "8")
    words = (*rollout, "--optim.epochs", str(epochs), *words)
    return count_tokens(
        make_config(*words),
        [Trajectory(Task("task", "numbers"), tuple(steps), seen, "terminated", True, 1.0)],
    )


def make_config(*words: str) -> Config:
    settings = "--learner.name tinker --learner.price_prefill 0.5 --learner.price_sample 2 --learner.price_train 1"
    return load_config("demo-small", [*settings.split(), "--algorithm.name", "grpo", *words])


def test_an_iteration_by_hand() -> None:
    # 16 tokens are said, by half of which each of the two prompts is longer; the last context is 20 + 8 + 16 = 44
    plain = count(*OFF, epochs=3)
    assert plain == TokenCount(5 * (10 + 20 + 2 * 8), 5 * 16, 5 * 3 * 44)


def test_what_the_loss_and_the_memory_take_besides() -> None:
    plain, clipped = count(*OFF), count("--loss.kl", "0")
    held = count("--loss.kl", "0.1")
    assert clipped.prefilled - plain.prefilled == 5 * 44  # the dual bound is sent by its gradient: one forward pass
    assert held.prefilled - clipped.prefilled == 5 * 44  # the start model scores each row
    tips = count(*OFF, "--algorithm.name", "empo2", "--empo2.p_memory", "0")
    assert (tips.prefilled - plain.prefilled, tips.sampled - plain.sampled) == (5 * 44, 5 * 16)  # all write
    assert plain.trained == clipped.trained == held.trained == tips.trained == 5 * 44


def test_a_dry_run_reports_tokens_and_money(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "demo-small", "--learner.name", "tinker", "--model.path", "no/such-model", "--dry-run"]
    words += ["--train.max_env_steps", "0", "--train.iterations", "7"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "estimate of no/such-model at a server, 7 iterations" in said
    assert "set learner.price_prefill" in said
    assert main([*words, "--learner.price_train", "1000000"]) == 0
    trained, cost = (float(line.split()[-3 if "the run" in line else -1].replace(",", "")) for line in
                     capsys.readouterr().out.splitlines()[-2:])  # fmt: skip
    assert trained == cost
