from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tinyrun import tiny_config
from trailnotes.config.schema import Config
from trailnotes.config.toml import diff_configs
from trailnotes.runs.estimate.forecast import estimate_disk, estimate_iterations, shrink_config


def a_config(method: str = "grpo", **sections: Any) -> Config:
    return tiny_config(Path("model"), algorithm={"name": method}, **sections)


@pytest.mark.parametrize(
    ("train", "most"),
    [
        ({"iterations": 1000}, 1000),
        ({"iterations": 1000, "max_env_steps": 400}, 10),
        ({"iterations": 1000, "max_env_steps": 401}, 11),
        ({"iterations": 7, "max_env_steps": 400}, 7),
        ({"iterations": 1000, "max_env_steps": 400, "max_tokens": 240}, 3),
    ],
)
def test_iterations_go_to_the_nearest_limit(train: dict[str, int], most: int) -> None:
    config = a_config(train={"max_env_steps": 0, "max_tokens": 0} | train)
    line = {"iteration": 0, "env_steps": 40, "tokens_generated": 80}
    assert estimate_iterations(config, line) == most


@pytest.mark.parametrize("number", [3, 7, 49, 93, 103, 107, 161, 1234])
def test_a_limit_of_iterations_is_met_exactly(number: int) -> None:
    assert estimate_iterations(a_config(train={"iterations": number, "max_env_steps": 0}), {"env_steps": 1}) == number


def test_a_small_training_run_is_one_iteration_of_the_same() -> None:
    config = a_config(train={"iterations": 9, "eval_every": 1})
    assert diff_configs(config, shrink_config(config)) == ["run.name", "train.iterations"]


def small_run(path: Path, steps: int = 1) -> Path:
    """What the small copy of a run leaves: a model of 100 bytes, a learner of 112, and episodes of 7."""
    saved = path / "checkpoints" / "step-000001"
    for name, size in {
        "model/weights": 90,
        "meta.json": 10,
        "learner.safetensors": 40,
        "learner.dcp/rank-0": 60,
    }.items():
        (saved / name).parent.mkdir(parents=True, exist_ok=True)
        (saved / name).write_bytes(b"x" * size)
    (saved / "learner.json").write_text(f'{{"steps": {steps}}}')
    (path / "trajectories.jsonl").write_bytes(b"x" * 7)
    return path


def test_the_disk_holds_what_is_kept_one_more_while_it_is_written_and_all_episodes(tmp_path: Path) -> None:
    copy, kept = small_run(tmp_path), {"keep_last": 2, "eval_every": 0}
    assert estimate_disk(a_config(train=kept), copy, repeats=5) == (212 * (2 + 1) + 7 * 5, 212 * 2 + 7 * 5)
    watched = estimate_disk(a_config(train=kept | {"eval_every": 4}), copy, repeats=5)
    assert watched == (212 * (2 + 1 + 1) + 7 * 5, 212 * (2 + 1) + 7 * 5)


def test_a_run_that_drops_its_optimizer_takes_less_once_it_has_ended(tmp_path: Path) -> None:
    config = a_config(train={"keep_last": 2, "eval_every": 0, "keep_optimizer": False})
    assert estimate_disk(config, small_run(tmp_path), repeats=5) == (212 * (2 + 1) + 7 * 5, 100 * 2 + 7 * 5)
    assert shrink_config(config).train.keep_optimizer, "or nobody could tell what it takes"


def test_an_optimizer_that_took_no_step_yet_will_hold_two_moments_of_each_weight(tmp_path: Path) -> None:
    copy, config = small_run(tmp_path, steps=0), a_config(train={"keep_last": 1, "eval_every": 0})
    assert estimate_disk(config, copy, repeats=0).kept == 100 + 3 * 112
