from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from children import alive, children_of, wait_for
from small import SETTINGS as SMALL
from small import small_config
from trailnotes.config.builtin import find_config
from trailnotes.config.toml import load_config, to_toml
from trailnotes.envs.tasks import load_panel, tasks_of
from trailnotes.errors import ConfigError, RunError
from trailnotes.runs.panels import get_family
from trailnotes.storage.files import read_jsonl
from trailnotes_lab.commands.demo import SEEDS, build_demo_spec, run_demo
from trailnotes_lab.compare import recompute
from trailnotes_lab.compare.spec import parse_spec
from trailnotes_lab.compare.summary import Summary

SETTINGS = ["--eval.num_tasks", "2"]


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trailnotes_lab.compare.running.POLL_SECONDS", 0.02)


def config_file(start: Path, path: Path) -> Path:
    new = {"new_families": ["route/birch", "keys/hazel"]}
    options = SMALL["env"]["options"] | new
    own = small_config(model={"path": str(start)}, train={"max_env_steps": 24}, env={"options": options})
    path.write_text(to_toml(own))
    return path


@pytest.fixture(scope="module")
def finished_demo(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Summary]:
    """Config, directory and summary of a demo of one seed."""
    directory = tmp_path_factory.mktemp("demo")
    path = config_file(start_model, directory / "demo.toml")
    return path, directory / "out", play(path, directory / "out")


def play(path: Path, out: Path) -> Summary:
    """A demo of one seed, and of one trial where the whole one has more."""
    return run_demo(out, config_path=path, seeds=[0], trials=1, new_trials=1, settings=SETTINGS)


# -- from end to end


def test_the_table_is_as_promised(finished_demo: Any) -> None:
    _, out, _ = finished_demo
    lines = {line["label"]: line for line in json.loads((out / "table.json").read_text())["lines"]}
    assert list(lines) == ["start model", "GRPO", "EMPO²"]
    for line in lines.values():
        assert (line["seeds"], line["num_games"], line["missing"]) == ([0], 2, {})
        assert line["costs"]["seconds"] > 0
    for name, label in (("grpo", "GRPO"), ("empo2", "EMPO²")):
        spent = list(read_jsonl(out / "runs" / f"{name}-0" / "metrics.jsonl"))[-1]
        assert lines[label]["costs"]["env_steps"] == spent["env_steps"] >= 24
        assert lines[label]["costs"]["tokens_generated"] == spent["tokens_generated"] > 0
    assert [line["num_attempts"] for line in lines.values()] == [1, 1, 1]
    assert [line["trains"] for line in lines.values()] == [False, True, True]


def test_three_panels_are_examined(finished_demo: Any) -> None:
    _, out, summary = finished_demo
    assert recompute(out) == summary
    tips, new = json.loads((out / "table.json").read_text())["panels"]
    assert (tips["label"], tips["same_games"]) == ("trained families, with tips", True)
    assert (new["label"], new["same_games"]) == ("new families", False)
    assert [line["label"] for line in tips["lines"]] == ["start model", "EMPO²"]
    assert [line["label"] for line in new["lines"]] == ["start model", "GRPO", "EMPO²"]
    for line in (*tips["lines"], *new["lines"]):
        assert (line["seeds"], line["num_games"], len(line["trials"])) == ([0], 2, 2)
    played = list(read_jsonl(out / "runs/empo2-0/panels/new/trajectories.jsonl"))
    assert {record["task"]["id"].split("/")[2] for record in played} == {"birch", "hazel"}
    assert [record["mode"] for record in played] == ["plain", "plain", "on_policy_tips", "on_policy_tips"]


def test_it_leaves_one_table_a_picture_and_a_story(finished_demo: Any) -> None:
    _, out, _ = finished_demo
    assert [path.relative_to(out).as_posix() for path in out.glob("*.json")] == ["table.json"]
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (
        "## new families: success on 2 games (waymarks-simulator, new), trial by trial"
        in (out / "table.md").read_text()
    )
    assert (out / "story.txt").read_text().strip()


def test_the_runs_differ_in_method_and_seed_alone(finished_demo: Any) -> None:
    _, out, _ = finished_demo
    runs = [(out / "runs" / name / "config.toml").read_text().splitlines() for name in ("grpo-0", "empo2-0")]
    differing = {a.split(" = ")[0] for a, b in zip(*runs, strict=True) if a != b}
    assert differing == {"name"}  # of the method, and of the run
    panels = [list(read_jsonl(out / "runs" / name / "eval" / "episodes.jsonl"))
              for name in ("start-0", "grpo-0", "empo2-0", "empo2-0/panels/with-tips")]  # fmt: skip
    assert [{record["mode"] for record in panel} for panel in panels] == [*[{"plain"}] * 3, {"on_policy_tips"}]
    tasks = [[record["task"] for record in panel] for panel in panels]
    assert tasks[0] == tasks[1] == tasks[2] == tasks[3]


def test_tips_are_read_by_the_model_that_was_trained(finished_demo: Any) -> None:
    _, out, _ = finished_demo
    model = json.loads((out / "runs/empo2-0/panels/with-tips/eval/panel.json").read_text())["model"]
    assert Path(model).resolve().parents[2] == (out / "runs/empo2-0").resolve()


def test_once_more_runs_nothing_and_says_the_same(
    finished_demo: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out, summary = finished_demo
    monkeypatch.setattr("trailnotes_lab.compare.running.StageProcess", None)
    before = (out / "table.json").read_bytes()
    assert play(path, out) == summary
    assert (out / "table.json").read_bytes() == before
    said = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in said.splitlines() if line[:1] == "│"]
    methods = ["start model", "GRPO", "EMPO²"]
    assert [row[0] for row in cells] == [*methods, "start model", "EMPO²"], "results, then differences"
    assert all(row[2] == "one seed" for row in cells)
    assert "success on 2 games (waymarks-simulator, test)" in said
    assert "Differences to GRPO" in said
    assert "trained families, with tips, after 1 trial: start model " in said
    assert "new families, trial by trial: start model " in said
    assert all(str(out / name) in said for name in ("curves.png", "table.json", "story.txt"))
    assert max(len(line) for line in said.splitlines() if "─" in line) <= 100


def test_a_panel_that_was_cut_off_is_played_again(finished_demo: Any) -> None:
    path, out, summary = finished_demo
    panel = out / "runs" / "grpo-0" / "eval"
    before = (panel / "episodes.jsonl").read_text()
    (panel / "episodes.jsonl").unlink()
    (panel / "table.json").unlink()
    again = play(path, out)
    assert [line.final for line in again.lines] == [line.final for line in summary.lines]
    assert (panel / "episodes.jsonl").read_text() == before


def test_a_demo_of_other_settings_is_refused(finished_demo: Any) -> None:
    path, out, _ = finished_demo
    before = (out / "table.json").read_bytes()
    with pytest.raises(
        RunError, match=r"holds runs with other settings \(start-0: optim\.lr; grpo-0: optim\.lr; .*another --out"
    ):
        run_demo(out, config_path=path, seeds=[0], trials=1, new_trials=1, settings=[*SETTINGS, "--optim.lr", "0.5"])
    assert (out / "table.json").read_bytes() == before


def test_without_a_number_of_environment_steps_there_is_nothing_to_compare(start_model: Path, tmp_path: Path) -> None:
    path = config_file(start_model, tmp_path / "demo.toml")
    with pytest.raises(ConfigError, match=r"set train\.max_env_steps"):
        run_demo(tmp_path / "out", config_path=path, settings=["--train.max_env_steps", "0"])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_interrupted_with_two_seeds_it_ends_as_if_left_alone(start_model: Path, tmp_path: Path) -> None:
    path = config_file(start_model, tmp_path / "demo.toml")
    code = (
        "import sys; from pathlib import Path; from trailnotes_lab.commands.demo import run_demo;"
        f"run_demo(Path(sys.argv[1]), config_path=Path({str(path)!r}), seeds=[0, 1], trials=1, new_trials=1,"
        f"settings={SETTINGS!r})"
    )
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run([sys.executable, "-c", code, str(whole)], check=True)
    process = subprocess.Popen([sys.executable, "-c", code, str(cut)], stdout=subprocess.PIPE, text=True)
    wait_for(lambda: any(cut.glob("runs/*o*-0/metrics.jsonl")), 120)
    pids = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert pids
    assert not any(alive(pid) for pid in pids)
    assert not (cut / "table.json").exists()
    assert "the same command resumes from here" in output
    subprocess.run([sys.executable, "-c", code, str(cut)], check=True)
    tables = [json.loads((directory / "table.json").read_text()) for directory in (whole, cut)]
    for table in tables:
        for line in table["lines"]:
            for name in ("seconds", "cpu_seconds", "peak_memory"):
                line["costs"].pop(name)
    assert tables[0] == tables[1]
    assert tables[0]["lines"][1]["seeds"] == [0, 1]


# -- the plan


def test_the_plan_is_that_of_the_repository() -> None:
    path = find_config("demo")
    plan = parse_spec(build_demo_spec(path, SEEDS, (3, 4), ["--optim.lr", "0.5"]), path)
    assert plan.labels() == {"start": "start model", "grpo": "GRPO", "empo2": "EMPO²"}
    assert (plan.compare.seeds, plan.budget.env_steps, plan.settings) == ((3, 4, 5), 32000, {"optim": {"lr": 0.5}})
    assert {name: (panel.trials, plan.list_panel_methods(name)) for name, panel in plan.panels.items()} == {
        "with tips": (3, ["start", "empo2"]), "new": (4, ["start", "grpo", "empo2"]),
    }  # fmt: skip


def test_the_new_families_of_the_demo_are_as_many_and_none_of_them_is_trained() -> None:
    config = load_config("demo")
    examined = config.model_copy(update={"eval": config.eval.model_copy(update={"split": "new"})})
    new, trained = ({get_family(task) for task in tasks} for tasks in (load_panel(examined), tasks_of(config, "train")))
    assert len(new) == len(trained) == 12
    assert not new & trained
    assert len({get_family(task) for task in tasks_of(config, "new-validation")}) == 4
