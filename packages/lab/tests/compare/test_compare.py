from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from trailnotes.commands import main
from trailnotes.config.schema import Config
from trailnotes.config.toml import to_toml
from trailnotes.errors import ConfigError, RunError
from trailnotes.reporting.intervals import Interval
from trailnotes.runs.panels import EvaluatedModel, build_panel_result, write_evaluation
from trailnotes.types import Completion, Observation, Step, Task, Trajectory
from trailnotes_lab.compare import Comparison, compare_table
from trailnotes_lab.compare.evaluations import find_evaluations, split_label
from trailnotes_lab.compare.published.figures import PUBLISHED_PANELS
from trailnotes_lab.compare.published.page import to_json, to_markdown
from trailnotes_worlds.scienceworld.tasks import PAPER_PANEL, resolve_tasks, scienceworld_tasks

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
    player: str = "start",
    memory: bool = False,
    num: int = 20,
) -> Path:
    """An evaluation as the real writer writes it: for each test variation, `values` of the episodes played."""
    config = config or a_config()
    names = resolve_tasks(config.env.options["task"])
    chosen = [task for name in names for task in scienceworld_tasks("test", name)[:num]]
    returns = values if callable(values) else lambda _: [values]
    episodes = [episode(task, value) for task in chosen for value in returns(task)]
    subject = EvaluatedModel(f"models/{player}", player) if untrained else EvaluatedModel(
        f"{out}/checkpoints/step-1/model", "grpo", None, {"env_steps": 1000, "seconds": 60.0}, trained or config
    )  # fmt: skip
    write_evaluation(out, config, subject, episodes, build_panel_result(episodes, config, subject, memory=memory))
    return out


def column(comparison: Comparison, label: str) -> Any:
    return next(column for column in comparison.columns if column.label == label)


def table(*places: Path | str) -> Comparison:
    return compare_table([str(place) for place in places])


def grpo(seed: int = 0, task: str | Sequence[str] = "find-animal", **sections: Any) -> Config:
    return a_config(task, seed, algorithm={"name": "grpo"}, **sections)


# -- numbers


def test_two_seeds_by_hand(tmp_path: Path) -> None:
    """Seed 0 has 100 on half of the variations and -100 on the others, seed 1 has 50 on all: mean of 0 and 50.

    With one degree of freedom nothing can be said: the error of the seeds is 25, and 12.7 times that is off the scale.
    """
    evaluated(tmp_path / "0", lambda t: [100.0 if t.options["variation"] % 2 else -100.0], config=grpo(0))
    evaluated(tmp_path / "1", 50.0, config=grpo(1))
    cell = column(table(tmp_path / "0", tmp_path / "1"), "GRPO").cells["find-animal"]
    assert cell.estimate.on_panel == cell.estimate.beyond == Interval(25.0, -100.0, 100.0)
    assert (cell.num_seeds, cell.num_variations, cell.num_episodes) == (2, 20, 40)


def test_one_seed_has_an_interval_of_its_variations(tmp_path: Path) -> None:
    """Half of 20 variations at 100, half at 0: the error is 50 / sqrt 19, times 2.093."""
    evaluated(tmp_path / "0", lambda t: [100.0 * (t.options["variation"] % 2)], config=grpo())
    estimate = column(table(tmp_path / "0"), "GRPO").cells["find-animal"].estimate
    assert (estimate.mean, estimate.on_panel, estimate.not_on_panel) == (50.0, None, "one seed")
    assert (estimate.beyond.low, estimate.beyond.high) == pytest.approx((50 - 24.008, 50 + 24.008), abs=1e-3)


def test_a_copy_of_a_run_narrows_nothing_and_variations_are_drawn_once_for_all_seeds(tmp_path: Path) -> None:
    for seed in range(4):
        evaluated(tmp_path / f"{seed}", lambda t: [100.0 * (t.options["variation"] % 2)], config=grpo(seed))
    one, four = (column(table(*places), "GRPO") for places in ([tmp_path / "0"], sorted(tmp_path.iterdir())))
    for first, again in ((one.cells["find-animal"], four.cells["find-animal"]), (one.mean, four.mean)):
        assert again.estimate.beyond == first.estimate.beyond
        assert (again.estimate.on_panel, again.estimate.not_on_panel) == (None, "all seeds alike")


def test_few_variations_have_an_interval_on_the_panel_alone_and_it_says_so(tmp_path: Path) -> None:
    for seed, value in enumerate((10.0, 20.0, 30.0)):
        evaluated(tmp_path / f"{seed}", value, config=grpo(seed), num=3)
    comparison = table(*sorted(tmp_path.iterdir()))
    estimate = column(comparison, "GRPO").cells["find-animal"].estimate
    assert (estimate.beyond, estimate.not_beyond) == (None, "3 of 10 variations")
    assert "20.0 on panel [-4.8, 44.8] 3·3·9" in to_markdown(comparison)  # 10 / sqrt 3, times 4.303


def test_variations_that_not_every_seed_has_played_are_left_out_and_named(tmp_path: Path) -> None:
    evaluated(tmp_path / "0", lambda t: [float(t.options["variation"] == 244)], config=grpo(0))
    evaluated(tmp_path / "1", 0.0, config=grpo(1), num=19)
    comparison = table(tmp_path / "0", tmp_path / "1")
    assert column(comparison, "GRPO").cells["find-animal"].estimate.mean == 0.0
    assert "GRPO: find-animal: of the variations that every seed has played; others are left out." in comparison.notes


def test_samples_of_a_variation_weigh_as_one_variation(tmp_path: Path) -> None:
    """Variation 225 was played four times at 80, the other once at 0: their means are 80 and 0."""
    evaluated(tmp_path / "0", lambda t: [80.0] * 4 if t.options["variation"] == 225 else [0.0], config=grpo(), num=2)
    cell = column(table(tmp_path / "0"), "GRPO").cells["find-animal"]
    assert (cell.estimate.mean, cell.estimate.on_panel, cell.estimate.beyond) == (40.0, None, None)
    assert (cell.num_seeds, cell.num_variations, cell.num_episodes) == (1, 2, 5)


def test_a_mean_of_fewer_tasks_is_never_the_average(tmp_path: Path) -> None:
    evaluated(tmp_path / "a", 30.0, config=grpo(task="find-animal"))
    evaluated(tmp_path / "b", 60.0, config=grpo(task="find-plant"))
    comparison = table(tmp_path / "a", tmp_path / "b")
    (ours,) = data(comparison)["ours"]
    assert ours["average"] is None
    assert ours["mean_of_present"]["mean"] == 45.0
    assert ours["mean_of_present"]["num_tasks"] == 2
    lines = to_markdown(comparison).splitlines()
    (average,) = [line for line in lines if "average of all 18 tasks" in line]
    assert cells_of(average) == ["**average of all 18 tasks**", "-", "-61.3", "17.1", "33.8", "33.2", "75.9"]
    (present,) = [line for line in lines if "not an average of the panel" in line]
    assert cells_of(present)[1] == "45.0 no interval 1·40·40, of 2 tasks"
    assert cells_of(present)[2:] == ["-"] * 5, "never beside the published mean of 18"


def test_all_eighteen_tasks_have_the_average_of_their_rows(tmp_path: Path) -> None:
    for index, task in enumerate(PAPER_PANEL):
        evaluated(tmp_path / f"{index}", float(index), config=grpo(task=task))
    comparison = table(*sorted(tmp_path.iterdir()))
    (ours,) = data(comparison)["ours"]
    assert ours["average"]["mean"] == sum(range(18)) / 18 == 8.5
    assert ours["average"]["not_beyond"] == "nothing varied", "the tasks are the panel, not a sample"
    text = to_markdown(comparison)
    assert "| **average of all 18 tasks** | 8.5 no interval 1·" in text
    assert "not an average of the panel" not in text


def test_rows_are_in_the_papers_order_under_its_short_names(tmp_path: Path) -> None:
    evaluated(tmp_path / "a", 30.0, config=grpo(task="lifespan-longest-lived"))
    rows = [
        cells_of(line)
        for line in to_markdown(table(tmp_path / "a")).splitlines()
        if line.startswith("| ") and "---" not in line
    ]
    names = [row[0] for row in rows]
    assert names[:5] == ["task", "*model*", "*protocol*", "chemistry-mix", "chemistry-mix-paint-secondary"]
    assert names[20] == "use-thermometer"
    longest = rows[names.index("lifespan-longest")]
    assert longest == ["lifespan-longest", "30.0 no interval 1·20·20", "-51.8 ± 64.8", "44.6 ± 6.5", "55.0 ± 15.0",
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
    whole = column(table(tmp_path / "0", tmp_path / "1"), "GRPO").mean.estimate
    parts = column(table(*(tmp_path / f"{seed}-{task}" for seed in (0, 1) for task in both)), "GRPO").mean.estimate
    assert whole.mean == parts.mean == 50.0
    # together: 12.706 times sqrt(5000 / 40 / 2), of single variations alone; apart: 4.303 times sqrt(2 * 2500) / 2
    assert whole.on_panel.low == pytest.approx(50 - 100.45, abs=0.01)
    assert parts.on_panel.low == -100.0


def data(comparison: Comparison) -> Any:
    return json.loads(to_json(comparison))


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


# -- columns


@pytest.mark.parametrize(
    ("algorithm", "memory", "label"),
    [
        ({"name": "grpo"}, {}, "GRPO"),
        ({"name": "empo2", "mode_unit": "trajectory"}, {}, "EMPO² mixed"),
        ({"name": "empo2", "mode_unit": "iteration"}, {}, "EMPO² iteration"),
        (
            {"name": "empo2", "mode_unit": "iteration"},
            {"duplicates": "reject", "order": ["score"]},
            "EMPO² as published",
        ),
    ],
)
def test_a_column_is_named_after_its_method(
    algorithm: dict[str, Any], memory: dict[str, Any], label: str, tmp_path: Path
) -> None:
    config = a_config(algorithm=algorithm, memory=memory)
    evaluated(tmp_path / "plain", 1.0, config=config)
    evaluated(tmp_path / "tips", 2.0, config=config, memory=True)
    evaluated(tmp_path / "start", 3.0, untrained=True)
    evaluated(tmp_path / "random", 3.0, untrained=True, player="random")
    comparison = table(*(tmp_path / name for name in ("plain", "tips", "start", "random")))
    assert [c.label for c in comparison.columns] == [label, f"{label}, with tips", "start model", "random"]
    assert f"{label}, with tips: not the published protocol: tips with, not without." in comparison.notes
    assert "| start model |" not in to_markdown(comparison), "a model that came from no run has no training cost"


def test_a_label_makes_a_column_of_its_own(tmp_path: Path) -> None:
    evaluated(tmp_path / "a", 1.0, config=grpo(0))
    evaluated(tmp_path / "b", 2.0, config=grpo(0))
    comparison = table(tmp_path / "a", f"{tmp_path}/b=GRPO,  a | b [red]")
    assert [c.label for c in comparison.columns] == ["GRPO", "GRPO, a | b [red]"]
    assert "| ours: GRPO, a \\| b [red] |" in to_markdown(comparison)


def test_a_directory_with_an_equals_sign_in_its_name_is_one(tmp_path: Path) -> None:
    (tmp_path / "lr=3").mkdir()
    assert split_label(f"{tmp_path}/lr=3") == (tmp_path / "lr=3", "")
    assert split_label(f"{tmp_path}/lr=3=tuned") == (tmp_path / "lr=3", "tuned")
    with pytest.raises(ConfigError, match="the label after = is empty"):
        split_label("somewhere= ")


def test_a_run_stands_for_the_evaluations_at_and_below_its_eval(tmp_path: Path) -> None:
    evaluated(tmp_path / "run" / "eval" / "plant", 10.0, config=grpo(task="find-plant"))
    evaluated(tmp_path / "run" / "eval", 20.0, config=grpo(task="find-animal"))
    assert find_evaluations(tmp_path / "run") == [tmp_path / "run" / "eval", tmp_path / "run" / "eval" / "plant"]
    (only,) = table(tmp_path / "run").columns
    assert {task: cell.estimate.mean for task, cell in only.cells.items()} == {"find-animal": 20.0, "find-plant": 10.0}


def test_costs_are_those_of_a_training_run(tmp_path: Path) -> None:
    for seed in (0, 1):
        evaluated(tmp_path / f"{seed}", 1.0, config=grpo(seed))
    text = to_markdown(table(tmp_path / "0", tmp_path / "1"))
    assert "| GRPO | 2 | 1,000 | 0 | 0 | 60 |" in text


# -- what is not comparable


def remarks(comparison: Comparison) -> list[str]:
    return [note.partition("protocol: ")[2] for note in comparison.notes if "not the published protocol" in note]


def test_the_papers_protocol_has_no_remark(tmp_path: Path) -> None:
    for task in ("find-animal", "identify-life-stages-2", "power-component"):  # the last two have fewer variations
        evaluated(tmp_path / task, 1.0, config=grpo(task=task))
    comparison = table(*tmp_path.iterdir())
    assert remarks(comparison) == []
    (only,) = comparison.columns
    assert only.model == QWEN
    assert only.protocol == "4 to 5 train variations, 4 to 20 test variations, 30 steps, temperature 0.4, without tips"


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"model": {"path": "models/small"}}, "model models/small, not Qwen2.5-7B-Instruct"),
        ({"eval": {"temperature": 1.0}}, "temperature 1.0, not 0.4"),
        ({"rollout": {"max_steps": 12}}, "steps 12, not 30"),
        ({"rollout": {"max_action_tokens": 16}}, "max action tokens 16, not 32"),
        ({"rollout": {"max_context_tokens": 1000}}, "max context tokens 1000, not 4500"),
        ({"env": {"options": {"max_steps": 20}}}, "steps 20, not 30"),
        ({"env": {"options": {"score": "floor0"}}}, "score floor0, not raw"),
        ({"env": {"options": {"simplification": "none"}}}, "simplification none, not easy"),
        ({"env": {"options": {"simplification": ""}}}, "simplification none, not easy"),
        ({"env": {"options": {"simplification": "teleportAction,openDoors,selfWateringFlowerPots,noElectricalAction"}}},
         None),
        ({"env": {"options": {"action_correction": "exact"}}}, "action correction exact, not jaccard"),
    ],
)  # fmt: skip
def test_each_departure_from_the_protocol_is_said(sections: dict[str, Any], said: str | None, tmp_path: Path) -> None:
    options = sections.get("env", {}).get("options")
    sections = sections | ({"env": {"options": PAPER | {"task": "find-animal"} | options}} if options else {})
    evaluated(tmp_path / "a", 1.0, config=grpo(**sections))
    comparison = table(tmp_path / "a")
    assert remarks(comparison) == ([f"{said}."] if said else [])


def test_a_table_imports_no_environment_of_a_run(tmp_path: Path) -> None:
    evaluated(tmp_path / "else", 1.0, config=grpo(0), trained=grpo(0, env={"name": "no_such:Env", "options": {}}))
    assert table(tmp_path / "else").columns[0].protocol.startswith("0 train variations")


def test_limits_of_the_pooling_are_noted(tmp_path: Path) -> None:
    evaluated(tmp_path / "a", 1.0, config=grpo(0))
    evaluated(tmp_path / "b", 1.0, config=grpo(1, optim={"lr": 1e-4}))
    evaluated(tmp_path / "c", 1.0, config=grpo(0, "find-plant"))
    notes = table(tmp_path / "a", tmp_path / "b", tmp_path / "c").notes
    assert [note for note in notes if note.startswith("GRPO: its runs differ")] == [
        "GRPO: its runs differ in optim.lr, and are pooled all the same."
    ]
    assert any("of variations alone" in note for note in notes), "find-plant has one seed"
    assert table(tmp_path / "a", f"{tmp_path}/a=twin").notes == (f"{tmp_path}/a was given twice and is counted once.",
        *[note for note in notes if "of variations alone" in note])  # fmt: skip


def test_columns_of_other_tasks_are_not_to_be_compared_by_their_means(tmp_path: Path) -> None:
    evaluated(tmp_path / "a", 1.0, config=grpo(0))
    evaluated(tmp_path / "b", 1.0, config=a_config("find-plant"))
    notes = table(tmp_path / "a", tmp_path / "b").notes
    assert "The columns do not hold the same tasks: compare them row by row, not by their means." in notes


# -- faults


def test_the_same_run_in_two_places_is_refused(tmp_path: Path) -> None:
    evaluated(tmp_path / "a", 1.0, config=grpo(0))
    evaluated(tmp_path / "b", 2.0, config=grpo(0, eval={"metric": "return", "temperature": 1.0}))
    with pytest.raises(RunError, match=r"/a and .*/b are both 'GRPO' on find-animal with seed 0: leave one out, or"):
        table(tmp_path / "a", tmp_path / "b")


def test_a_run_that_was_not_evaluated_is_told_how(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(RunError, match=f"trailnotes eval {tmp_path} --out {tmp_path}/eval"):
        table(tmp_path)


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds neither a run nor an evaluation"):
        table(tmp_path)
    with pytest.raises(RunError, match="absent is not a directory"):
        table(tmp_path / "absent")
    with pytest.raises(ConfigError, match="unknown panel 'alfworld': use scienceworld-18"):
        compare_table([str(tmp_path)], panel="alfworld")
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare_table([])


@pytest.mark.parametrize("name", ["table.json", "eval.toml", "episodes.jsonl"])
def test_an_evaluation_that_lacks_a_file_is_named(name: str, tmp_path: Path) -> None:
    evaluated(tmp_path, 1.0)
    (tmp_path / name).unlink()
    with pytest.raises(RunError, match=f"is not a whole evaluation .there is no {name}.: evaluate again"):
        table(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("table.json", '{"rows": [{"algo'),
        ("table.json", "[]"),
        ("table.json", '{"rows": []}'),
        ("table.json", '{"rows": [{"metric": "return"}]}'),
        ("panel.json", "{}"),
        ("panel.json", "\xff"),
        ("episodes.jsonl", '{"return": null, "task": {"id": "a", "env": "b"}}\n'),
        ("episodes.jsonl", '{"return": true, "task": {"id": "a", "env": "b"}}\n'),
        ("episodes.jsonl", '{"return": 1.0, "task": {"id": "", "env": "b"}}\n'),
        ("episodes.jsonl", "nonsense\n"),
        ("episodes.jsonl", ""),
        ("eval.toml", "[env"),
        ("trained.toml", "no_such_key = 1"),
    ],
)
def test_a_damaged_evaluation_is_one_line(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(tmp_path / "a", 1.0)
    (tmp_path / "a" / name).write_text(text, encoding="latin-1")
    assert main(["compare", "table", str(tmp_path / "a"), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("trailnotes: ")
    assert error.count("\n") == 1
    assert str(tmp_path / "a") in error
    assert not (tmp_path / "out").exists()


def test_a_cut_file_of_episodes_is_noticed(tmp_path: Path) -> None:
    evaluated(tmp_path, 1.0)
    file = tmp_path / "episodes.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:7]))
    with pytest.raises(RunError, match=r"table\.json counts 20 episodes, episodes\.jsonl holds 7"):
        table(tmp_path)


def test_another_environment_is_refused(tmp_path: Path) -> None:
    evaluated(tmp_path, 1.0)
    other = a_config(env={"name": "waymarks-simulator", "options": {}})
    (tmp_path / "eval.toml").write_text(to_toml(other), encoding="utf-8")
    with pytest.raises(RunError, match="played in waymarks-simulator, but the panel is one of scienceworld"):
        table(tmp_path)


def test_tasks_outside_of_the_panel_are_left_out_with_a_word(tmp_path: Path) -> None:
    evaluated(tmp_path / "a", lambda t: [float(t.options["task"] == "boil")], config=grpo(0, ["boil", "find-plant"]))
    comparison = table(tmp_path / "a")
    (only,) = comparison.columns
    assert list(only.cells) == ["find-plant"]
    assert f"{tmp_path}/a: boil left out, not in the panel scienceworld-18." in comparison.notes
    evaluated(tmp_path / "b", 1.0, config=grpo(0, "boil"))
    with pytest.raises(RunError, match="/b has no task of the panel"):
        table(tmp_path / "b")


def test_returns_that_are_no_score_are_refused(tmp_path: Path) -> None:
    evaluated(tmp_path, 101.0)
    with pytest.raises(RunError, match=r"has the return 101, and the panel is one of returns in \[-100, 100\]"):
        table(tmp_path)


def test_an_evaluation_of_success_is_read_by_its_returns(tmp_path: Path) -> None:
    evaluated(tmp_path, 40.0, config=grpo(eval={"metric": "success"}))
    comparison = table(tmp_path)
    assert column(comparison, "GRPO").cells["find-animal"].estimate.mean == 40.0
    assert f"{tmp_path}: its own table shows success; here is its return, from the same episodes." in comparison.notes


# -- the command


def test_the_command_writes_and_prints_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(tmp_path / "run" / "eval", 30.0, config=grpo(0))
    out = tmp_path / "out"
    words = ["compare", "table", "--panel", "scienceworld-18", str(tmp_path / "run"), "--out", str(out)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.endswith(f"written to {out}\n")
    text = (out / "table.md").read_text(encoding="utf-8")
    assert text == to_markdown(table(tmp_path / "run"))
    for line in (said, text):
        assert "30.0 no interval 1·20·20" in line
        assert "18 rows are printed though the text says 19 tasks" in line
        assert "-58.2 ± 50.2" in line
        assert "95%, beyond these variations" in " ".join(line.split())
        assert "Qwen2.5-7B-Instruct" in line
    record = json.loads((out / "table.json").read_text(encoding="utf-8"))
    assert record["ours"][0]["cells"]["find-animal"] == {
        "mean": 30.0, "on_panel": None, "beyond": None, "not_on_panel": "one seed", "not_beyond": "nothing varied",
        "num_seeds": 1, "num_variations": 20, "num_episodes": 20,
    }  # fmt: skip
    assert record["ours"][0]["sources"] == [str(tmp_path / "run" / "eval")]
    assert [c["method"] for c in record["published"]["columns"]] == [
        c.method for c in PUBLISHED_PANELS["scienceworld-18"].columns
    ]
    assert record["published"]["columns"][4]["cells"]["find-animal"] == {"mean": 100.0, "sd": 0.0}
    assert "find-animal" not in json.dumps(record["ours"][0]["average"])
