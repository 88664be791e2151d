"""Comparisons: what is planned, what is run and what is not run again, what may be said of it, and how it is shown."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptrun import Guesser, adapt_by
from children import alive, children_of, wait_for
from small import small_config
from tinyrun import tiny_config, train_in_process
from trailnotes.commands import main
from trailnotes.config.builtin import BUILTIN, find_config
from trailnotes.config.schema import Config
from trailnotes.config.toml import diff_configs, load_config, to_toml
from trailnotes.errors import ConfigError, RunError
from trailnotes.reporting.intervals import Estimate, Interval
from trailnotes.runs.adapt import adapt
from trailnotes.runs.directory import load_run_config
from trailnotes.runs.evaluate import evaluate
from trailnotes.storage import checkpoint
from trailnotes.storage.files import read_jsonl
from trailnotes_lab.compare import run_comparison
from trailnotes_lab.compare.cost import ProcessResult, load_costs, record_process
from trailnotes_lab.compare.expand import _format_overrides, expand_runs
from trailnotes_lab.compare.page import render_summary_json, render_summary_markdown
from trailnotes_lab.compare.picture import _make_main_row
from trailnotes_lab.compare.results import Attempts, RunResult, build_attempts, read_trial_records
from trailnotes_lab.compare.running import list_stages, list_unfinished_stages, validate_unchanged_settings
from trailnotes_lab.compare.spec import load_spec
from trailnotes_lab.compare.statistics import Difference, estimate_paired_difference, interquartile_mean
from trailnotes_lab.compare.summary import MethodSummary, Summary, SummaryOptions, _summarise_method
from trailnotes_lab.methods.retrospex import RetrospexConfig

GOLDEN = Path(__file__).with_name("golden")
PLAN = """
[compare]
name = "tiny"
config = "base.toml"
seeds = [0, 1]
baseline = "grpo"

[budget]
env_steps = 24
trials = 1

[methods.naive]

[methods.grpo]

[methods."half of them"]
algorithm = "empo2"
"empo2.p_memory" = 0.5
"""


def write_plan(path: Path, text: str = PLAN, base: Config | None = None) -> Path:
    """A comparison's file, beside the settings that it names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name("base.toml").write_text(to_toml(base or tiny_config(Path("model"))))
    path.write_text(text)
    return path


def planned(path: Path, out: Path = Path("out")) -> dict[str, Config]:
    return {run.name: run.config for run in expand_runs(load_spec(path), path, out)}


def test_runs_are_methods_times_seeds(tmp_path: Path) -> None:
    runs = planned(write_plan(tmp_path / "plan.toml", "\ufeff" + PLAN))  # as some editors begin a file
    assert list(runs) == ["naive-0", "grpo-0", "half-of-them-0", "naive-1", "grpo-1", "half-of-them-1"]
    assert diff_configs(runs["grpo-0"], runs["grpo-1"]) == ["run.name", "run.seed"]
    assert diff_configs(runs["grpo-0"], runs["half-of-them-0"]) == ["run.name", "algorithm.name", "empo2.p_memory"]
    assert runs["half-of-them-0"].algorithm.name == "empo2"
    assert runs["grpo-0"].train.max_env_steps == 24
    assert (runs["naive-0"].eval.trials, runs["naive-0"].train.max_env_steps) == (1, 0)


def test_settings_of_a_comparison_reach_its_runs_as_they_are() -> None:
    words = _format_overrides({"rollout": {"system_prompt": 'Play \U0001f3ae "well"', "stop": ["\n"]}})
    rollout = load_config(None, words).rollout
    assert (rollout.system_prompt, rollout.stop) == ('Play \U0001f3ae "well"', ("\n",))


def test_methods_after_a_run_of_the_same_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    more = '[methods.retrospex]\nafter = "grpo"\n[methods."with tips"]\nalgorithm = "empo2-tips"\nafter = "grpo"\n'
    path = write_plan(tmp_path / "plan.toml", PLAN + more)
    assert planned(path, tmp_path / "out") == planned(path), "the same settings however --out is written"
    runs = {run.name: run for run in expand_runs(load_spec(path), path, tmp_path / "out")}
    critic, tips = runs["retrospex-1"], runs["with-tips-1"]
    (critic_stage,), (tips_stage,) = list_stages(critic), list_stages(tips)
    assert critic_stage.needs == tips_stage.needs == ("grpo-1 train",)
    assert critic.config.retrospex.data == ("out/runs/grpo-1",), "it learns from its episodes"
    assert tips.config.section(RetrospexConfig).data == ()
    assert (critic_stage.command[1], tips_stage.command[1]) == ("model", "out/runs/grpo-1"), "whose model plays"
    model = tips.config.model.model_copy(update={"path": "out/runs/grpo-1/checkpoints/step-000003/model"})
    finish(tips.directory, tips.config.model_copy(update={"model": model}))
    for run in (runs["grpo-1"], critic):
        finish(run.directory, run.config)
    validate_unchanged_settings([*runs.values()])
    moved = shutil.move("out", "elsewhere")
    validate_unchanged_settings(expand_runs(load_spec(path), path, Path(moved)))
    path.write_text(path.read_text().replace('after = "grpo"', 'after = "half of them"'))
    with pytest.raises(RunError, match=r"retrospex-1: retrospex\.data, .*with-tips-1: model\.path, "):
        validate_unchanged_settings(expand_runs(load_spec(path), path, Path(moved)))
    Path("model/checkpoints").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"model\.path = 'model' is a run .* by `after`"):
        planned(path)


def finish(directory: Path, config: Config) -> None:
    """Leave of a run what says that it is done, as a record does."""
    (directory / "eval").mkdir(parents=True)
    (directory / "checkpoints/step-000001").mkdir(parents=True)
    files = {"config.toml": to_toml(config), "metrics.jsonl": '{"env_steps": 24}\n', "table.json": "{}"}
    for name, text in (files | {"eval/eval.toml": to_toml(config), "eval/table.json": '{"rows": [{"memory": false}]}',
                                "eval/panel.json": '{"model": "model"}'}).items():  # fmt: skip
        (directory / name).write_text(text)


def test_a_record_is_done_also_with_another_number_of_workers(tmp_path: Path) -> None:
    """It has neither weights nor prompts of training, so what these read is not counted again."""
    path, out = write_plan(tmp_path / "plan.toml"), tmp_path / "out"
    for run in expand_runs(load_spec(path), path, out):
        finish(run.directory, run.config)
    path.write_text(PLAN + '[settings]\n"env.num_workers" = 3')
    runs = expand_runs(load_spec(path), path, out)
    assert list_unfinished_stages(runs) == []
    run_dir = out / "runs/grpo-0"
    for name, old, new in (("eval.toml", "\nnum_tasks = ", "\nnum_tasks = 1"), ("table.json", "false", "true")):
        kept = (file := run_dir / "eval" / name).read_text()
        file.write_text(kept.replace(old, new))
        assert [stage.key for stage in list_unfinished_stages(runs)] == ["grpo-0 eval"], "evaluated by hand"
        file.write_text(kept)
    (run_dir / "cost.json").write_text('{"total": {"env_steps": 24, "tokens_read": 7000}}')
    (run_dir / "trajectories.jsonl").write_text('{"steps": [{"action": "look", "tips": []}]}\n')
    record_process(run_dir, "eval", ProcessResult(0, 1.0, 0.5, 1 << 20))
    assert load_costs(run_dir) == {"env_steps": 24, "tokens_read": 7000, "seconds": 0.0}
    (run_dir / "eval/panel.json").write_text('{"model": "grpo-0/checkpoints/step-000002/model"}')
    for step, left in ((2, ["train", "eval"]), (3, ["eval"])):  # evaluated before the training had ended
        checkpoint.save(run_dir / "checkpoints", step, lambda _: None, meta={"env_steps": 8 * step})
        assert [stage.name for stage in list_unfinished_stages(expand_runs(load_spec(path), path, out))] == left
    checkpoint.save(run_dir / "checkpoints", 4, lambda _: None, meta={"env_steps": 9})  # the training goes on
    path.write_text(PLAN + '[panels.more]\ntrials = 1\nmethods = ["grpo"]')
    runs = expand_runs(load_spec(path), path, out)
    (half_played := runs[1].panels[0].directory / "metrics.jsonl").parent.mkdir(parents=True)
    half_played.write_text("{}\n")
    with pytest.raises(RunError, match=r"\(grpo-0 on panel more: an earlier checkpoint\): remove"):
        validate_unchanged_settings(runs)


def test_costs_follow_a_run_that_was_continued_by_hand(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"env_steps": 24, "tokens_read": 100, "seconds": 8.0}\n')
    record_process(tmp_path, "adapt", ProcessResult(-9, 9.0, 4.5, 1 << 20))
    assert load_costs(tmp_path)["env_steps"] == 24
    metrics.write_text(metrics.read_text() + '{"env_steps": 48, "tokens_read": 150, "seconds": 16.0}\n')
    (tmp_path / "run.json").write_text('{"starts": [{}, {}]}')
    assert load_costs(tmp_path) == {"env_steps": 48, "tokens_read": 150, "seconds": 16.0, "peak_memory": 1 << 20}
    (tmp_path / "trajectories.jsonl").write_text('{"steps": [{"prompt_tokens": 70}]}\n')
    metrics.write_text('{"env_steps": 24, "tips/tokens_read": 30}\n{"env_steps": 60, "tips/tokens_read": 20}\n')
    assert load_costs(tmp_path)["tokens_read"] == 120, "a training reads prompts of actions and of tips"


def test_runs_after_a_removed_one_are_refused(tmp_path: Path) -> None:
    """They would keep the results of the removed model."""
    more = '[methods."with tips"]\nalgorithm = "empo2-tips"\nafter = "grpo"\n'
    path = write_plan(tmp_path / "plan.toml", PLAN + more)
    out = tmp_path / "out"
    for run in (runs := expand_runs(load_spec(path), path, out)):
        finish(run.directory, run.config)
    validate_unchanged_settings(runs)
    path.write_text(path.read_text().replace("[methods.grpo]", '[methods.grpo]\n"optim.lr" = 0.5'))
    runs = expand_runs(load_spec(path), path, out)
    with pytest.raises(RunError, match=r"\(grpo-0: optim\.lr; .*with-tips-0: after grpo-0, which has changed;"):
        validate_unchanged_settings(runs)
    for seed in (0, 1):
        shutil.rmtree(out / f"runs/grpo-{seed}")
    with pytest.raises(RunError, match=r"\(with-tips-0: after grpo-0, which is unfinished; with-tips-1: .*remove"):
        validate_unchanged_settings(runs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PLAN.replace('name = "tiny"', "nme = 1"), r"compare\.nme is not a key of a comparison; did you mean name"),
        (PLAN.replace("[methods.grpo", "[methods.grop"), "no method is called 'grop': did you mean grpo"),
        (PLAN.replace('"grpo"', '"ppo"'), r"'ppo' names no method of the comparison.*\bgrpo"),
        (PLAN.replace('config = "', 'config = "no-'), r"plan\.toml: compare\.config: beside this file there is no no-"),
        (PLAN + '[methods.empo2-tips]\nafter = "naive"', "after = 'naive' trains no model to start from"),
        (PLAN.replace("env_steps = 24", ""), "train without a budget: set budget.env_steps or budget.tokens"),
        (PLAN + '"train.max_env_steps" = 9', r"half of them sets train\.max_env_steps, which is the comparison's"),
        (PLAN + '[settings]\n"run.seed" = 9', r"settings sets run\.seed, which is the comparison's"),
        (PLAN + '[settings]\n"train.max_env_steps" = 9', r"settings sets train\.max_env_steps, which is the comp"),
        (PLAN + '"eval.num_tasks" = 9', r"half of them has other games or another metric than naive: all methods"),
        (PLAN + '"env.options" = { families = ["keys/hazel"] }', r"half of them has other games or another"),
        (PLAN + '"env.options" = { "a.b" = 1 }', r"plan\.toml: env\.options has the key 'a\.b', which only the file"),
        (PLAN + 'train.split = "test"', r"half of them: train\.split = 'test': 4 of the 4 games"),
        ("[rollout]\nnum_tasks = 2", r"add a table \[methods.NAME\] for each, or .* to trailnotes train"),
    ],
)  # fmt: skip
def test_refused_comparisons(text: str, message: str, tmp_path: Path) -> None:
    path = write_plan(tmp_path / "plan.toml", text)
    with pytest.raises(ConfigError, match=message):
        run_comparison(path, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


CONFIGS = BUILTIN / "configs/compare"


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=str(path.relative_to(CONFIGS)), marks=[] if path.stem == "small" else pytest.mark.long)
        for path in sorted(set(CONFIGS.rglob("*.toml")) - {*CONFIGS.glob("*-base.toml")})
    ],
)
def test_the_comparisons_of_the_repository_can_be_read(path: Path) -> None:
    """They name their denominator, too: published figures come out to the digit whatever the default is."""
    plan = load_spec(path)
    assert "old_logprobs" in tomllib.loads(find_config(plan.compare.config).read_text(encoding="utf-8"))["empo2"]
    runs = expand_runs(plan, path, Path("out"))
    assert len({run.name for run in runs}) == len(runs)


@pytest.fixture(scope="module")
def finished(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A comparison whose runs are all there: its file and its directory."""
    folder = tmp_path_factory.mktemp("compare")
    base = tiny_config(start_model, train={"eval_every": 1}, eval={"metric": "return", "num_tasks": 4})
    path, out = write_plan(folder / "plan.toml", base=base), folder / "out"
    for run in expand_runs(load_spec(path), path, out):
        if run.trains:
            train_in_process(run.config, run.directory)
            evaluate(run.config, run.directory, out=run.directory / "eval")
            record_process(run.directory, "train", ProcessResult(0, 2e3, 1.5, 300 << 20))
        else:
            adapt(run.config, run.config.model.path, out=run.directory, method="naive")
            record_process(run.directory, "adapt", ProcessResult(0, 1.0, 0.5, 200 << 20))
    run_comparison(path, out=out)
    return path, out


def table_of(out: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((out / "table.json").read_text())
    return record


def lines_of(out: Path) -> dict[str, Any]:
    return {line["label"]: line for line in table_of(out)["lines"]}


def test_finished_runs_are_not_run_again(
    finished: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = finished
    monkeypatch.setattr("trailnotes_lab.compare.running.StageProcess", None)
    before = {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*")}
    table = (out / "table.json").read_bytes()
    assert main(["compare", "run", str(path), "--out", str(out)]) == 0
    assert (out / "table.json").read_bytes() == table
    assert {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*")} == before
    said = capsys.readouterr().out
    assert "Sample efficiency" in said
    assert f"written to {out}" in said
    assert (out / "story.txt").read_text().startswith(("BEFORE. The start model", "No unseen game was won"))
    assert main(["compare", "run", str(path), "--out", str(out), "--jobs", "4", "--dry-run"]) == 0
    assert {f"6 runs, 4 side by side, in {out}", "naive-0: done"} <= {*capsys.readouterr().out.splitlines()}


def test_a_table_of_runs_without_a_comparison(finished: tuple[Path, Path], tmp_path: Path) -> None:
    _, out = finished
    runs = [f"{out}/runs/{name}" for name in ("grpo-0=GRPO", "grpo-1=GRPO", "naive-0=as it is")]
    assert main(["compare", "table", *runs, "--baseline", "GRPO", "--out", str(tmp_path)]) == 0
    assert lines_of(tmp_path)["GRPO"]["one"] == lines_of(out)["GRPO"]["one"]
    assert lines_of(tmp_path)["as it is"]["seeds"] == [0]
    other = shutil.copytree(out / "runs/grpo-1", tmp_path / "grpo-1")
    trained = (other / "eval/trained.toml").read_text()
    (other / "eval/trained.toml").write_text(re.sub(r"\nlr = .*", "\nlr = 0.25", trained, count=1))
    assert main(["compare", "table", runs[0], f"{other}=GRPO", "--out", str(tmp_path)]) == 0
    assert "GRPO: its runs differ in optim.lr, and are pooled all the same." in (tmp_path / "table.md").read_text()
    further = shutil.copytree(out / "runs/grpo-0/eval", out / "runs/grpo-0/eval/further")
    assert main(["compare", "table", str(out), "--out", str(tmp_path)]) == 0
    before = table_of(out)
    assert table_of(tmp_path) == before
    assert main(["compare", "table", str(out)]) == 0, "into the comparison itself"
    assert table_of(out) == before
    shutil.rmtree(further)


def test_costs_are_those_of_the_runs(finished: tuple[Path, Path]) -> None:
    _, out = finished
    spent = [list(read_jsonl(out / f"runs/grpo-{seed}/metrics.jsonl"))[-1] for seed in (0, 1)]
    costs = lines_of(out)["GRPO"]["costs"]
    for name in ("env_steps", "tokens_generated", "tokens_trained"):
        assert costs[name] == (spent[0][name] + spent[1][name]) / 2
    assert (costs["seconds"], costs["cpu_seconds"], costs["peak_memory"]) == (2e3, 1.5, 300 << 20)
    assert costs["tokens_read"] > costs["tokens_generated"], "each prompt is counted whole"
    naive = lines_of(out)["naive"]["costs"]
    assert naive["tokens_read"] > naive["tokens_trained"] == 0
    assert "spending" not in naive


def test_changed_settings_are_refused_and_more_seeds_accepted(finished: tuple[Path, Path]) -> None:
    path, out = finished
    text = path.read_text()
    changed = path.with_name("changed.toml")
    changed.write_text(text.replace('p_memory" = 0.5', 'p_memory" = 0.75'))
    with pytest.raises(RunError, match=r"\(half-of-them-0: empo2\.p_memory; half-of-them-1: empo2\.p_memory\)"):
        run_comparison(changed, out=out)
    settings = '[settings]\n"endpoint.max_cost" = 3.0\n"train.keep_optimizer" = true\n'
    changed.write_text(text.replace("[0, 1]", "[0, 1, 2]") + settings)
    runs = expand_runs(load_spec(changed), changed, out)
    validate_unchanged_settings(runs)
    assert {stage.run.name for stage in list_unfinished_stages(runs)} == {"naive-2", "grpo-2", "half-of-them-2"}
    train = next(stage for stage in list_stages(runs[1]) if stage.name == "train")
    allowed = "--allow-change endpoint.max_cost --allow-change train.keep_optimizer"
    assert " ".join(train.command).endswith(allowed), "or the run itself would refuse"


def test_attempts_by_hand(tmp_path: Path) -> None:
    """Gate i opens in trial i, and the last one never; solved gates are played again in trial 2, the last."""
    adapt_by(Guesser(), "reflexion", tmp_path / "r", eval={"trials": 2}, reflexion={"replay_last": True})
    attempts = build_attempts(read_trial_records(tmp_path / "r"), "success")
    assert attempts is not None
    assert attempts.number == 3
    assert list(attempts.first.values()) == [1.0, 0.0, 0.0, 0.0]
    assert list(attempts.best.values()) == [1.0, 1.0, 1.0, 0.0]
    assert list(attempts.last) == list(attempts.first), "the last trial played all of them"
    figures = {row["figure"]: row["mean"] for row in json.loads((tmp_path / "r/table.json").read_text())["rows"]}
    means = [sum(games.values()) / 4 for games in (attempts.first, attempts.last, attempts.best)]
    assert means == [figures["trial 0"], figures["final trial only"], figures["solved by trial 2"]]


def test_seeds_of_one_method_are_judged_by_the_same_attempt() -> None:
    """Reflexion without `replay_last`: seed 0 wins one of two games at first, seed 1 neither, seed 2 both at once."""
    one, both, neither = {"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 0.0}
    tries = {0: Attempts(2, one, {}, both), 1: Attempts(2, neither, one, one), 2: None}
    nothing: Any = None
    results = [RunResult("Reflexion", seed, nothing, False, both, own, {}, ()) for seed, own in tries.items()]
    given: Any = {"families": {"a": "a", "b": "b"}, "question": SummaryOptions(), "metric": "success"}
    line = _summarise_method("Reflexion", results, baseline=dict.fromkeys(tries, neither), **given)
    assert (line.seeds, line.last, line.final) == ((0, 1, 2), None, line.best)
    assert line.best is not None
    assert line.difference is not None
    assert line.best.mean == line.difference.estimate.mean == pytest.approx((1 + 0.5 + 1) / 3), "of all seeds"
    assert line.iqm == 1.0, "of 1, 1, 1, 0, 1, 1"
    alone = _summarise_method("Reflexion", results[1:2], baseline={}, **given)
    assert (alone.final, alone.num_attempts) == (alone.last, 2)


def test_a_line_counts_the_games_that_every_seed_has_played() -> None:
    nothing: Any = None
    played = {0: {"a": 1.0, "b": 0.0}, 1: {"b": 1.0, "c": 1.0}}
    results = [RunResult("GRPO", seed, nothing, True, games, None, {}, ()) for seed, games in played.items()]
    given: Any = {"families": {game: game for game in "abc"}, "question": SummaryOptions(), "metric": "success"}
    line = _summarise_method("GRPO", results, baseline={}, **given)
    assert (line.num_games, line.one and line.one.mean) == (1, 0.5)


RANDOM = """
[compare]
name = "random"
seeds = [0]
baseline = "naive"

[settings]
model.path = "random"
env = { name = "waymarks-simulator", num_workers = 0, options = { families = ["keys/granite"], actions = true } }
rollout = { style = "terse", show_actions = true, max_context_tokens = 20000, max_observation_tokens = 5000 }
eval.num_tasks = 3

[methods.naive]

[methods.broken]
algorithm = "naive"
"rollout.show_actions" = false
"""


def test_a_run_that_fails_leaves_the_others_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trailnotes_lab.compare.running.POLL_SECONDS", 0.02)
    path, out = tmp_path / "plan.toml", tmp_path / "out"
    path.write_text(RANDOM)
    assert main(["compare", "run", str(path), "--out", str(out)]) == 2
    lines = lines_of(out)
    assert lines["naive"]["num_games"] == 3
    assert lines["broken"]["one"] is None
    assert "lists, here none: set rollout.show_actions = true" in lines["broken"]["missing"]["0"]
    assert "| broken | - | - | - | - | 0 · 0, 1 missing |" in (out / "table.md").read_text()
    err = capsys.readouterr().err
    assert "broken-0  adapt  failed" in err
    assert "1 run without a result; broken with seed 0: ended with status 2" in err
    cost = json.loads((out / "runs/naive-0/cost.json").read_text())
    assert [process["stage"] for process in cost["processes"]] == ["adapt"]
    assert cost["total"]["peak_memory"] > 20 << 20
    assert cost["total"]["seconds"] > cost["total"]["cpu_seconds"] * 0.5 > 0
    assert (out / "compare.toml").read_text() == RANDOM
    assert load_config(out / "settings/naive-0.toml") == load_run_config(out / "runs/naive-0")


def test_the_interquartile_mean_by_hand() -> None:
    assert interquartile_mean(np.array([0.0, 0.0, 9.0])) == 3.0, "floor(3 / 4) = 0 are cut"
    assert interquartile_mean(np.arange(1.0, 9.0)) == 4.5
    assert interquartile_mean(np.repeat([0.0, 0.5, 1.0], [3, 4, 5])) == pytest.approx((0.5 * 4 + 2) / 6)


@pytest.mark.parametrize(
    ("on_panel", "beyond", "call"),
    [
        ((0.1, 0.3), (0.05, 0.4), "higher"),
        ((-0.1, 0.3), (0.05, 0.4), "higher"),  # of two seeds the interval on the panel may be the wider one
        ((0.1, 0.3), (-0.05, 0.4), "higher on this panel"),
        ((0.0, 0.3), (0.0, 0.4), ""),
        (None, (-0.4, -0.05), "lower in these runs"),
        (None, None, ""),
    ],
)
def test_calls_of_a_difference(
    on_panel: tuple[float, float] | None, beyond: tuple[float, float] | None, call: str
) -> None:
    intervals = [Interval(0.0, *limits) if limits else None for limits in (on_panel, beyond)]
    assert Difference(Estimate(0.0, *intervals), 3, 9, 3 if on_panel else 1).call == call


def test_differences_are_paired_by_seed_and_game() -> None:
    """Each seed is 0.5 above its own baseline, whatever lies between the seeds: as differences they are alike."""
    families = {f"{family}{game}": family for family in "ab" for game in range(3)}
    base = {seed: dict.fromkeys(families, 10.0 * seed) for seed in (0, 1)}
    better = {seed: {game: value + 0.5 for game, value in games.items()} for seed, games in base.items()}
    difference = estimate_paired_difference(better, base, families, "return")
    assert difference is not None
    assert (difference.estimate.mean, difference.estimate.not_on_panel) == (0.5, "all seeds alike")
    assert (difference.num_seeds, difference.num_pairs) == (2, 12)
    assert estimate_paired_difference({7: base[0]}, base, families, "return") is None, "no seed in common"


def a_line(label: str, **changes: Any) -> MethodSummary:
    own = Estimate(0.25, Interval(0.25, 0.2, 0.4), Interval(0.25, 0.1, 0.5))
    settings: dict[str, Any] = {
        "trains": True, "seeds": (0, 1), "num_games": 8, "num_attempts": 1, "one": own, "last": None, "best": None,
        "iqm": 0.25, "difference": None, "reached": (), "costs": {"env_steps": 1234.0},
    }  # fmt: skip
    return MethodSummary(label, **settings | changes)


def a_summary(*lines: MethodSummary) -> Summary:
    return Summary("title", "success", "waymarks", 0.5, "", lines, {}, ("A note.",))


def test_the_page_has_every_kind_of_line() -> None:
    """Intervals or why there are none, several attempts, returns, steps to the threshold, spending, missing seeds."""
    gap = Difference(Estimate(0.25, Interval(0.25, 0.125, 0.375), Interval(0.25, -0.125, 0.5)), 3, 24, 3)
    some = replace(gap, estimate=replace(gap.estimate, beyond=Interval(0.25, 0.1, 0.5)), num_seeds=2, num_unlike=2)
    alone, last = Estimate(0.5, None, None, "one seed", "4 of 10 families"), Estimate(0.75, None, None, "a", "b")
    summary = a_summary(
        a_line("A", difference=gap, reached=(12800.0, None), costs={"env_steps": 1234.0, "peak_memory": 3e8}),
        a_line("B", one=alone, iqm=None, reached=(None, None), costs={"spending": 0.5}),
        a_line("C", trains=False, num_attempts=3, last=last, best=last, one_return=alone, last_return=last),
        a_line("D", difference=some, one=None, iqm=None, seeds=(), num_games=0, missing={3: "lost"}, costs={}),
    )
    golden = (GOLDEN / "methods.md").read_text(encoding="utf-8")
    assert render_summary_markdown(replace(summary, baseline="B")) == golden
    record = json.loads(render_summary_json(summary))
    assert [line["missing"] for line in record["lines"]] == [{}, {}, {}, {"3": "lost"}]
    assert record["lines"][0]["reached"] == [12800.0, None]


def test_the_picture_names_the_attempt_that_it_draws() -> None:
    own = Estimate(0.5, None, None)
    line = a_line("A", num_attempts=3, last=own, best=own)
    remarks = _make_main_row(a_summary(line, replace(line, label="B", last=None), a_line("C"))).remarks
    assert remarks == {"A": "last of 3", "B": "best of 3"}


SLOW = """
[compare]
name = "slow"
config = "base.toml"
seeds = [0]
baseline = "grpo"

[budget]
env_steps = 24
trials = 1

[methods.retrospex]
after = "grpo"

[methods.empo2-tips]

[methods.grpo]

[methods.empo2]

[panels."with tips"]
trials = 1
"""


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_resume_after_interrupts_and_kills(start_model: Path, tmp_path: Path) -> None:
    path = write_plan(tmp_path / "plan.toml", SLOW, small_config(model={"path": str(start_model)}))
    command = [sys.executable, "-m", "trailnotes", "compare", "run", str(path), "--out"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run([*command, str(whole)], check=True)
    played = "panels/with-tips/phases/trial-0.episodes.jsonl"
    for number, begun in (
        (signal.SIGINT, "grpo-0/metrics.jsonl"),
        (signal.SIGKILL, f"grpo-0/{played}"),
        (signal.SIGKILL, "empo2-0/metrics.jsonl"),
        (signal.SIGINT, f"empo2-0/{played}"),
    ):
        process = subprocess.Popen([*command, str(cut)], stdout=subprocess.PIPE, text=True)
        wait_for((cut / "runs" / begun).exists, 300)
        pids = children_of(process.pid)
        process.send_signal(number)
        process.communicate(timeout=120)
        assert process.returncode == (130 if number == signal.SIGINT else -9)
        assert not (cut / "table.json").exists()
        for pid in pids:  # of a comparison that is killed they live on; of one that is interrupted, none may
            assert number == signal.SIGKILL or not alive(pid)
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
                wait_for(lambda pid=pid: not alive(pid))
    subprocess.run([*command, str(cut)], check=True)
    tables = [table_of(directory) for directory in (whole, cut)]
    for table in tables:
        for line in table["lines"]:
            assert line["missing"] == {}
            assert line["costs"].pop("seconds") > 0
            for name in ("cpu_seconds", "peak_memory"):  # of a process that the killed one started nobody saw the end
                line["costs"].pop(name, None)
    assert tables[0] == tables[1]
