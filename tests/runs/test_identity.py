"""What a run and an evaluation record of what is played, and what is refused because it is not the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from small_shop import DOZEN
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import describe_training_overlap, load_panel
from trailnotes.errors import RunError
from trailnotes.runs.directory import RunDir
from trailnotes.runs.panels import EvaluatedModel, build_panel_result, write_evaluation
from trailnotes.types import Completion, Observation, Step, Trajectory
from trailnotes_lab.compare import compare_evaluations
from trailnotes_worlds.webshop.catalogue import write_catalogue
from trailnotes_worlds.webshop.env import open_cached_catalogue


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A catalogue on disk."""
    folder = tmp_path_factory.mktemp("catalogues") / "dozen"
    write_catalogue(folder, DOZEN.products)
    return str(folder)


def config_of(shop: str, seed: int = 0, **options: Any) -> Config:
    env = {"name": "webshop", "options": {"catalogue": shop, **options}}
    return Config(env=env, run={"seed": seed}, algorithm={"name": "grpo"})


def evaluated(out: Path, config: Config, trained: Config | None = None) -> Path:
    """An evaluation of its panel, as the real writer writes it."""
    step = Step(Observation("shop"), (), Completion((), (), (), "click[buy now]"), (), "click[buy now]", 1.0)
    episodes = [Trajectory(task, (step,), Observation("end"), "terminated", True, 1.0) for task in load_panel(config)]
    subject = EvaluatedModel(f"{out}/model", "grpo", None, {}, trained or config)
    write_evaluation(out, config, subject, episodes, build_panel_result(episodes, config, subject, memory=False))
    return out


def test_a_run_records_the_identity_of_what_it_plays(tmp_path: Path, shop: str) -> None:
    RunDir.open(tmp_path, config_of(shop)).close()
    identity = json.loads((tmp_path / "run.json").read_text())["environment"]
    assert (identity["protocol"], identity["catalogue"]) == ("by-product", open_cached_catalogue(shop).name)
    assert all(len(split["sha256"]) == 64 for split in identity["splits"].values())


def test_resume_on_other_data_is_refused(tmp_path: Path) -> None:
    folder, config = tmp_path / "shop", config_of(str(tmp_path / "shop"))
    write_catalogue(folder, DOZEN.products)
    with RunDir.open(tmp_path / "run", config) as run:
        run.append_metrics({"iteration": 0})
    RunDir.open(tmp_path / "run", config).close()
    shutil.rmtree(folder)
    open_cached_catalogue.cache_clear()
    RunDir.open(tmp_path / "run", config).close()  # without the data there is nothing to compare, and nothing is lost
    write_catalogue(folder, DOZEN.products[:-1])
    faster = config.model_copy(update={"env": config.env.model_copy(update={"num_workers": 3})})
    for again in (config, faster):
        with pytest.raises(RunError, match=r"a run of webshop with another catalogue.*: put the original data back"):
            RunDir.open(tmp_path / "run", again, allow_change=["env"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"view": "text_rich", "max_title": 40}, ""),
        ({"protocol": "verl-agent-small", "allow_leak": True}, r"protocol by-product and verl-agent-small, leaks"),
    ],
)
def test_a_table_is_of_one_protocol(tmp_path: Path, shop: str, change: dict[str, Any], text: str) -> None:
    one = evaluated(tmp_path / "one", config_of(shop))
    other = evaluated(tmp_path / "other", config_of(shop, seed=1, **change))
    if not text:
        (line,) = compare_evaluations([str(one), str(other)]).lines
        assert line.seeds == (0, 1)
        return
    with pytest.raises(RunError, match=rf"/one and .*/other are of two protocols \({text}.*one table is of one"):
        compare_evaluations([str(one), str(other)])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"dataset_seed": 1}, "dataset_seed, splits"),
        ({"goals": "synthetic", "compat": "original"}, "goals, splits, compat"),
    ],
)
def test_training_on_other_data_is_reported(shop: str, change: dict[str, Any], text: str) -> None:
    config = config_of(shop)
    for same in (config, config_of(shop, view="text_rich")):
        assert describe_training_overlap(config, same) == ""
    assert describe_training_overlap(config_of(shop, **change), config) == (
        f"the model was trained with another {text}: whether this panel is unseen cannot be told"
    )
