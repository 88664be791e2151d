"""Panels beside the main one: who plays them, what is refused, what is said of them, and how they are drawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from small import small_config
from trailnotes.config.schema import Config
from trailnotes.config.toml import to_toml
from trailnotes.errors import ConfigError, RunError
from trailnotes.runs.usage import TABLE_FIELDS
from trailnotes.storage.files import append_jsonl
from trailnotes_lab.compare.comparison import _summarise_runs, run_comparison
from trailnotes_lab.compare.expand import expand_runs
from trailnotes_lab.compare.page import print_brief, render_summary_markdown
from trailnotes_lab.compare.results import read_result
from trailnotes_lab.compare.running import list_stages
from trailnotes_lab.compare.spec import load_spec
from trailnotes_lab.compare.summary import Summary

GOLDEN = Path(__file__).with_name("golden")
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


def write_plan(path: Path, text: str = PLAN) -> Path:
    """Write a comparison of two trained families and two new ones, beside the settings that it names."""
    base = small_config(model={"path": "model"}, env={"options": OPTIONS}, eval={"num_tasks": 2})
    path.with_name("base.toml").write_text(to_toml(base))
    path.write_text(text)
    return path


def test_panels_follow_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_plan(tmp_path / "plan.toml")
    runs = {run.name: run for run in expand_runs(load_spec(path), path, Path("out"))}
    stages = {name: {stage.name: stage for stage in list_stages(runs[name])} for name in runs}
    assert [*stages["empo2-1"]] == ["train", "eval", "eval with tips", "eval new"]
    assert stages["empo2-1"]["eval"].command[-2:] == ("--config", "out/settings/empo2-1.toml")
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PLAN.replace("trials = 2", ""), r"panels\.new has no trials: name how many with tips, such as trials = 3"),
        (PLAN.replace('["start", "empo2"]', '["ppo"]'), r"panels\.with tips: methods names 'ppo', which is no method"),
        (PLAN + '"eval.trials" = 3', r"panels\.new sets eval\.trials, which is the comparison's to set"),
        (PLAN.replace('"new"', '"train"'), r"panels\.new: train\.split = 'train': 2 of the 2 games of the panel"),
        (PLAN + '[methods.rloo]\n"env.options.new_families" = ["route/cobalt"]',
         r"panels\.new has other games in methods\.rloo than in those before it"),
        (PLAN[: PLAN.index("[methods.start]")] + "[methods.reflexion]\n[panels.new]\ntrials = 1",
         "no method of the comparison trains or is naive, so nobody plays it"),
    ],
)  # fmt: skip
def test_refused_panels(text: str, message: str, tmp_path: Path) -> None:
    text = text if "[methods.grpo]" in text else text.replace('baseline = "grpo"', "")
    path = write_plan(tmp_path / "plan.toml", text)
    with pytest.raises(ConfigError, match=message):
        run_comparison(path, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


GAMES = ("a/x/0", "a/x/1", "a/y/0", "a/y/1")


def hand_made(directory: Path, config: Config, games: Sequence[str], trials: Sequence[Sequence[float | None]]) -> None:
    """What an evaluation and an adaptation leave that a table reads: success of each game in each trial."""
    (directory / "eval").mkdir(parents=True)
    records = [
        {"iteration": trial, "task": {"id": game, "env": "a"}, "return": value or 0.0, "success": bool(value),
         "outcome": "error" if value is None else "terminated", "steps": [], "final_observation": {"text": ""}}
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
PLAYED: dict[str, dict[str, list[Sequence[float | None]]]] = {  # run -> panel -> trials; "" is the main one
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


def test_the_page_has_each_trial_of_each_panel(
    concluded: Callable[..., Summary], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tips EMPO2 is (.5 - 1 + .25 - .75) / 2 below the same run without; on new families below the start model."""
    monkeypatch.setenv("COLUMNS", "100")
    summary = concluded()
    assert render_summary_markdown(summary) == (GOLDEN / "panels.md").read_text(encoding="utf-8")
    print_brief(summary)
    printed = capsys.readouterr().out
    assert "with tips, after 1 trial: start model .88 with its tips, .12 without; EMPO² .38 with its tips" in printed
    assert "new families, trial by trial: start model .00 .62 .88; GRPO .00 .12 .38; EMPO² .00 .25 .38." in printed
    assert max(map(len, printed.splitlines())) <= 100


def test_games_that_failed_and_results_that_are_not_there_are_named(
    concluded: Callable[..., Summary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first game of the start model fails in the first of two trials, and is won in the second."""
    trials: list[Sequence[float | None]] = [(None, 0, 0, 0), LESS]
    monkeypatch.setitem(PLAYED, "start-0", {"": trials, "with tips": trials, "new": [NONE, NONE, NONE]})
    notes = " ".join(concluded([("grpo-0", "new")]).notes)
    assert "start model: 1 games failed in the environment in one trial or more; its line is of the 4 games" in notes
    assert "start model, seed 0: 1 games of panel with tips failed in the environment in one trial or more." in notes
    assert "GRPO, seed 0 is missing on panel new families: not played yet: `trailnotes compare run` plays it." in notes
    (tmp_path / "out/runs/start-0/trajectories.jsonl").unlink()
    with pytest.raises(RunError, match="has no episodes of its 2 trials, as some older records"):
        read_result(tmp_path / "out/runs/start-0")
