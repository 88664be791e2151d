from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from trailnotes import plots
from trailnotes.cli import main
from trailnotes.compare import Comparison, compare_table
from trailnotes.compare.evaluations import collect, find, split_label
from trailnotes.compare.page import Footnotes, to_markdown
from trailnotes.config import Config
from trailnotes.configio import to_toml
from trailnotes.envs.scienceworld_tasks import PAPER_PANEL, scienceworld_tasks
from trailnotes.errors import ConfigError, RunError
from trailnotes.evaluation import Subject, panel_result, write_evaluation
from trailnotes.stats import bootstrap
from trailnotes.types import Completion, Observation, Step, Task, Trajectory

QWEN = "hub/Qwen2.5-7B-Instruct"
PAPER = {"action_correction": "jaccard"}  # the one option whose default is not the release's


def a_config(task: str | Sequence[str] = "find-animal", seed: int = 0, **sections: Any) -> Config:
    """The paper's protocol on one task, but for what is given."""
    env = {"name": "scienceworld", "options": PAPER | {"task": task}}
    base: dict[str, Any] = {"model": {"path": QWEN}, "env": env, "run": {"seed": seed}, "eval": {"metric": "return"}}
    return Config(**base | {name: base.get(name, {}) | values for name, values in sections.items()})


def episode(task: Task, value: float) -> Trajectory:
    steps = (Step(Observation("room"), (), Completion((), (), (), "wait"), (), "wait", value),)
    return Trajectory(task, steps, Observation("end"), "terminated", value == 100, value, 100.0)


def evaluated(
    out: Path,
    values: Callable[[Task], Sequence[float]] | float,
    *,
    config: Config | None = None,
    trained: Config | None = None,
    untrained: bool = False,
    memory: bool = False,
    num: int = 20,
) -> Path:
    """An evaluation as the real writer writes it: for each test variation, `values` of the episodes played."""
    config = config or a_config()
    tasks = scienceworld_tasks("test", config.env.options["task"])
    chosen = [task for task in tasks if int(task.id.rpartition("/")[2]) < num + tasks[0].options["variation"]]
    returns = values if callable(values) else lambda _: [values]
    episodes = [episode(task, value) for task in chosen for value in returns(task)]
    subject = Subject("models/start", "start") if untrained else Subject(
        f"{out}/checkpoints/step-1/model", "grpo", None, {"env_steps": 1000, "seconds": 60.0}, trained or config
    )  # fmt: skip
    write_evaluation(out, config, subject, episodes, panel_result(episodes, config, subject, memory=memory))
    return out


def column(comparison: Comparison, label: str) -> Any:
    return next(column for column in comparison.columns if column.label == label)


def table(*places: Path | str) -> Comparison:
    return compare_table([str(place) for place in places])


def grpo(seed: int = 0, task: str | Sequence[str] = "find-animal", **sections: Any) -> Config:
    return a_config(task, seed, algorithm={"name": "grpo"}, **sections)


# -- numbers


def test_two_seeds_by_hand(tmp_path: Path) -> None:
    """Seed 0 has 100 on half of the variations and -100 on the others, seed 1 has 50 on all: mean of 0 and 50."""
    evaluated(tmp_path / "0", lambda t: [100.0 if t.options["variation"] % 2 else -100.0], config=grpo(0))
    evaluated(tmp_path / "1", 50.0, config=grpo(1))
    cell = column(table(tmp_path / "0", tmp_path / "1"), "GRPO").cells["find-animal"]
    assert cell.interval.mean == 25.0
    assert (cell.num_seeds, cell.num_variations, cell.num_episodes) == (2, 20, 40)
    values = [100.0 if v % 2 else -100.0 for v in range(225, 245)] + [50.0] * 20
    expected = bootstrap(values, [[0] * 20 + [1] * 20, [*range(20), *range(20)]])
    assert cell.interval == expected
    assert expected.low < 0.0, "a draw of seed 0 twice is not rare"
    assert expected.high == 50.0, "seed 1 twice is one draw of four"


def test_samples_of_a_variation_weigh_as_one_variation(tmp_path: Path) -> None:
    """Variation 225 was played four times at 80, the other once at 0: their means are 80 and 0."""
    evaluated(tmp_path / "0", lambda t: [80.0] * 4 if t.options["variation"] == 225 else [0.0], config=grpo(), num=2)
    cell = column(table(tmp_path / "0"), "GRPO").cells["find-animal"]
    assert cell.interval.mean == 40.0
    assert (cell.interval.low, cell.interval.high) == (0.0, 80.0)
    assert (cell.num_seeds, cell.num_variations, cell.num_episodes) == (1, 2, 5)


def test_a_mean_of_fewer_tasks_is_never_the_average(tmp_path: Path) -> None:
    evaluated(tmp_path / "a", 30.0, config=grpo(task="find-animal"))
    evaluated(tmp_path / "b", 60.0, config=grpo(task="find-plant"))
    comparison = table(tmp_path / "a", tmp_path / "b")
    record = json.loads(json.dumps(data(comparison, tmp_path)))
    (ours,) = record["ours"]
    assert ours["average"] is None
    assert ours["mean_of_present"]["mean"] == 45.0
    assert ours["mean_of_present"]["num_tasks"] == 2
    lines = to_markdown(comparison).splitlines()
    (average,) = [line for line in lines if "average of all 18 tasks" in line]
    assert cells_of(average) == ["**average of all 18 tasks**", "-", "-61.3", "17.1", "33.8", "33.2", "75.9"]
    (present,) = [line for line in lines if "no average of the panel" in line]
    assert cells_of(present)[1] == "45.0 [45.0, 45.0] 1·40·40, of 2 tasks"
    assert cells_of(present)[2:] == ["-"] * 5, "never beside the published mean of 18"


def test_all_eighteen_tasks_have_the_average_of_their_rows(tmp_path: Path) -> None:
    for index, task in enumerate(PAPER_PANEL):
        evaluated(tmp_path / f"{index}", float(index), config=grpo(task=task))
    comparison = table(*sorted(tmp_path.iterdir()))
    (ours,) = data(comparison, tmp_path)["ours"]
    assert ours["average"]["mean"] == sum(range(18)) / 18 == 8.5
    assert (ours["average"]["low"], ours["average"]["high"]) == (8.5, 8.5), "the tasks are the panel, not a sample"
    text = to_markdown(comparison)
    assert "| **average of all 18 tasks** | 8.5 [8.5, 8.5] 1·" in text
    assert "no average of the panel" not in text


def test_rows_are_in_the_papers_order_under_its_short_names(tmp_path: Path) -> None:
    evaluated(tmp_path / "a", 30.0, config=grpo(task="lifespan-longest-lived"))
    rows = [cells_of(line) for line in to_markdown(table(tmp_path / "a")).splitlines() if line.startswith("| ") and "---" not in line]
    names = [row[0] for row in rows]
    assert names[:5] == ["task", "*model*", "*protocol*", "chemistry-mix", "chemistry-mix-paint-secondary"]
    assert names[20] == "use-thermometer"
    longest = rows[names.index("lifespan-longest")]
    assert longest == ["lifespan-longest", "30.0 [30.0, 30.0] 1·20·20", "-51.8 ± 64.8", "44.6 ± 6.5", "55.0 ± 15.0",
                       "78.2 ± 7.3", "100.0 ± 0.0"]  # fmt: skip
    assert rows[names.index("find-animal")][1] == "-"


def test_runs_of_several_tasks_are_drawn_as_a_whole(tmp_path: Path) -> None:
    """Run 0 has 0 and 100 on its two tasks, run 1 has 100 and 0: together always 50. As if independent: 0 to 100."""
    both = ["find-animal", "find-plant"]
    values = {(0, "find-animal"): 0.0, (0, "find-plant"): 100.0, (1, "find-animal"): 100.0, (1, "find-plant"): 0.0}
    for seed in (0, 1):
        evaluated(tmp_path / f"{seed}", lambda t, s=seed: [values[s, t.options["task"]]], config=grpo(seed, both))
        for task in both:
            evaluated(tmp_path / f"{seed}-{task}", values[seed, task], config=grpo(seed, task))
    whole = column(table(tmp_path / "0", tmp_path / "1"), "GRPO").mean.interval
    assert (whole.mean, whole.low, whole.high) == (50.0, 50.0, 50.0)
    parts = column(table(*(tmp_path / f"{seed}-{task}" for seed in (0, 1) for task in both)), "GRPO").mean.interval
    assert (parts.mean, parts.low, parts.high) == (50.0, 0.0, 100.0)


def data(comparison: Comparison, tmp_path: Path) -> Any:
    from trailnotes.compare.page import to_json

    return json.loads(to_json(comparison))


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]
