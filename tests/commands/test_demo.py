from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from children import alive, children_of, wait_for
from small import small_config
from trailnotes.commands import demo_run as module
from trailnotes.commands.demo_run import demo, unequal_steps
from trailnotes.config.toml import to_toml
from trailnotes.errors import ConfigError, RunError
from trailnotes.runs.panels import PanelResult
from trailnotes.storage.files import read_jsonl

SETTINGS = ["--eval.num_tasks", "2"]


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trailnotes.compare.processes.POLL", 0.02)


def config_file(start: Path, path: Path) -> Path:
    path.write_text(to_toml(small_config(model={"path": str(start)}, train={"max_env_steps": 24})))
    return path


@pytest.fixture(scope="module")
def finished_demo(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[PanelResult]]:
    """Config, directory and rows of a demo of one seed."""
    directory = tmp_path_factory.mktemp("demo")
    path = config_file(start_model, directory / "demo.toml")
    return path, directory / "out", demo(directory / "out", config_path=path, seeds=1, trials=1, settings=SETTINGS)


# -- from end to end


def test_the_table_is_as_promised(finished_demo: Any) -> None:
    _, out, _ = finished_demo
    rows = json.loads((out / "table.json").read_text())["rows"]
    assert [(row["algorithm"], row["memory"]) for row in rows] == [
        ("start", False),
        ("grpo", False),
        ("empo2", False),
        ("empo2", True),
    ]
    for row in rows:
        assert (row["panel"], row["metric"], row["seeds"], row["num_tasks"]) == ("test", "success", 1, 2)
        assert 0 <= row["ci_low"] <= row["mean"] <= row["ci_high"] <= 1
        assert row["interval"] == "bootstrap over seeds, then families, then games, 95%"
    for name in ("grpo", "empo2"):
        spent = list(read_jsonl(out / f"{name}-0" / "metrics.jsonl"))[-1]
        for row in rows:
            if row["algorithm"] == name:
                assert row["env_steps"] == spent["env_steps"] >= 24
                assert row["tokens_generated"] == spent["tokens_generated"] > 0
                assert row["seconds"] == spent["seconds"] > 0
    assert rows[0]["env_steps"] == rows[0]["tokens_generated"] == rows[0]["seconds"] == 0


def test_it_leaves_one_table_a_picture_and_a_story(finished_demo: Any) -> None:
    _, out, _ = finished_demo
    assert [path.relative_to(out).as_posix() for path in out.glob("*.json")] == ["table.json"]
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "table.md").read_text().count("\n| ") == 4
    assert (out / "story.txt").read_text().strip()


def test_the_runs_differ_in_method_and_seed_alone(finished_demo: Any) -> None:
    _, out, _ = finished_demo
    runs = [(out / name / "config.toml").read_text().splitlines() for name in ("grpo-0", "empo2-0")]
    differing = {a.split(" = ")[0] for a, b in zip(*runs, strict=True) if a != b}
    assert differing == {"name"}  # of the method, and of the run
    panels = {path.name for path in (out / "panels").iterdir()}
    assert panels == {"start-0", "grpo-0", "empo2-0", "empo2-0-notes"}
    plain, noted = (list(read_jsonl(out / "panels" / name)) for name in
                    ("empo2-0/episodes.jsonl", "empo2-0-notes/eval/episodes.jsonl"))  # fmt: skip
    assert {record["mode"] for record in plain} == {"plain"}
    assert {record["mode"] for record in noted} == {"on_policy_tips"}
    assert [record["task"] for record in plain] == [record["task"] for record in noted]


def test_once_more_trains_and_plays_nothing(
    finished_demo: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out, rows = finished_demo

    def never(*_: object, **__: object) -> None:
        raise AssertionError("this was done already")

    monkeypatch.setattr("trailnotes.compare.processes.Process", never)
    monkeypatch.setattr(module, "play_subject", never)
    monkeypatch.setattr("trailnotes.runs.panels.play_panel", never)
    before = (out / "table.json").read_bytes()
    assert demo(out, config_path=path, seeds=1, trials=1, settings=SETTINGS) == rows
    assert (out / "table.json").read_bytes() == before
    said = capsys.readouterr().out
    assert "start model, without notes" in said
    assert "generated" in said
    assert max(len(line) for line in said.splitlines() if "─" in line) <= 100


def test_a_panel_that_was_cut_off_is_played_again(finished_demo: Any) -> None:
    path, out, rows = finished_demo
    file = out / "panels" / "grpo-0" / "episodes.jsonl"
    before = file.read_text()
    file.unlink()
    assert demo(out, config_path=path, seeds=1, trials=1, settings=SETTINGS) == rows
    assert file.read_text() == before


def test_a_demo_of_other_settings_is_refused(finished_demo: Any) -> None:
    path, out, _ = finished_demo
    before = (out / "table.json").read_bytes()
    with pytest.raises(RunError, match=r"holds a demo with another optim\.lr: remove it, or choose another --out"):
        demo(out, config_path=path, seeds=1, trials=1, settings=[*SETTINGS, "--optim.lr", "0.5"])
    assert (out / "table.json").read_bytes() == before


def test_without_a_number_of_environment_steps_there_is_nothing_to_compare(start_model: Path, tmp_path: Path) -> None:
    path = config_file(start_model, tmp_path / "demo.toml")
    with pytest.raises(ConfigError, match=r"set train\.max_env_steps"):
        demo(tmp_path / "out", config_path=path, settings=["--train.max_env_steps", "0"])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_interrupted_with_two_seeds_it_ends_as_if_left_alone(start_model: Path, tmp_path: Path) -> None:
    path = config_file(start_model, tmp_path / "demo.toml")
    code = (
        "import sys; from pathlib import Path; from trailnotes.commands.demo_run import demo;"
        f"demo(Path(sys.argv[1]), config_path=Path({str(path)!r}), seeds=2, trials=1, settings={SETTINGS!r})"
    )
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run([sys.executable, "-c", code, str(whole)], check=True)
    process = subprocess.Popen([sys.executable, "-c", code, str(cut)], stdout=subprocess.PIPE, text=True)
    wait_for(lambda: any(cut.glob("*/metrics.jsonl")), 120)
    pids = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert pids
    assert not any(alive(pid) for pid in pids)
    assert not (cut / "table.json").exists()
    assert "the same command goes on from here" in output
    subprocess.run([sys.executable, "-c", code, str(cut)], check=True)
    tables = [json.loads((directory / "table.json").read_text())["rows"] for directory in (whole, cut)]
    for row in (*tables[0], *tables[1]):
        row["seconds"] = 0
    assert tables[0] == tables[1]
    assert tables[0][1]["seeds"] == 2


# -- rows


def a_row(algorithm: str, env_steps: int) -> PanelResult:
    return PanelResult(algorithm, False, "test", "success", 0.5, 0.4, 0.6, env_steps, 2, 80, 160, "bootstrap")


def test_unequal_environment_steps_are_said() -> None:
    assert unequal_steps([a_row("start", 0), a_row("grpo", 1000), a_row("empo2", 980)]) == []
    (line,) = unequal_steps([a_row("start", 0), a_row("grpo", 1000), a_row("empo2", 979)])
    assert "differ by more than 2%" in line
    assert "grpo 1,000, empo2 979" in line
    assert unequal_steps([a_row("start", 0)]) == []
