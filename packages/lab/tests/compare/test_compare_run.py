"""Comparisons: what is planned, what is run and what is not run again, what may be said of it, and how it is shown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest

from adaptrun import Guesser, adapt_by
from children import alive, children_of, wait_for
from small import small_config
from tinyrun import tiny_config, train_in_process
from trailnotes.algorithms.retrospex import RetrospexConfig
from trailnotes.commands import main
from trailnotes.config.builtin import find_config
from trailnotes.config.methods import find_method, list_names
from trailnotes.config.schema import Config
from trailnotes.config.toml import diff_configs, flatten_config, load_config, to_toml
from trailnotes.errors import ConfigError, RunError
from trailnotes.reporting.crossed import MIN_FAMILIES, Values
from trailnotes.reporting.intervals import Estimate, Interval
from trailnotes.runs.adapt import adapt
from trailnotes.runs.directory import load_run_config
from trailnotes.runs.evaluate import evaluate
from trailnotes.storage.files import read_jsonl
from trailnotes_lab.compare import compare_evaluations, recompute, run_comparison
from trailnotes_lab.compare.comparison import _summarise_runs, describe_comparison
from trailnotes_lab.compare.cost import ProcessResult, load_costs, record_process
from trailnotes_lab.compare.expand import PlannedRun, expand_runs
from trailnotes_lab.compare.page import print_brief, render_summary_json, render_summary_markdown
from trailnotes_lab.compare.picture import assign_colours, draw_summary
from trailnotes_lab.compare.results import RunResult, build_attempts, read_result, read_trial_records
from trailnotes_lab.compare.spec import load_spec, slugify
from trailnotes_lab.compare.stages import list_stages, list_unfinished_stages, validate_unchanged_settings
from trailnotes_lab.compare.statistics import (
    BEYOND,
    ON_PANEL,
    Difference,
    compute_iqm,
    estimate_paired_difference,
    estimate_pooled_mean,
    find_steps_to_threshold,
    interquartile_mean,
)
from trailnotes_lab.compare.summary import MethodSummary, Summary, SummaryOptions, summarise

ROOT = Path(__file__).parents[4]
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


# -- the plan


def test_runs_are_methods_times_seeds_that_differ_in_what_is_said(tmp_path: Path) -> None:
    runs = planned(write_plan(tmp_path / "plan.toml"))
    assert list(runs) == ["naive-0", "grpo-0", "half-of-them-0", "naive-1", "grpo-1", "half-of-them-1"]
    assert diff_configs(runs["grpo-0"], runs["grpo-1"]) == ["run.name", "run.seed"]
    assert diff_configs(runs["grpo-0"], runs["half-of-them-0"]) == ["run.name", "algorithm.name", "empo2.p_memory"]
    assert runs["half-of-them-0"].algorithm.name == "empo2"
    assert runs["grpo-0"].train.max_env_steps == 24
    assert (runs["naive-0"].eval.trials, runs["naive-0"].train.max_env_steps) == (1, 0)


def test_tables_and_dotted_keys_say_the_same(tmp_path: Path) -> None:
    text = PLAN.replace(
        '"empo2.p_memory" = 0.5', 'loss.kl = 0.25\n[methods."half of them".env.options]\nfamilies = ["keys/hazel"]'
    )
    runs = planned(
        write_plan(
            tmp_path / "plan.toml", text + '[settings.optim]\nlr = 0.5\n[settings."env.options"]\ndataset_seed = 2'
        )
    )
    half, grpo = runs["half-of-them-0"], runs["grpo-0"]
    assert (half.loss.kl, half.optim.lr, grpo.optim.lr) == (0.25, 0.5, 0.5)
    assert half.env.options == {**grpo.env.options, "families": ["keys/hazel"]}
    assert grpo.env.options["dataset_seed"] == 2


def test_a_budget_of_tokens_is_one_for_all_that_train(tmp_path: Path) -> None:
    runs = planned(write_plan(tmp_path / "plan.toml", PLAN.replace("env_steps = 24", "tokens = 500")))
    assert (runs["grpo-0"].train.max_tokens, runs["grpo-0"].train.max_env_steps) == (500, 0)
    assert runs["naive-0"].train.max_tokens == 0


def test_a_training_keeps_no_optimizer_unless_the_settings_say_so(tmp_path: Path) -> None:
    runs = planned(write_plan(tmp_path / "plan.toml"))
    assert {name: config.train.keep_optimizer for name, config in runs.items() if name.endswith("0")} == {
        "naive-0": True, "grpo-0": False, "half-of-them-0": False,
    }  # fmt: skip
    told = planned(write_plan(tmp_path / "plan.toml", PLAN + "[settings.train]\nkeep_optimizer = true\n"))
    assert told["grpo-0"].train.keep_optimizer


def test_retrospex_learns_from_the_run_of_the_same_seed_wherever_out_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_plan(tmp_path / "plan.toml", PLAN + '[methods.retrospex]\nafter = "grpo"\n')
    assert planned(path)["retrospex-1"].retrospex.data == ("out/runs/grpo-1",)
    assert planned(path, tmp_path / "out") == planned(path)
    (run,) = [run for run in expand_runs(load_spec(path), path, Path("out")) if run.name == "retrospex-1"]
    (stage,) = list_stages(run)
    assert stage.needs == ("grpo-1 train",)
    assert stage.command[1] == "model", "it plays with the model of the settings"


def test_no_method_learns_from_the_panel(tmp_path: Path) -> None:
    """What reflexion plays is the panel: a critic that learned from it would be examined on its own data."""
    after = PLAN + '[methods.reflexion]\n[methods.retrospex]\nafter = "reflexion"\n'
    with pytest.raises(ConfigError, match=r"methods\.retrospex: the episodes of reflexion: 4 of the 4 games"):
        planned(write_plan(tmp_path / "after.toml", after))
    with pytest.raises(ConfigError, match=r"methods\.half of them: train\.split = 'test': 4 of the 4 games"):
        planned(write_plan(tmp_path / "own.toml", PLAN + 'train.split = "test"\n'))
    filled = PLAN + '[methods.rememberer]\n"train.split" = "test"\n'
    with pytest.raises(ConfigError, match=r"methods\.rememberer: what REMEMBERER learns from: 4 of the 4"):
        planned(write_plan(tmp_path / "filled.toml", filled))
    adapting = write_plan(tmp_path / "fine.toml", PLAN + "[methods.reflexion]\n[methods.empo2-tips]\n")
    assert len(planned(adapting)) == 10, "trial after trial on the panel is what these do"


def test_other_methods_without_training_play_the_last_model_of_the_run_they_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_plan(
        tmp_path / "plan.toml", PLAN + '[methods."with tips"]\nalgorithm = "empo2-tips"\nafter = "grpo"\n'
    )
    assert planned(path, tmp_path / "out") == planned(path), "the same settings however --out is written"
    (run,) = [run for run in expand_runs(load_spec(path), path, tmp_path / "out") if run.name == "with-tips-1"]
    (stage,) = list_stages(run)
    assert stage.needs == ("grpo-1 train",)
    words = ("adapt", "out/runs/grpo-1", "--method", "empo2-tips", "--out", str(tmp_path / "out/runs/with-tips-1"))
    assert stage.command[:6] == words
    assert run.config.section(RetrospexConfig).data == ()
    played = run.config.model_copy(update={"model": run.config.model.model_copy(update={"path": "its checkpoint"})})
    run.directory.mkdir(parents=True)
    (run.directory / "config.toml").write_text(to_toml(played))
    validate_unchanged_settings([run])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PLAN.replace('name = "tiny"', "nme = 1"), r"compare\.nme is not a key of a comparison"),
        (PLAN.replace("[0, 1]", "[0, 0]"), "names a seed twice"),
        (PLAN.replace("[0, 1]", "[]"), r"compare\.seeds"),
        (PLAN.replace('"grpo"', '"ppo"'), "'ppo' names no method of the comparison"),
        (PLAN + '[methods."half-of them"]\n', "'half of them' and 'half-of them' would share the directory"),
        (PLAN + '[methods.rloo]\nafter = "grpo"', "rloo trains the model of the settings, .*: drop after"),
        (PLAN + '[methods.empo2-tips]\nafter = "naive"', "after = 'naive' trains no model to start from"),
        (PLAN + '[methods.retrospex]\nafter = "ppo"', "after = 'ppo' names no method of the comparison"),
        (PLAN.replace("env_steps = 24", ""), "train without a budget: set budget.env_steps or budget.tokens"),
        (PLAN + '"train.max_env_steps" = 9', r"half of them sets train\.max_env_steps, which is the comparison's"),
        (PLAN + '"run.seed" = 9', r"sets run\.seed, which is the comparison's"),
        (PLAN + '[settings]\n"run.seed" = 9', r"settings sets run\.seed, which is the comparison's"),
        (PLAN + '"optim.rate" = 9', "plan.toml: .* has no key 'rate'"),
        (PLAN + '"eval.num_tasks" = 9', r"half of them has another eval\.num_tasks than naive: all methods play one"),
        (PLAN + 'label = "GRPO"', "would share the label 'GRPO': rename one"),
        (PLAN + "[methods.ppo]", r"plan\.toml: no method is called .ppo.: choose one of ace"),
        ("[compare", "is not valid TOML"),
        ("[compare]", "methods"),
        ("[rollout]\nnum_tasks = 2", r"add a table \[methods.NAME\] for each, or .* to trailnotes train"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_anything_starts(text: str, message: str, tmp_path: Path) -> None:
    path = write_plan(tmp_path / "plan.toml", text)
    with pytest.raises(ConfigError, match=message):
        run_comparison(path, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_a_model_there_is_nothing_to_compare(tmp_path: Path) -> None:
    path = write_plan(tmp_path / "plan.toml", "[methods.naive]\n")
    with pytest.raises(ConfigError, match=r"model\.path is empty: name the model that all methods start from"):
        run_comparison(path, out=tmp_path / "out")


@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_a_start_that_nobody_has_made_is_refused_before_any_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dry: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trailnotes_lab.compare.running.StageProcess", None)
    write_plan(Path("plan.toml"), base=tiny_config(Path("runs/start")))
    assert main(["compare", "run", "plan.toml", "--out", "out", *dry]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "model.path = 'runs/start': there is no such directory" in said.err


def runs_of_the_repository(name: str) -> list[PlannedRun]:
    path = find_config(f"compare/{name}")
    return expand_runs(load_spec(path), path, Path("out"))


@pytest.mark.parametrize(
    "name",
    ["textworld", "textworld-ablations", "notes", "authors", "small", "smollm2", "smollm2-find", "smollm2-lifespan",
     "smollm2-thermometer", "webshop"],
)  # fmt: skip
def test_the_comparisons_of_the_repository_can_be_read(name: str) -> None:
    runs = runs_of_the_repository(name)
    assert len({run.name for run in runs}) == len(runs)


def test_every_method_is_compared_with_three_seeds() -> None:
    """Beside the published ones, or, for what EMPO2 is related to, by what it does for tips."""
    runs = [run for name in ("textworld", "notes", "field") for run in runs_of_the_repository(name)]
    seeds = {method: {run.seed for run in runs if run.config.algorithm.name == method} for method in list_names()}
    assert {method: len(own) for method, own in seeds.items()} == dict.fromkeys(list_names(), 3)


def test_each_ablation_of_the_repository_changes_something_else() -> None:
    settings = {run.method: run.config for run in runs_of_the_repository("textworld-ablations") if run.seed == 0}
    whole = settings.pop("empo2")
    changes = {method: {key: flatten_config(config)[key] for key in diff_configs(whole, config) if key != "run.name"}
               for method, config in settings.items()}  # fmt: skip
    assert all(changes.values()), changes
    assert len({str(change) for change in changes.values()}) == len(changes)
    shown = [config.algorithm.show_tips for config in settings.values()]
    assert {"other", "empty"} < {*shown}, "the controls: is it what tips say that matters?"


def test_names_of_directories() -> None:
    assert slugify("q = 1") == "q-1"
    assert slugify("p = 1/8") == "p-1-8"
    assert slugify("EMPO²+") == "EMPO²+"
    assert slugify("../..") not in {"..", "../.."}


# -- ready-made runs, by the code that makes them


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


def test_the_table_has_the_numbers_of_the_evaluations(finished: tuple[Path, Path]) -> None:
    _, out = finished
    lines = lines_of(out)
    assert list(lines) == ["naive", "GRPO", "half of them"]
    for name, label in (("naive", "naive"), ("grpo", "GRPO"), ("half-of-them", "half of them")):
        rows = [json.loads((out / f"runs/{name}-{seed}/eval/table.json").read_text())["rows"][0] for seed in (0, 1)]
        assert lines[label]["one"]["mean"] == pytest.approx((rows[0]["mean"] + rows[1]["mean"]) / 2)
        assert lines[label]["one"]["beyond"] is None, "a panel of one family"
        if on_panel := lines[label]["one"]["on_panel"]:
            assert on_panel["low"] <= lines[label]["one"]["mean"] <= on_panel["high"]
        else:
            assert lines[label]["one"]["not_on_panel"] == "all seeds alike"
        assert (lines[label]["seeds"], lines[label]["num_games"], lines[label]["num_attempts"]) == ([0, 1], 4, 1)
        assert (lines[label]["last"], lines[label]["best"], lines[label]["missing"]) == (None, None, {})
    assert lines["GRPO"]["difference"] is None, "it is the baseline"
    gap = lines["naive"]["difference"]
    assert gap["estimate"]["mean"] == pytest.approx(lines["naive"]["one"]["mean"] - lines["GRPO"]["one"]["mean"])
    assert (gap["num_seeds"], gap["num_pairs"]) == (2, 8)


def test_costs_are_those_of_the_runs(finished: tuple[Path, Path]) -> None:
    _, out = finished
    spent = [list(read_jsonl(out / f"runs/grpo-{seed}/metrics.jsonl"))[-1] for seed in (0, 1)]
    costs = lines_of(out)["GRPO"]["costs"]
    for name in ("env_steps", "tokens_generated", "tokens_trained"):
        assert costs[name] == (spent[0][name] + spent[1][name]) / 2
    assert (costs["seconds"], costs["cpu_seconds"], costs["peak_memory"]) == (2e3, 1.5, 300 << 20)
    assert costs["tokens_read"] > costs["tokens_generated"], "each prompt is counted whole"
    naive = lines_of(out)["naive"]["costs"]
    assert naive["tokens_trained"] == 0
    assert naive["tokens_read"] > 0
    assert "spending" not in naive


def test_curves_are_validations_and_only_of_what_was_trained(finished: tuple[Path, Path]) -> None:
    _, out = finished
    curves = table_of(out)["curves"]
    assert set(curves) == {"GRPO", "half of them"}
    lines = list(read_jsonl(out / "runs/grpo-1/metrics.jsonl"))
    assert curves["GRPO"][1] == [[line["env_steps"], line["validation/return"]] for line in lines]


def test_the_markdown_says_how_it_was_made(finished: tuple[Path, Path]) -> None:
    text = (finished[1] / "table.md").read_text()
    assert "| return | mean | on this panel | beyond this panel | IQM | seeds · games |" in text
    assert "| less GRPO | mean | on this panel | beyond this panel | so it is |" in text
    assert f"Beyond this panel nothing is claimed: that takes {MIN_FAMILIES} families" in text
    assert "arXiv 2108.13264" in text
    assert "No correction is made for the number of differences" in text
    assert "peak memory (MB) |" in text
    assert "| GRPO | " in text
    assert (finished[1] / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_other_settings_are_refused_by_name_and_more_runs_are_welcome(finished: tuple[Path, Path]) -> None:
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


def test_what_was_cut_off_is_what_is_left(finished: tuple[Path, Path], tmp_path: Path) -> None:
    path, out = finished
    runs = expand_runs(load_spec(path), path, out)
    table = out / "runs/grpo-0/eval/table.json"
    kept = table.read_bytes()
    table.unlink()
    try:
        assert [stage.key for stage in list_unfinished_stages(runs)] == ["grpo-0 eval"]
        said = describe_comparison(path, out)
    finally:
        table.write_bytes(kept)
    assert f"trailnotes eval {out}/runs/grpo-0 --out {out}/runs/grpo-0/eval" in said
    assert "naive-0: done" in said
    assert "half of them: empo2.p_memory = 0.5" in said
    assert [stage.key for stage in list_unfinished_stages(expand_runs(load_spec(path), path, tmp_path))][1:3] == [
        "grpo-0 train", "grpo-0 eval",
    ]  # fmt: skip


def test_two_comparisons_do_not_share_a_directory(finished: tuple[Path, Path]) -> None:
    from trailnotes.runs.directory import RunLock

    path, out = finished
    lock = RunLock(out / "lock")
    try:
        with pytest.raises(RunError, match="is in use by process"):
            run_comparison(path, out=out)
    finally:
        lock.release()


def test_compare_table_takes_the_runs_of_a_panel_without_published_rows(
    finished: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out = finished
    runs = [f"{out}/runs/{name}={label}" for name, label in
            (("grpo-0", "GRPO"), ("grpo-1", "GRPO"), ("naive-0", "as it is"))]  # fmt: skip
    assert main(["compare", "table", *runs, "--baseline", "GRPO", "--out", str(tmp_path)]) == 0
    mine, whole = lines_of(tmp_path)["GRPO"], lines_of(out)["GRPO"]
    assert mine["one"] == whole["one"]
    assert lines_of(tmp_path)["as it is"]["seeds"] == [0]
    assert "less GRPO" in capsys.readouterr().out
    with pytest.raises(RunError, match="are both 'GRPO' with seed 0"):
        compare_evaluations([runs[0], f"{out}/runs/naive-0=GRPO"])
    with pytest.raises(ConfigError, match="no line is called 'RLOO'"):
        compare_evaluations(runs, baseline="RLOO")
    assert main(["compare", "table", "--panel", "scienceworld-18", *runs]) == 2


def test_a_record_gives_the_table_of_its_comparison_again_and_more_runs_may_join_it(
    finished: tuple[Path, Path], tmp_path: Path
) -> None:
    path, out = finished
    pack = run_path(str(ROOT / "docs/results/records.py"))["main"]
    for name in ("one", "again"):
        pack(out, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "again").read_bytes()
    with tarfile.open(tmp_path / "one") as archive:
        archive.extractall(tmp_path, filter="data")
    assert not list((tmp_path / "out").rglob("*.safetensors"))
    assert main(["compare", "table", str(tmp_path / "out"), "--out", str(tmp_path / "table")]) == 0
    assert (tmp_path / "table/table.json").read_bytes() == (out / "table.json").read_bytes()
    more_seeds = path.with_name("more-seeds.toml")
    more_seeds.write_text(path.read_text().replace("seeds = [0, 1]", "seeds = [0, 1, 7]"))
    more = expand_runs(load_spec(more_seeds), more_seeds, tmp_path / "out")
    assert {stage.run.name for stage in list_unfinished_stages(more)} == {"naive-7", "grpo-7", "half-of-them-7"}


def test_a_record_of_somebody_else_imports_nothing(
    finished: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hostile.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    Path("compare.toml").write_text(PLAN.replace("[methods.naive]", '[methods.naive]\nalgorithm = "hostile:METHOD"'))
    with pytest.raises(RunError):  # no run has a result
        recompute(tmp_path)
    assert not Path("ran").exists()
    with pytest.raises(ConfigError, match="hostile:METHOD"):
        load_spec(Path("compare.toml"))
    assert Path("ran").exists()


def test_evaluations_of_another_panel_are_refused(finished: tuple[Path, Path], tmp_path: Path) -> None:
    run = finished[1] / "runs/grpo-0"
    config = load_run_config(run)
    other = config.model_copy(update={"eval": config.eval.model_copy(update={"num_tasks": 3})})
    evaluate(other, run, out=tmp_path / "other")
    with pytest.raises(RunError, match="are of different panels or metrics"):
        compare_evaluations([str(run), str(tmp_path / "other")])


# -- several attempts


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


def test_a_game_that_failed_in_the_last_trial_was_still_attempted_in_it(tmp_path: Path) -> None:
    run = tmp_path / "r"
    adapt_by(Guesser(), "reflexion", run, eval={"trials": 2}, reflexion={"replay_last": True})
    before = read_result(run)
    assert before.attempts is not None
    lost = list(before.attempts.first)[1]

    for path in (run / "trajectories.jsonl", run / "eval/episodes.jsonl"):
        records = list(read_jsonl(path))
        for record in records:
            if record["task"]["id"] == lost and record.get("iteration") == records[-1].get("iteration"):
                record["outcome"] = "error"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    after = read_result(run)
    assert after.attempts is not None
    assert after.attempts.last == {game: value for game, value in before.attempts.last.items() if game != lost}
    assert after.final == after.attempts.last, "not judged by the best of its attempts"
    line = summarise([after], SummaryOptions()).lines[0]
    assert line.one is not None, "the lost game has its family from other trials"
    assert line.one.mean == 0.25


def test_phases_that_are_no_trials_are_no_attempts(tmp_path: Path) -> None:
    """Retrospex plays the panel without its critic, too, and REMEMBERER other games: neither is told of the other."""
    run = tmp_path / "r"
    adapt_by(Guesser(), "reflexion", run, eval={"trials": 1})
    assert build_attempts(read_trial_records(run), "success") is not None
    lines = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(lines.replace('"trial-0"', '"plain"').replace('"trial-1"', '"rescored"'))
    assert build_attempts(read_trial_records(run), "success") is None


def test_several_attempts_never_stand_in_the_column_of_one(tmp_path: Path) -> None:
    adapt_by(Guesser(), "naive", tmp_path / "n")
    adapt_by(Guesser(), "reflexion", tmp_path / "r", eval={"trials": 2}, reflexion={"replay_last": True})
    results = [read_result(tmp_path / name, label) for name, label in (("n", "naive"), ("r", "Reflexion"))]
    summary = summarise(results, SummaryOptions(baseline="naive"))
    naive, reflexion = summary.lines
    assert (naive.one and naive.one.mean, naive.last, naive.num_attempts) == (0.25, None, 1)
    assert (reflexion.one and reflexion.one.mean, reflexion.num_attempts) == (0.25, 3)
    assert reflexion.final == reflexion.last
    assert reflexion.difference is not None
    assert reflexion.difference.estimate.mean == (reflexion.last.mean if reflexion.last else 0) - 0.25
    text = render_summary_markdown(summary)
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| Reflexion, ")]
    assert [row[:2] for row in rows] == [
        ["| Reflexion, first of 3", "0.250"], ["| Reflexion, last", "0.750"], ["| Reflexion, best", "0.750"],
    ]  # fmt: skip
    assert [row[4] == "-" for row in rows] == [True, False, True], "the IQM is of what it is judged by"
    assert "| naive | 0.250 | one seed |" in text


def test_the_return_stands_beside_success_where_it_says_more(tmp_path: Path) -> None:
    adapt_by(Guesser(), "naive", tmp_path / "n")
    adapt_by(Guesser(), "reflexion", tmp_path / "r", eval={"trials": 2}, reflexion={"replay_last": True})
    results = [read_result(tmp_path / name, label) for name, label in (("n", "naive"), ("r", "Reflexion"))]
    assert "| return |" not in render_summary_markdown(summarise(results, SummaryOptions()))
    for path in tmp_path.glob("*/**/*.jsonl"):
        path.write_text(
            path.read_text().replace('"return":1.0', '"return":0.5').replace('"return": 1.0', '"return":0.5')
        )
    results = [read_result(tmp_path / name, label) for name, label in (("n", "naive"), ("r", "Reflexion"))]
    rows = [
        line.split(" | ") for line in render_summary_markdown(summarise(results, SummaryOptions())).splitlines()[4:8]
    ]
    assert [row[5].split()[0] for row in rows] == ["0.125", "0.125", "0.375", "-"]


def test_a_comparison_that_is_too_short_to_rank_says_so_first(tmp_path: Path) -> None:
    """The first one that anybody runs showed GRPO at .88 above EMPO2 at .69."""
    plan = load_spec(find_config("compare/small"))
    assert plan.compare.remark == "Too short to rank methods"
    assert plan.compare.baseline == "", "no difference, so nothing is called higher"
    path, out = tmp_path / "plan.toml", tmp_path / "out"
    path.write_text(
        RANDOM.partition("[methods.broken]")[0].replace('baseline = "naive"', f'remark = "{plan.compare.remark}"')
    )
    (run,) = expand_runs(load_spec(path), path, out)
    adapt_by(Guesser(), "naive", run.directory)  # as if it had been played
    (out / "table.md").write_text("")
    summary = _summarise_runs(load_spec(path), {}, out, out)
    assert summary.title.startswith("Too short to rank methods: success on 4 games")
    assert (out / "table.md").read_text().startswith("# Too short to rank methods: success on")
    assert "- Too short to rank methods: read no order of the methods from this table." in render_summary_markdown(
        summary
    )
    assert json.loads((out / "table.json").read_text())["title"] == summary.title


def test_where_solved_games_are_left_out_there_is_no_last_attempt(tmp_path: Path) -> None:
    adapt_by(Guesser(), "reflexion", tmp_path / "r", eval={"trials": 2})
    summary = summarise([read_result(tmp_path / "r", "Reflexion")], SummaryOptions())
    (line,) = summary.lines
    assert line.last is None
    assert line.final == line.best
    assert any("has no last attempt, and is judged by the cumulative figure" in note for note in summary.notes)


# -- runs that fail


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
    assert "ended with status 2" in lines["broken"]["missing"]["0"]
    assert "lists, here none: set rollout.show_actions = true" in lines["broken"]["missing"]["0"]
    assert "| broken | - | - | - | - | 0 · 0, 1 missing |" in (out / "table.md").read_text()
    err = capsys.readouterr().err
    assert "naive-0  adapt  done" in err
    assert "broken-0  adapt  failed" in err
    assert "1 run without a result; broken with seed 0: ended with status 2" in err
    cost = json.loads((out / "runs/naive-0/cost.json").read_text())
    assert [process["stage"] for process in cost["processes"]] == ["adapt"]
    assert cost["total"]["peak_memory"] > 20 << 20
    assert cost["total"]["seconds"] > cost["total"]["cpu_seconds"] * 0.5 > 0
    assert (out / "compare.toml").read_text() == RANDOM
    assert load_config(out / "settings/naive-0.toml") == load_run_config(out / "runs/naive-0")


def test_without_any_result_there_is_no_table() -> None:
    with pytest.raises(RunError, match="no run of the comparison has a result: GRPO with seed 0 was ended by signal 9"):
        summarise([], SummaryOptions(labels=["GRPO"], missing={("GRPO", 0): "was ended by signal 9"}))


def test_costs_are_summed_over_starts_but_for_the_peak(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"iteration": 0, "env_steps": 7, "tokens_read": 9, "endpoint/cost": 0.25, "seconds": 4.5}\n{'
    )
    for stage, ended in (("train", ProcessResult(-15, 2.0, 1.0, 50)), ("train", ProcessResult(0, 3.0, 2.5, 40)),
                         ("eval", ProcessResult(0, 9.0, 9.0, 90))):  # fmt: skip
        record_process(tmp_path, stage, ended)
    assert load_costs(tmp_path) == {
        "env_steps": 7, "tokens_read": 9, "spending": 0.25, "seconds": 5.0, "cpu_seconds": 3.5, "peak_memory": 50,
    }  # fmt: skip
    (tmp_path / "cost.json").write_text("{")
    assert load_costs(tmp_path) == {"env_steps": 7, "tokens_read": 9, "spending": 0.25, "seconds": 4.5}


def test_processor_seconds_of_a_process_that_nobody_saw_end_are_not_known(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"starts": [{}, {}]}))
    record_process(tmp_path, "train", ProcessResult(0, 2.0, 1.5, 300))
    assert load_costs(tmp_path) == {"seconds": 2.0, "peak_memory": 300}, "one start of two"
    record_process(tmp_path, "train", ProcessResult(0, 1.0, 0.5, 200))
    assert load_costs(tmp_path) == {"seconds": 3.0, "cpu_seconds": 2.0, "peak_memory": 300}


# -- what may be said

FAMILIES = {f"{family}{game}": family for family in "ab" for game in range(3)}


def values(**seeds: Sequence[float]) -> Values:
    """``s0=(...)``: three games of family a, three of b."""
    return {int(name[1:]): dict(zip(FAMILIES, own, strict=True)) for name, own in seeds.items()}


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ([3.0], 3.0),
        ([0.0, 1.0], 0.5),
        ([0.0, 0.0, 9.0], 3.0),  # floor(3 / 4) = 0 are cut
        ([9.0, 1.0, 2.0, 0.0], 1.5),
        ([1, 2, 3, 4, 5, 6, 7, 8], 4.5),
        ([0, 0, 0, 0.5, 0.5, 0.5, 0.5, 1, 1, 1, 1, 1], (0.5 * 4 + 2) / 6),
    ],
)
def test_the_interquartile_mean_by_hand(scores: list[float], mean: float) -> None:
    assert interquartile_mean(np.asarray(scores, dtype=float)) == pytest.approx(mean)


def test_the_interquartile_mean_is_over_seeds_and_families() -> None:
    """Family a is 0, 1/3 and b 1, 2/3: of four means the middle two."""
    assert compute_iqm(values(s0=(0, 0, 0, 1, 1, 1), s1=(0, 0, 1, 1, 1, 0)), FAMILIES) == pytest.approx(0.5)


def test_the_interquartile_mean_is_of_the_games_that_every_seed_has_played() -> None:
    lost = {0: {"a0": 1.0, "a1": 0.0, "b0": 1.0}, 1: {"a0": 1.0, "b0": 1.0}}
    assert compute_iqm(lost, FAMILIES) == 1.0


def test_success_has_bounds_and_a_return_has_none() -> None:
    played = values(s0=(0, 0, 0, 0, 0, 1), s1=(0, 0, 0, 0, 0, 0))
    success, returns = (
        estimate_pooled_mean(played, FAMILIES, "success"),
        estimate_pooled_mean(played, FAMILIES, "return"),
    )
    assert success.on_panel is not None
    assert returns.on_panel is not None
    assert success.on_panel.low == 0.0
    assert returns.on_panel.low < 0.0


def a_difference(on_panel: tuple[float, float] | None, beyond: tuple[float, float] | None) -> Difference:
    intervals = [Interval(0.0, *limits) if limits else None for limits in (on_panel, beyond)]
    return Difference(Estimate(0.0, *intervals), 3, 9, 3 if on_panel else 1)


@pytest.mark.parametrize(
    ("on_panel", "beyond", "call"),
    [
        ((0.1, 0.3), (0.05, 0.4), "higher"),
        ((-0.3, -0.1), (-0.4, -0.05), "lower"),
        ((-0.1, 0.3), (0.05, 0.4), "higher"),  # of two seeds the interval on the panel may be the wider one
        ((0.1, 0.3), (-0.05, 0.4), "higher on this panel"),
        ((0.1, 0.3), None, "higher on this panel"),
        ((-0.3, -0.1), None, "lower on this panel"),
        ((-0.1, 0.3), (-0.05, 0.4), ""),
        ((0.0, 0.3), (0.0, 0.4), ""),
        (None, (0.05, 0.4), "higher in these runs"),
        (None, (-0.4, -0.05), "lower in these runs"),
        (None, None, ""),
    ],
)
def test_higher_is_said_beyond_the_panel_or_with_the_words_on_this_panel(
    on_panel: tuple[float, float] | None, beyond: tuple[float, float] | None, call: str
) -> None:
    assert a_difference(on_panel, beyond).call == call


def test_of_one_seed_it_is_said_in_this_run() -> None:
    assert replace(a_difference(None, (0.05, 0.4)), num_seeds=1).call == "higher in this run"


@pytest.mark.parametrize("seeds", [2, 3])
def test_two_runs_make_no_bold_call(seeds: int) -> None:
    """EMPO2 loses one game of 40 with each seed, another each time, and GRPO loses all."""
    families = {f"{family}{game}": str(family) for family in range(20) for game in range(2)}
    grpo = {seed: dict.fromkeys(families, 0.0) for seed in range(seeds)}
    empo2 = {seed: {game: float(game != f"{seed}0") for game in families} for seed in range(seeds)}
    difference = estimate_paired_difference(empo2, grpo, families, "success")
    assert difference is not None
    assert difference.num_unlike == seeds
    assert difference.call == {2: "higher in these runs", 3: "higher"}[seeds]
    summary = replace(a_summary(a_line("A", difference=difference)), baseline="B")
    (row,) = [line for line in render_summary_markdown(summary).splitlines() if line.startswith("| A | +")]
    assert ("**" in row) == (seeds == 3)


def test_two_runs_make_no_call_on_this_panel() -> None:
    assert replace(a_difference((0.1, 0.3), None), num_unlike=2).call == ""


@pytest.mark.parametrize("seeds", [1, 3, 100])
def test_copies_of_a_seed_make_no_call(seeds: int) -> None:
    """GRPO wins 2 of 4 families and EMPO2 all 4, in every seed alike: nothing is known of other seeds or families."""
    families = {f"{family}{game}": family for family in "abcd" for game in range(5)}
    grpo = {seed: {game: float(family in "ab") for game, family in families.items()} for seed in range(seeds)}
    empo2 = {seed: dict.fromkeys(families, 1.0) for seed in range(seeds)}
    difference = estimate_paired_difference(empo2, grpo, families, "success")
    assert difference is not None
    assert (difference.estimate.mean, difference.call) == (0.5, "")


def test_differences_are_paired_by_seed_and_game() -> None:
    """Each seed is 0.5 above its own baseline, whatever lies between the seeds: as differences they are alike."""
    base = values(s0=(0,) * 6, s1=(10,) * 6)
    better = {seed: {game: value + 0.5 for game, value in games.items()} for seed, games in base.items()}
    difference = estimate_paired_difference(better, base, FAMILIES, "return")
    assert difference is not None
    assert (difference.estimate.mean, difference.estimate.not_on_panel) == (0.5, "all seeds alike")
    assert (difference.num_seeds, difference.num_pairs) == (2, 12)
    assert estimate_paired_difference({7: base[0]}, base, FAMILIES, "return") is None, "no seed in common"


def test_steps_to_a_threshold() -> None:
    curve = [(10.0, 0.1), (20.0, 0.5), (30.0, 0.4), (40.0, 0.9)]
    assert (
        find_steps_to_threshold(curve, 0.5),
        find_steps_to_threshold(curve, 0.6),
        find_steps_to_threshold(curve, 1.0),
    ) == (20.0, 40.0, None)


# -- how it is shown


def a_line(label: str, **changes: Any) -> MethodSummary:
    own = Estimate(0.25, Interval(0.25, 0.2, 0.4), Interval(0.25, 0.1, 0.5))
    settings: dict[str, Any] = {
        "trains": True, "seeds": (0, 1), "num_games": 8, "num_attempts": 1, "one": own, "last": None, "best": None,
        "iqm": 0.25, "difference": None, "reached": (), "costs": {"env_steps": 1234.0},
    }  # fmt: skip
    return MethodSummary(label, **settings | changes)


def a_summary(*lines: MethodSummary) -> Summary:
    return Summary("title", "success", "waymarks", 0.5, "", lines, {}, ("A note.",))


def test_both_intervals_stand_under_their_names_or_the_reason_that_there_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone = Estimate(0.5, None, None, "one seed", "4 of 10 families")
    gap = Difference(Estimate(0.25, Interval(0.25, 0.125, 0.375), Interval(0.25, -0.125, 0.5)), 3, 24, 3)
    summary = replace(a_summary(a_line("A", difference=gap), a_line("B", one=alone, iqm=None)), baseline="B")
    rows = render_summary_markdown(summary).splitlines()
    assert "| A | 0.250 | [0.200, 0.400] | [0.100, 0.500] | 0.250 | 2 · 8 |" in rows
    assert "| B | 0.500 | one seed | 4 of 10 families | - | 2 · 8 |" in rows
    assert "| A | +0.250 | [+0.125, +0.375] | [-0.125, +0.500] | **higher on this panel** |" in rows
    print_brief(summary)
    said = capsys.readouterr().out
    assert "higher on this panel" in said
    assert "A note." in said
    assert max(len(line) for line in said.splitlines() if "─" in line) <= 100


def test_the_picture_has_intervals_of_one_kind_and_names_it(tmp_path: Path, figures: list[Any]) -> None:
    """Beyond the panel where any method has that, and then no other; on the panel where none has."""
    short = Estimate(0.25, Interval(0.25, 0.2, 0.4), None, "", "4 of 10 families")
    draw_summary(a_summary(a_line("A"), a_line("B", one=short)), tmp_path / "a.png")
    draw_summary(a_summary(a_line("B", one=short)), tmp_path / "b.png")
    beyond, on_panel = (figure.axes[-1] for figure in figures)
    assert BEYOND in beyond.get_title(loc="left")
    assert ON_PANEL in on_panel.get_title(loc="left")
    bars = [
        [tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2] for axes in (beyond, on_panel)
    ]
    assert bars == [[(0.1, 0.5)], [(0.2, 0.4)]]


def test_what_was_not_reached_is_said_to_be_so() -> None:
    text = render_summary_markdown(a_summary(a_line("A", reached=(12800.0, None)), a_line("B", reached=(None, None))))
    assert "| A | 12,800 | 1 of 2 |" in text
    assert "| B | not reached in 1,234 | 0 of 2 |" in text


def test_spending_is_a_column_only_where_something_was_charged() -> None:
    assert "spending" not in render_summary_markdown(a_summary(a_line("A"))).replace("- ", "")
    text = render_summary_markdown(a_summary(a_line("A", costs={"spending": 0.5}), a_line("B")))
    assert "| spending |" in text
    assert "| 0.5000 |" in text


def test_unequal_budgets_are_said(finished: tuple[Path, Path]) -> None:
    results = [read_result(finished[1] / "runs" / name, name) for name in ("grpo-0", "half-of-them-0")]
    even = summarise(results, SummaryOptions())
    assert not any("differ by more than" in note for note in even.notes)
    more = RunResult(
        **{f: getattr(results[0], f) for f in RunResult.__dataclass_fields__} | {"costs": {"env_steps": 30.0}}
    )
    assert any("environment steps of training differ by more than 2%" in note
               for note in summarise([more, results[1]], SummaryOptions()).notes)  # fmt: skip


def test_json_holds_what_was_shown() -> None:
    record = json.loads(render_summary_json(a_summary(a_line("A", reached=(None, 5.0), missing={3: "lost"}))))
    (line,) = record["lines"]
    assert (line["reached"], line["missing"]) == ([None, 5.0], {"3": "lost"})


def test_every_method_has_a_colour_of_its_own() -> None:
    assert len({find_method(name).colour for name in list_names()}) == len(list_names())
    assert len({find_method(name).label for name in list_names()}) == len(list_names())
    colours = assign_colours(["EMPO²", "p = 1/8", "p = 1/2"])
    assert colours["EMPO²"] == find_method("empo2").colour
    assert len(set(colours.values())) == 3


CURVE = [[(0.0, 0.0), (100.0, 0.4)], [(0.0, 0.2), (100.0, 0.6)]]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every figure that is drawn, kept open until the test has looked."""
    import matplotlib.pyplot as plt

    drawn: list[Any] = []
    monkeypatch.setattr(plt, "close", drawn.append)
    return drawn


def test_the_picture_shows_the_numbers_given(tmp_path: Path, figures: list[Any]) -> None:
    naive = a_line("naive", one=Estimate(0.1, None, None), num_attempts=3)
    summary = a_summary(a_line("GRPO"), naive, a_line("RLOO", one=None))
    draw_summary(replace(summary, curves={"GRPO": CURVE}), tmp_path / "a.png")
    draw_summary(a_summary(naive), tmp_path / "b.png")
    left, right = figures[0].axes
    (curve,) = [line for line in left.lines if line.get_label() == "GRPO"]
    assert (curve.get_ydata()[0], curve.get_ydata()[-1]) == pytest.approx((0.1, 0.5))
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["GRPO", "naive"]
    assert [line.get_xdata()[0] for line in right.lines if line.get_marker() == "o"] == [0.25, 0.1]
    assert [text.get_text() for text in right.get_yticklabels()] == ["GRPO", "naive\n(last of 3)", "RLOO"]
    assert {text.get_text() for text in right.texts} == {"0.25", "0.10", "no result"}
    assert len(figures[1].axes) == 1, "without a curve the final figures stand alone"


# -- from end to end

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


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_interrupted_and_killed_it_ends_as_if_left_alone(start_model: Path, tmp_path: Path) -> None:
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
        wait_for((cut / "runs" / begun).exists, 120)
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
