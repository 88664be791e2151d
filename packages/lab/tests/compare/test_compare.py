from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from trailnotes.commands import main
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config, to_toml
from trailnotes.errors import ConfigError, RunError
from trailnotes.reporting.intervals import Interval
from trailnotes.runs.panels import EvaluatedModel, build_panel_result, write_evaluation
from trailnotes.types import Completion, Observation, Step, Task, Trajectory
from trailnotes_lab.compare import Comparison, compare_evaluations, compare_table, find_published_panel
from trailnotes_worlds.scienceworld.tasks import resolve_tasks, scienceworld_tasks

GOLDEN = Path(__file__).with_name("golden")
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
    out: Path, values: Callable[[Task], Sequence[float]] | float, *, config: Config | None = None,
    untrained: bool = False, player: str = "start", memory: bool = False, num: int = 20,
) -> Path:  # fmt: skip
    """An evaluation as the real writer writes it: for each test variation, `values` of the episodes played."""
    config = config or a_config()
    names = resolve_tasks(config.env.options["task"])
    chosen = [task for name in names for task in scienceworld_tasks("test", name)[:num]]
    returns = values if callable(values) else lambda _: [values]
    episodes = [episode(task, value) for task in chosen for value in returns(task)]
    subject = EvaluatedModel(f"models/{player}", player) if untrained else EvaluatedModel(
        f"{out}/checkpoints/step-1/model", "grpo", None, {"env_steps": 1000, "seconds": 60.0}, config
    )  # fmt: skip
    write_evaluation(out, config, subject, episodes, build_panel_result(episodes, config, subject, memory=memory))
    return out


def column(comparison: Comparison, label: str) -> Any:
    return next(column for column in comparison.columns if column.label == label)


def table(*places: Path | str) -> Comparison:
    return compare_table([str(place) for place in places])


def grpo(seed: int = 0, task: str | Sequence[str] = "find-animal", **sections: Any) -> Config:
    return a_config(task, seed, algorithm={"name": "grpo"}, **sections)


def test_two_seeds_by_hand(tmp_path: Path) -> None:
    """Seed 0 has 100 on half of the variations and -100 on the others, seed 1 has 50 on all: mean of 0 and 50.

    With one degree of freedom nothing can be said: the error of the seeds is 25, and 12.7 times that is off the scale.
    """
    evaluated(tmp_path / "0", lambda t: [100.0 if t.options["variation"] % 2 else -100.0], config=grpo(0))
    evaluated(tmp_path / "1", 50.0, config=grpo(1))
    cell = column(table(tmp_path / "0", tmp_path / "1"), "GRPO").cells["find-animal"]
    assert cell.estimate.on_panel == cell.estimate.beyond == Interval(25.0, -100.0, 100.0)
    assert (cell.num_seeds, cell.num_variations, cell.num_episodes) == (2, 20, 40)


def test_runs_of_several_tasks_are_drawn_as_a_whole(tmp_path: Path) -> None:
    """Run 0 has 0 and 100 on its two tasks, run 1 has 100 and 0: together always 50. As if independent: 0 to 100."""
    both = ["find-animal", "find-plant"]
    values = {(0, "find-animal"): 0.0, (0, "find-plant"): 100.0, (1, "find-animal"): 100.0, (1, "find-plant"): 0.0}
    for seed in (0, 1):
        evaluated(tmp_path / f"{seed}", lambda t, s=seed: [values[s, t.options["task"]]], config=grpo(seed, both))
        for task in both:
            evaluated(tmp_path / f"{seed}-{task}", values[seed, task], config=grpo(seed, task))
    whole = column(table(tmp_path / "0", tmp_path / "1"), "GRPO").mean.estimate
    parts = column(table(*(tmp_path / f"{seed}-{task}" for seed in (0, 1) for task in both)), "GRPO").mean.estimate
    assert whole.mean == parts.mean == 50.0
    # together: 12.706 times sqrt(5000 / 40 / 2), of single variations alone; apart: 4.303 times sqrt(2 * 2500) / 2
    assert whole.on_panel.low == pytest.approx(50 - 100.45, abs=0.01)
    assert parts.on_panel.low == -100.0


def test_the_published_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1, 2):
        evaluated(Path(f"grpo-{seed}"), 10.0 * seed, config=grpo(seed, optim={"lr": 10.0**-seed}), num=20 - seed)
    mixed = a_config("find-plant", algorithm={"name": "empo2", "mode_unit": "trajectory"})
    evaluated(Path("run/eval/plant"), 1.0, config=mixed, memory=True)
    evaluated(Path("start"), 3.0, untrained=True, config=a_config(["boil", "find-plant"], eval={"metric": "success"}))
    evaluated(Path("random"), 3.0, untrained=True, player="random")
    words = [*(f"grpo-{seed}" for seed in (0, 1, 2)), "run", "start", "random=GRPO,  a | b [red]", "run"]
    assert main(["compare", "table", *words, "--out", "out"]) == 0
    assert Path("out/table.md").read_text(encoding="utf-8") == (GOLDEN / "published.md").read_text(encoding="utf-8")
    (first, *_) = json.loads(Path("out/table.json").read_text(encoding="utf-8"))["ours"]
    assert (first["average"], first["mean_of_present"]["num_tasks"], first["num_runs"]) == (None, 1, 3)


def test_the_return_is_of_all_seeds_where_one_says_more_than_success(tmp_path: Path) -> None:
    for seed, value in enumerate((0.0, 0.6)):
        evaluated(tmp_path / f"{seed}", value, config=grpo(seed, eval={"metric": "success"}))
    (line,) = compare_evaluations([f"{tmp_path}/{seed}" for seed in (0, 1)]).lines
    assert (line.one_return and line.one_return.mean) == pytest.approx(0.3)
    assert compare_evaluations([f"{tmp_path}/0"]).lines[0].one_return is None


@pytest.mark.parametrize(
    ("words", "label"),
    [
        (["--preset", "paper-scienceworld"], "EMPO² as published"),
        (["--preset", "release-scienceworld"], "EMPO² as published"),
        (["--preset", "release-scienceworld", "--memory.order", '["score"]'], "EMPO² iteration"),
        (["--algorithm.name", "empo2", "--empo2.mode_unit", "iteration"], "EMPO² iteration"),
    ],
)
def test_the_label_of_empo2_says_whether_it_is_as_published(tmp_path: Path, words: list[str], label: str) -> None:
    env = ["--env.name", "scienceworld", "--env.options", '{task = "find-animal"}']
    evaluated(tmp_path / "run", 1.0, config=load_config(None, [*words, *env]))
    assert [each.label for each in table(tmp_path / "run").columns if each.cells] == [label]


def test_refused_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    evaluated(Path("a"), 1.0, config=grpo())
    evaluated(Path("b"), 2.0, config=grpo(eval={"metric": "return", "temperature": 1.0}))
    evaluated(Path("boil"), 1.0, config=grpo(task="boil"))
    evaluated(Path("high"), 101.0, config=grpo(1))
    Path("run").mkdir()
    Path("run/config.toml").write_text("")
    files = ("table.json", "eval.toml", "episodes.jsonl")
    for name in ("other", "cut", *files):
        evaluated(Path(name), 1.0, config=grpo(2))
    for name in files:
        (Path(name) / name).unlink()
    episodes = Path("cut/episodes.jsonl")
    episodes.write_bytes(b"".join(episodes.read_bytes().splitlines(keepends=True)[:7]))
    other = a_config(env={"name": "waymarks-simulator", "options": {}})
    Path("other/eval.toml").write_text(to_toml(other), encoding="utf-8")
    refused = {
        "a b": "a and b are both 'GRPO' on find-animal with seed 0", "boil": "boil has no task of the panel",
        "high": "the return 101", "run": "trailnotes eval run --out run/eval",
        "other": "other was played in waymarks-simulator", "cut": r"counts 20 episodes, episodes\.jsonl holds 7",
    }  # fmt: skip
    for runs, message in (refused | {name: f"there is no {name}" for name in files}).items():
        with pytest.raises(RunError, match=message):
            compare_table(runs.split(), panel="scienceworld-18")
    with pytest.raises(ConfigError, match="panel 'alfworld'"):
        compare_table(["a"], panel="alfworld")
    assert (find_published_panel(["boil"]), find_published_panel(["boil", "a"])) == ("", "scienceworld-18")
    command = ["compare", "table", "a", "--baseline", "GRPO", "--out", "out"]
    assert main(command) == 0
    assert json.loads(Path("out/table.json").read_text())["lines"], "no published rows beside a baseline"
    assert main([*command, "--panel", "scienceworld-18"]) == 2
