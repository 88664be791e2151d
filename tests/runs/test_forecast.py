"""Usage of a run that a dry run foretells, from a shrunk copy or for a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tinyrun import tiny_config
from trailnotes.commands import main
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.errors import ConfigError
from trailnotes.runs.dry_run import count_tokens, estimate_disk, estimate_iterations, report_hosted, shrink_config
from trailnotes.types import Completion, Observation, Step, Task, Trajectory
from trailnotes.web.ledger import TokenCount


def a_config(method: str = "grpo", **sections: Any) -> Config:
    return tiny_config(Path("model"), algorithm={"name": method}, **sections)


@pytest.mark.parametrize(
    ("train", "most"),
    [
        *(({"iterations": number}, number) for number in (3, 7, 49, 93, 103, 107, 161, 1234)),
        ({"iterations": 1000, "max_env_steps": 400}, 10),
        ({"iterations": 1000, "max_env_steps": 401}, 11),
        ({"iterations": 1000, "max_env_steps": 400, "max_tokens": 240}, 3),
    ],
)
def test_iterations_go_to_the_nearest_limit(train: dict[str, int], most: int) -> None:
    config = a_config(train={"max_env_steps": 0, "max_tokens": 0} | train)
    line = {"iteration": 0, "env_steps": 40, "tokens_generated": 80}
    assert estimate_iterations(config, line) == most


def small_run(path: Path, steps: int = 1) -> Path:
    """What the small copy of a run leaves: a model of 100 bytes, a learner of 112, and episodes of 7."""
    saved = path / "checkpoints" / "step-000001"
    sizes = {"model/weights": 90, "meta.json": 10, "learner.safetensors": 40, "learner.dcp/rank-0": 60}
    for name, size in sizes.items():
        (saved / name).parent.mkdir(parents=True, exist_ok=True)
        (saved / name).write_bytes(b"x" * size)
    (saved / "learner.json").write_text(f'{{"steps": {steps}}}')
    (path / "trajectories.jsonl").write_bytes(b"x" * 7)
    return path


def test_disk_of_checkpoints_and_episodes(tmp_path: Path) -> None:
    copy, kept = small_run(tmp_path), {"keep_last": 2, "eval_every": 0}
    assert estimate_disk(a_config(train=kept), copy, repeats=5) == (212 * (2 + 1) + 7 * 5, 212 * 2 + 7 * 5)
    watched = estimate_disk(a_config(train=kept | {"eval_every": 4}), copy, repeats=5)
    assert watched == (212 * (2 + 1 + 1) + 7 * 5, 212 * (2 + 1) + 7 * 5)


def test_disk_without_optimizer_state(tmp_path: Path) -> None:
    config = a_config(train={"keep_last": 2, "eval_every": 0, "keep_optimizer": False})
    assert estimate_disk(config, small_run(tmp_path), repeats=5) == (212 * (2 + 1) + 7 * 5, 100 * 2 + 7 * 5)
    assert shrink_config(config).train.keep_optimizer, "or nobody could tell what it takes"


# -- tokens and cost at a server


def count(*words: str, epochs: int = 1) -> TokenCount:
    """The tokens of an iteration of five episodes with answers of at most 8 tokens, to prompts of 10 and 20."""
    seen = Observation("here")
    steps = [Step(seen, (), Completion((0,) * size, (0,), (0.0,), "go"), (), "go", 0.0) for size in (10, 20)]
    rollout = ("--rollout.num_tasks", "1", "--rollout.group_size", "5", "--rollout.max_action_tokens", "8")
    words = (*rollout, "--optim.epochs", str(epochs), *words)
    return count_tokens(
        make_config(*words), [Trajectory(Task("task", "numbers"), tuple(steps), seen, "terminated", True, 1.0)]
    )


def make_config(*words: str) -> Config:
    settings = "--learner.name tinker --learner.price_prefill 0.5 --learner.price_sample 2 --learner.price_train 1"
    return load_config("demo-small", [*settings.split(), "--algorithm.name", "grpo", *words])


def test_an_iteration_by_hand() -> None:
    # 16 tokens are said, by half of which each of the two prompts is longer; the last context is 20 + 16 = 36
    assert count(epochs=3) == TokenCount(5 * (10 + 20 + 2 * 8), 5 * 16, 5 * 3 * 36)
    assert count("--optim.rows", "step") == TokenCount(5 * (10 + 20 + 2 * 8), 5 * 16, 5 * (10 + 20 + 2 * 8 + 16))


def test_a_dry_run_reports_tokens_and_money(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "demo-small", "--learner.name", "tinker", "--model.path", "no/such-model", "--dry-run"]
    words += ["--train.max_env_steps", "0", "--train.iterations", "7"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "estimate of no/such-model at a server, 7 iterations" in text
    assert "set learner.price_prefill" in text
    tokens = sum(int(line.split()[1].replace(",", "")) for line in text.splitlines()[1:4])
    assert main([*words, "--learner.max_tokens_total", str(3 * tokens)]) == 0
    assert "3 iterations" in capsys.readouterr().out
    assert main([*words, "--learner.max_tokens_total", str(tokens - 1)]) == 2
    assert main([*words, "--learner.price_train", "1000000"]) == 0
    trained, cost = (float(line.split()[-3 if "the run" in line else -1].replace(",", "")) for line in
                     capsys.readouterr().out.splitlines()[-3::2])  # fmt: skip
    assert trained == cost


def test_a_dry_run_says_that_no_prompt_fits() -> None:
    with pytest.raises(ConfigError, match="max_context_tokens"):
        report_hosted(make_config("--rollout.max_context_tokens", "9", "--rollout.max_action_tokens", "4"))
