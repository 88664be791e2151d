"""Panels beside the main one: who plays them, what is refused, what is said of them, and how they are drawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from adaptrun import Guesser, gate_config
from small import small_config
from trailnotes.commands import main
from trailnotes.config.schema import Config
from trailnotes.config.toml import diff_configs, to_toml
from trailnotes.envs.tasks import load_panel
from trailnotes.errors import ConfigError, RunError
from trailnotes.reporting.plots import INITIAL_MODEL_COLOUR
from trailnotes.runs.directory import load_run_config
from trailnotes.runs.usage import TABLE_FIELDS
from trailnotes.storage.files import append_jsonl
from trailnotes_lab.compare.comparison import _summarise_runs, run_comparison
from trailnotes_lab.compare.cost import ProcessResult, load_costs, record_process
from trailnotes_lab.compare.expand import PlannedRun, expand_runs
from trailnotes_lab.compare.page import format_panel_sentence, print_brief, render_summary_markdown
from trailnotes_lab.compare.picture import draw_summary
from trailnotes_lab.compare.spec import load_spec
from trailnotes_lab.compare.stages import (
    RunStage,
    compile_games,
    list_stages,
    list_unfinished_stages,
    validate_unchanged_settings,
)
from trailnotes_lab.compare.summary import Summary

PLAN = """
[compare]
name = "tiny"
config = "base.toml"
seeds = [0, 1]
baseline = "grpo"

[budget]
env_steps = 24

[methods.start]
algorithm = "naive"
label = "start model"

[methods.grpo]

[methods.empo2]
"memory.top_k" = 2

[methods.reflexion]

[panels."with tips"]
trials = 1
methods = ["start", "empo2"]

[panels.new]
label = "new families"
trials = 2
"eval.split" = "new"
"""
OPTIONS = {"families": ["route/amber", "keys/granite"], "new_families": ["route/birch", "keys/hazel"], "max_steps": 2}


def base_config(**sections: dict[str, Any]) -> Config:
    """Two trained families and two new ones, and two games of a panel."""
    own = {"model": {"path": "model"}, "env": {"options": OPTIONS}, "eval": {"num_tasks": 2}}
    return small_config(**own | sections)


def write_plan(path: Path, text: str = PLAN, base: Config | None = None) -> Path:
    """A comparison's file, beside the settings that it names."""
    path.with_name("base.toml").write_text(to_toml(base or base_config()))
    path.write_text(text)
    return path


def planned(path: Path, out: Path) -> dict[str, PlannedRun]:
    return {run.name: run for run in expand_runs(load_spec(path), path, out)}


# -- who plays which


def test_each_model_plays_its_panels_after_the_training_with_an_empty_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = planned(write_plan(tmp_path / "plan.toml"), Path("out"))
    stages = {name: {stage.name: stage for stage in list_stages(runs[name])} for name in runs}
    assert [*stages["empo2-1"]] == ["train", "eval", "eval with tips", "eval new"]
    assert [*stages["grpo-1"]] == ["train", "eval", "eval new"], "it was not named among those with tips"
    assert [*stages["start-1"]] == ["adapt", "eval with tips", "eval new"]
    assert [*stages["reflexion-1"]] == ["adapt"], "it changes no weights"
    new = stages["empo2-1"]["eval new"]
    folder, settings = "out/runs/empo2-1/panels/new", "out/settings/empo2-1/new.toml"
    words = ("adapt", "out/runs/empo2-1", "--method", "empo2-tips", "--out", folder, "--config", settings)
    assert new.command == words
    assert new.needs == ("empo2-1 train",)
    start = stages["start-1"]["eval new"]
    assert (start.command[1], start.needs) == ("model", ()), "the start model, which nobody waits for"


def test_a_panel_has_the_settings_of_the_run_and_over_them_its_own(tmp_path: Path) -> None:
    runs = planned(write_plan(tmp_path / "plan.toml"), tmp_path)
    (panel,) = [panel for panel in runs["empo2-1"].panels if panel.name == "new"]
    assert panel.config.memory.top_k == 2, "as the method has it"
    assert (panel.config.eval.trials, panel.config.run.seed) == (2, 1)
    trains = ["train.max_env_steps", "train.keep_optimizer"]  # a panel does not
    ours = ["run.name", "algorithm.name", "eval.split", "eval.trials", *trains]
    assert [name for name in diff_configs(panel.config, runs["empo2-1"].config) if name not in ours] == []
    assert [task.id.rsplit("/", 1)[0] for task in load_panel(panel.config)] == [
        "waymarks/route/birch", "waymarks/keys/hazel",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PLAN.replace("trials = 2", ""), r"panels\.new has no trials: name how many with tips, such as trials = 3"),
        (PLAN.replace('["start", "empo2"]', '["ppo"]'), r"panels\.with tips: methods names 'ppo', which is no method"),
        (PLAN.replace('["start", "empo2"]', '["reflexion"]'), "reflexion neither trains nor is naive"),
        (PLAN + "[panels.with-tips]\ntrials = 1", "'with tips' and 'with-tips' would share the directory"),
        (PLAN + '[panels.more]\nlabel = "new families"\ntrials = 1', "would share the label 'new families'"),
        (PLAN + '"eval.trials" = 3', r"panels\.new sets eval\.trials, which is the comparison's to set"),
        (PLAN + '"model.path" = "x"', r"panels\.new sets model\.path, which is the comparison's to set"),
        (PLAN.replace('"new"', '"train"'), r"panels\.new: train\.split = 'train': 2 of the 2 games of the panel"),
        (PLAN.replace('"new"', '"nowhere"'), r"panels\.new: unknown split 'nowhere'"),
        (PLAN + '"optim.rate" = 3', r"no key 'rate'.*\(panels\.new\)"),
        (PLAN + '[methods.rloo]\n"env.options.new_families" = ["route/cobalt"]',
         r"panels\.new has other games in methods\.rloo than in those before it"),
        (PLAN[: PLAN.index("[methods.start]")] + "[methods.reflexion]\n[panels.new]\ntrials = 1",
         "no method of the comparison trains or is naive, so nobody plays it"),
    ],
)  # fmt: skip
def test_what_cannot_be_examined_is_refused_before_anything_starts(text: str, message: str, tmp_path: Path) -> None:
    text = text if "[methods.grpo]" in text else text.replace('baseline = "grpo"', "")
    path = write_plan(tmp_path / "plan.toml", text)
    with pytest.raises(ConfigError, match=message):
        run_comparison(path, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_games_by_which_a_model_was_chosen_are_no_panel(tmp_path: Path) -> None:
    path = write_plan(tmp_path / "plan.toml", PLAN.replace('"new"', '"validation"'))
    assert planned(path, tmp_path)
    write_plan(path, path.read_text(), base_config(train={"eval_every": 1}))
    with pytest.raises(ConfigError, match=r"panels\.new: train\.validation_split = 'validation': 2 of the 2 games"):
        planned(path, tmp_path)


def test_what_is_trained_on_is_not_rehearsed_whether_there_are_panels_or_not(tmp_path: Path) -> None:
    text = PLAN[: PLAN.index("[panels")]
    path = write_plan(tmp_path / "plan.toml", text, base_config(rehearsal={"split": "train"}))
    with pytest.raises(ConfigError, match=r"methods\.empo2: rehearsal\.split = 'train': .* is a game of train\.split"):
        planned(path, tmp_path)


def test_who_keeps_no_tips_rehearses_nothing(tmp_path: Path) -> None:
    path = write_plan(tmp_path / "plan.toml", PLAN.replace('"memory.top_k" = 2', '"rehearsal.split" = ""'),
                      base_config(rehearsal={"split": "new"}))  # fmt: skip
    assert planned(path, tmp_path), "GRPO would rehearse the games of a panel, if it rehearsed"


def test_a_method_that_returns_to_kept_states_plays_panels_without(tmp_path: Path) -> None:
    path = write_plan(tmp_path / "plan.toml", PLAN.replace('"memory.top_k" = 2', '"archive.share" = 0.5'))
    (panel, _) = planned(path, tmp_path)["empo2-0"].panels
    assert panel.config.archive.share == 0


def test_games_that_a_training_rehearses_are_no_panel(tmp_path: Path) -> None:
    path = write_plan(tmp_path / "plan.toml", base=base_config(rehearsal={"split": "spare"}))
    assert planned(path, tmp_path)
    write_plan(path, base=base_config(rehearsal={"split": "new"}))
    with pytest.raises(ConfigError, match=r"panels\.new: rehearsal\.split = 'new': 2 of the 2 games"):
        planned(path, tmp_path)
    said = [{"role": "user", "content": "a wall ."}, {"role": "assistant", "content": "north"}]
    append_jsonl(tmp_path / "told.jsonl", [{"task": "waymarks/route/birch/new-0", "messages": said}])
    write_plan(path, base=base_config(rehearsal={"path": str(tmp_path / "told.jsonl")}))
    with pytest.raises(ConfigError, match=r"panels\.new: rehearsal\.path = .*told\.jsonl': 1 of the 2 games"):
        planned(path, tmp_path)


def test_the_games_of_panels_are_compiled_before_anybody_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(
        "trailnotes_lab.compare.stages.compile_all", lambda tasks, **_: compiled.extend(task.id for task in tasks)
    )
    base = base_config(env={"name": "waymarks", "options": OPTIONS})
    compile_games(planned(write_plan(tmp_path / "plan.toml", base=base), tmp_path).values())
    assert {"waymarks/route/birch/new-0", "waymarks/route/amber/test-0"} <= set(compiled)


def test_what_a_panel_took_is_no_cost_of_the_method(tmp_path: Path) -> None:
    record_process(tmp_path, "train", ProcessResult(0, 2.0, 1.0, 50))
    record_process(tmp_path, "eval with tips", ProcessResult(0, 9.0, 9.0, 90))
    assert load_costs(tmp_path) == {"seconds": 2.0, "cpu_seconds": 1.0, "peak_memory": 50}


# -- what is said of them, by hand

GAMES = ("a/x/0", "a/x/1", "a/y/0", "a/y/1")


def hand_made(directory: Path, config: Config, games: Sequence[str], trials: Sequence[Sequence[float]]) -> None:
    """What an evaluation and an adaptation leave that a table reads: success of each game in each trial."""
    (directory / "eval").mkdir(parents=True)
    records = [
        {"iteration": trial, "task": {"id": game, "env": "a"}, "outcome": "terminated", "return": value,
         "success": bool(value), "steps": [], "final_observation": {"text": ""}}
        for trial, row in enumerate(trials) for game, value in zip(games, row, strict=True)
    ]  # fmt: skip
    append_jsonl(directory / "metrics.jsonl", [{"iteration": i, "phase": f"trial-{i}"} for i in range(len(trials))])
    append_jsonl(directory / "trajectories.jsonl", records)
    append_jsonl(directory / "eval" / "episodes.jsonl", records[-len(games) :])
    row = {"algorithm": "x", "metric": "success", "memory": False, "num_episodes": len(games)}
    (directory / "eval/table.json").write_text(json.dumps({"rows": [row | dict.fromkeys(TABLE_FIELDS, 0)]}))
    (directory / "eval/panel.json").write_text(json.dumps({"model": "m", "tasks": list(games)}))
    (directory / "eval/eval.toml").write_text(to_toml(config))
    (directory / "config.toml").write_text(to_toml(config))
    (directory / "table.json").write_text("{}")


NONE, HALF, ALL = (0, 0, 0, 0), (1, 1, 0, 0), (1, 1, 1, 1)
MOST, LESS, ONE = (1, 1, 1, 0), (1, 0, 0, 0), (0, 0, 1, 0)
PLAYED: dict[str, dict[str, list[Sequence[float]]]] = {  # run -> panel -> trials; "" is the main one
    "start-0": {"": [NONE], "with tips": [NONE, ALL], "new": [NONE, MOST, ALL]},
    "start-1": {"": [LESS], "with tips": [LESS, MOST], "new": [NONE, HALF, MOST]},
    "grpo-0": {"": [HALF], "new": [NONE, NONE, HALF]},
    "grpo-1": {"": [LESS], "new": [NONE, LESS, LESS]},
    "empo2-0": {"": [ALL], "with tips": [ALL, HALF], "new": [NONE, ONE, HALF]},
    "empo2-1": {"": [MOST], "with tips": [MOST, LESS], "new": [NONE, LESS, ONE]},
}


@pytest.fixture
def concluded(tmp_path: Path) -> Callable[..., Summary]:
    """The summary of `PLAYED`, less what is left out; written to tmp_path/out."""

    def conclude(leave_out: Sequence[tuple[str, str]] = (), plan_text: str = "") -> Summary:
        text = plan_text or PLAN.replace("[methods.reflexion]", "")
        path, out = write_plan(tmp_path / "plan.toml", text), tmp_path / "out"
        for run in expand_runs(load_spec(path), path, out):
            own = PLAYED[run.name]
            hand_made(run.directory, run.config, GAMES, own[""])
            if run.trains:
                (run.directory / "checkpoints/step-1").mkdir(parents=True)
            for panel in run.panels:
                games = GAMES if panel.name == "with tips" else [f"n{game}" for game in GAMES]
                if (run.name, panel.name) not in leave_out:
                    hand_made(panel.directory, panel.config, games, own[panel.name])
        return _summarise_runs(load_spec(path), {}, out, out)

    return conclude


def test_each_panel_has_a_column_for_each_trial_and_the_intervals_of_the_last(
    concluded: Callable[..., Summary],
) -> None:
    summary = concluded()
    tips, new = summary.panels
    assert [line.label for line in new.lines] == ["start model", "GRPO", "EMPO²"]
    assert [line.label for line in tips.lines] == ["start model", "EMPO²"]
    means = {line.label: [trial.mean for trial in line.trials] for line in new.lines}
    assert means == {"start model": [0, 0.625, 0.875], "GRPO": [0, 0.125, 0.375], "EMPO²": [0, 0.25, 0.375]}
    assert new.lines[2].by_seed == ((0, 0.25, 0.5), (0, 0.25, 0.25))
    text = render_summary_markdown(summary)
    assert "## new families: success on 4 games (waymarks-simulator, new), trial by trial" in text
    assert "| success | trial 0 | trial 1 | trial 2 | on this panel | beyond this panel | seeds · games |" in text
    assert "| EMPO² | 0.000 | 0.250 | 0.375 | [0.000, 1.000] | 2 of 10 families | 2 · 4 |" in text
    assert text.index("## with tips: success") < text.index("## new families: success") < text.index("## Cost")


def test_with_tips_is_set_against_the_same_run_without_and_new_families_against_the_start_model(
    concluded: Callable[..., Summary],
) -> None:
    """EMPO2 with tips: (.5 - 1 + .25 - .75) / 2; on new families (.5 - 1 + .25 - .75) / 2, GRPO likewise."""
    tips, new = concluded().panels
    assert (tips.same_games, tips.against) == (True, "the same run without tips")
    assert (new.same_games, new.against) == (False, "start model")
    gaps = {line.label: line.difference and line.difference.estimate.mean for line in (*tips.lines, *new.lines)}
    assert gaps == {"start model": None, "GRPO": -0.5, "EMPO²": -0.5}
    with_tips = {line.label: line.difference and line.difference.estimate.mean for line in tips.lines}
    assert with_tips == {"start model": 0.75, "EMPO²": -0.5}


def test_every_trial_has_its_intervals_in_the_record(concluded: Callable[..., Summary], tmp_path: Path) -> None:
    concluded()
    record = json.loads((tmp_path / "out/table.json").read_text())["panels"][1]
    assert (record["label"], record["num_trials"], record["same_games"]) == ("new families", 2, False)
    (line,) = [line for line in record["lines"] if line["label"] == "EMPO²"]
    assert [trial["mean"] for trial in line["trials"]] == [0.0, 0.25, 0.375]
    assert all(trial["on_panel"] or trial["not_on_panel"] for trial in line["trials"])
    assert all(trial["not_beyond"] == "2 of 10 families" for trial in line["trials"])
    assert line["difference"]["estimate"]["mean"] == -0.5
    assert "call" in line["difference"]


def test_the_legend_says_what_intervals_and_differences_are_of(concluded: Callable[..., Summary]) -> None:
    text = render_summary_markdown(concluded())
    assert "both intervals are of the last trial alone" in text
    assert "with tips: the games of the first table; differences are of the last trial less the same run" in text
    assert "new families: other games; differences are of the last trial less the last trial of start model." in text


def test_in_brief_each_panel_is_a_sentence(
    concluded: Callable[..., Summary], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    summary = concluded()
    tips, new = (format_panel_sentence(panel, summary) for panel in summary.panels)
    assert tips.startswith("with tips, after 1 trial: start model .88 with its tips, .12 without")
    assert "; EMPO² .38 with its tips, .88 without" in tips
    assert new.startswith("new families, trial by trial: start model .00 .62 .88; GRPO .00 .12 .38")
    print_brief(summary)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 100
    assert "new families, trial by trial: start model .00 .62 .88; GRPO" in said


def test_a_model_that_has_not_played_a_panel_is_named_and_the_others_stay(concluded: Callable[..., Summary]) -> None:
    summary = concluded(leave_out=[("grpo-0", "new"), ("grpo-1", "new"), ("empo2-1", "new")])
    _, grpo, empo2 = summary.panels[1].lines
    assert (grpo.trials, grpo.seeds, [*grpo.missing]) == ((), (), [0, 1])
    assert (empo2.seeds, [*empo2.missing]) == ((0,), [1])
    assert empo2.difference is not None
    assert empo2.difference.num_seeds == 1
    assert summary.lines[1].missing == {}, "the main panel has been played"
    assert "| GRPO | - | - | - | - | - | 0 · 0, 2 missing |" in render_summary_markdown(summary)
    with pytest.raises(RunError, match="3 runs without a result; GRPO with seed 0 on panel new families: "):
        summary.require_all_results()


def test_without_the_start_model_a_panel_of_other_games_has_no_difference(concluded: Callable[..., Summary]) -> None:
    text = PLAN.replace("[methods.reflexion]", "").replace('"eval.split"', 'methods = ["grpo", "empo2"]\n"eval.split"')
    summary = concluded(plan_text=text)
    new = summary.panels[1]
    assert [line.difference for line in new.lines] == [None, None]
    said = render_summary_markdown(summary)
    assert "new families: differences" not in said
    assert "no start model plays them, so there are no differences" in said


def test_a_panel_of_another_length_than_its_settings_say_is_damaged(
    concluded: Callable[..., Summary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PLAYED["grpo-1"], "new", [NONE, HALF])
    (line,) = [line for line in concluded().panels[1].lines if line.label == "GRPO"]
    assert "is damaged (2 trials of 3): remove it to have it played again" in line.missing[1]


def test_a_changed_panel_is_refused_by_its_name(concluded: Callable[..., Summary], tmp_path: Path) -> None:
    concluded()
    path = tmp_path / "plan.toml"
    path.write_text(path.read_text().replace("trials = 2", "trials = 3"))
    with pytest.raises(RunError, match=r"\(start-0 on panel new: eval\.trials; grpo-0 on panel new: eval\.trials; "):
        validate_unchanged_settings(expand_runs(load_spec(path), path, tmp_path / "out"))
    path.write_text(path.read_text().replace("trials = 3", "trials = 2") + '[settings]\n"optim.lr" = 0.5\n')
    with pytest.raises(RunError, match=r"\(start-0: optim\.lr; grpo-0: optim\.lr; "):  # said once of a run
        validate_unchanged_settings(expand_runs(load_spec(path), path, tmp_path / "out"))


# -- the picture


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every figure that is drawn, kept open until the test has looked."""
    import matplotlib.pyplot as plt

    drawn: list[Any] = []
    monkeypatch.setattr(plt, "close", drawn.append)
    return drawn


def test_other_games_are_drawn_against_the_trials_and_the_same_games_beside_the_dots(
    concluded: Callable[..., Summary], figures: list[Any], tmp_path: Path
) -> None:
    summary = concluded()
    figures.clear()
    draw_summary(summary, tmp_path / "a.png")
    _, finals, trials, last = figures[0].axes
    curves = {line.get_label(): line for line in trials.lines if not line.get_label().startswith("_")}
    assert [*curves["EMPO²"].get_ydata()] == [0, 0.25, 0.375]
    assert [*curves["EMPO²"].get_xdata()] == [0, 1, 2]
    assert curves["start model"].get_color() == INITIAL_MODEL_COLOUR["start model"]
    assert curves["EMPO²"].get_color() != curves["GRPO"].get_color() != INITIAL_MODEL_COLOUR["start model"]
    assert {text.get_text() for text in trials.get_legend().get_texts()} == {"start model", "GRPO", "EMPO²"}
    assert trials.get_xlabel() == "trial (0 is without tips)"
    hollow = [line for line in finals.lines if line.get_marker() == "o" and line.get_markerfacecolor() == "white"]
    assert [line.get_xdata()[0] for line in hollow] == [0.875, 0.375]
    assert "hollow: with tips, trial 1" in finals.get_xlabel()
    dots = [line for line in last.lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in dots] == [0.875, 0.375, 0.375]
    assert last.get_xlabel() == "success in trial 2"


# -- played


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[Guesser]:
    """Stages run in this process, as their commands say; the last of the policies is who plays."""
    policies = [Guesser()]
    monkeypatch.setattr("trailnotes.runs.load_policy.load_policy", lambda *_: policies[-1])
    monkeypatch.setattr("trailnotes.reporting.plots.plot_trials", lambda *_, **__: None)

    def run_stages(stages: Sequence[RunStage], _: int) -> dict[str, str]:
        failures = {}
        for stage in stages:
            path, config = stage.settings
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(to_toml(config))
            status = main(list(stage.command))
            record_process(stage.run.directory, stage.name, ProcessResult(status, 1.0, 1.0, 1))
            if status or not stage.is_done:
                failures[stage.key] = f"ended with status {status}"
        return failures

    monkeypatch.setattr("trailnotes_lab.compare.comparison.run_stages", run_stages)
    return policies


GATES = """
[compare]
name = "gates"
config = "base.toml"
seeds = [0]

[methods.naive]

[panels."with tips"]
trials = 2

[panels.new]
trials = 1
"eval.split" = "other"
"""


def test_a_comparison_with_panels_is_played_and_resumed_where_it_was_cut_off(
    tmp_path: Path, in_process: list[Guesser]
) -> None:
    """Cut off by a spending limit in the middle of a panel, it ends as if left alone, and plays nothing twice."""
    path = write_plan(tmp_path / "plan.toml", GATES, gate_config(model={"path": "guesser"}))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    summary = run_comparison(path, out=whole)
    tips, new = summary.panels
    (line,) = tips.lines
    assert summary.lines[0].one is not None
    assert line.trials[0].mean == summary.lines[0].one.mean == 0.25
    assert line.trials[2].mean > 0.25, "tips open gates"
    assert len(new.lines[0].trials) == 2
    asked = len(in_process[-1].prompts)
    in_process.append(Guesser(allowed=asked - 4))
    with pytest.raises(RunError, match="on panel new"):
        run_comparison(path, out=cut).require_all_results()
    left = list_unfinished_stages(expand_runs(load_spec(path), path, cut))
    assert [stage.key for stage in left] == ["naive-0 eval new"]
    in_process.append(Guesser())
    assert run_comparison(path, out=cut).panels == summary.panels
    assert len(in_process[-1].prompts) == 4, "what had ended was not asked again"
    tables = [json.loads((out / "table.json").read_text()) for out in (whole, cut)]
    assert tables[0]["panels"] == tables[1]["panels"]
    in_process.append(Guesser())
    run_comparison(path, out=cut)
    assert not in_process[-1].prompts
    assert load_run_config(whole / "runs/naive-0/panels/new").eval.split == "other"
