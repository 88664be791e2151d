"""`trailnotes memory`: what a user does to the tips of a run stays done, whatever happens to the run."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tinyrun import SAME, differences, episodes, tiny_config, tip_rows, train_until_power_cut
from trailnotes.commands import main
from trailnotes.config.schema import Config, MemoryConfig
from trailnotes.envs.tasks import load_tasks
from trailnotes.memory import open_memory
from trailnotes.memory.exchange import list_tips, open_store
from trailnotes.memory.tipfile import read_tips, write_tips
from trailnotes.runs.train import train
from trailnotes.types import Tip


def config_of(start_model: Path, **sections: dict[str, Any]) -> Config:
    """Four iterations with a checkpoint after every other one."""
    return tiny_config(start_model, train={"iterations": 4, "save_every": 2}, **sections)


def tips_in(path: Path) -> list[Tip]:
    with closing(open_store(path)) as store:
        return list_tips(store)[::-1]


def first_task(config: Config) -> str:
    return load_tasks(config, "train")[0].id


def make_tip(config: Config) -> Tip:
    return Tip(first_task(config), "follow the river", "whatever", 9.0, 9.0)


def write_tip(path: Path, config: Config) -> Path:
    """Write a file with the one tip that `make_tip` makes."""
    write_tips(path, [make_tip(config)])
    return path


def list_displayed(path: Path, after: int) -> set[str]:
    """List the tips that episodes displayed in the iterations from `after` on."""
    later = [step for episode in episodes(path) if episode["iteration"] >= after for step in episode["steps"]]
    return {tip["text"] for step in later for tip in step["tips"]}


# --- training goes on


def test_edits_of_the_user_survive_a_kill(start_model: Path, tmp_path: Path) -> None:
    config, run = config_of(start_model), tmp_path / "run"
    train_until_power_cut(config, run, 4)  # the last checkpoint is that of two iterations; tips of four are there
    edited, off, deleted = tips_in(run)[:3]
    late_edited, late_off = tips_in(run)[-2:]
    saved_ids = {row[0] for row in tip_rows(run / "checkpoints" / "step-000002")}
    assert {edited.id, off.id, deleted.id} <= saved_ids
    assert not {late_edited.id, late_off.id} & saved_ids
    place, file = str(run), write_tip(tmp_path / "in.jsonl", config)
    for words in (
        ["import", place, str(file), "--enable"],
        ["add", place, "mind the bridge", "--task", first_task(config)],
        ["edit", place, str(edited.id), "corrected", "--score", "7"],
        ["edit", place, str(late_edited.id), "corrected, too"],
        ["enable", place, str(off.id), str(late_off.id), "--off"],
        ["delete", place, str(deleted.id)],
    ):
        assert main(["memory", *words]) == 0
    train_until_power_cut(config, run, 2)  # killed once more, before the next checkpoint
    train(config, run)
    after = {tip.id: tip for tip in tips_in(run)}
    assert {tip.text for tip in after.values() if tip.imported} == {"follow the river", "mind the bridge"}
    assert (after[edited.id].text, after[edited.id].score) == ("corrected", 7.0)
    assert after[late_edited.id].text == "corrected, too"
    assert (after[off.id].enabled, after[late_off.id].enabled) == (False, False)
    assert deleted.id not in after
    assert {"follow the river", "mind the bridge"} <= list_displayed(run, after=2)
    late = [tip for path in run.glob("tips.after-*") for tip in read_tips(path)]
    assert late
    assert all(tip.run and not tip.imported for tip in late), "only what the run wrote is moved"


def test_a_checkpoint_is_refused_and_stays_as_it_was(
    start_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Opening alone would change the file, and the run could not be resumed."""
    config, run = config_of(start_model), tmp_path / "run"
    train(config, run)
    assert main(["memory", "list", str(run / "checkpoints" / "step-000004")]) == 2
    assert f"{run / 'checkpoints' / 'step-000004'} is a checkpoint" in capsys.readouterr().err
    train(config, run)


# --- training begins


@pytest.fixture(scope="module")
def undisturbed(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that began with that tip, and that nothing happened to."""
    path, config = tmp_path_factory.mktemp("runs"), config_of(start_model)
    train(config, path / "run", memory=write_tip(path / "tips.jsonl", config))
    return path / "run"


@pytest.mark.parametrize("kind", ["jsonl", "db", "directory", "placed"])
def test_a_run_begins_with_tips(
    start_model: Path, undisturbed: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = config_of(start_model), tmp_path / "run"
    other, snapshot = tmp_path / "other", tmp_path / "tips.db"
    other.mkdir()
    with open_memory(other / "memory.db", MemoryConfig()) as memory:  # the same tip in three forms
        memory.add([make_tip(config)])
        memory.snapshot(snapshot)
    files = {"jsonl": write_tip(tmp_path / "tips.jsonl", config), "db": snapshot, "directory": other}
    if kind == "placed":
        run.mkdir()
        (run / "memory.db").write_bytes(files["db"].read_bytes())
    options: dict[str, Any] = {} if kind == "placed" else {"memory": files[kind]}
    train_until_power_cut(config, run, 2, **options)  # before the first checkpoint
    assert "follow the river" in list_displayed(run, after=0)
    train(config, run, **options)  # the same command again
    assert [tip.text for tip in tips_in(run) if tip.score == 9.0] == ["follow the river"], "once"
    assert ("began with 1 tips" in capsys.readouterr().err) == (kind != "placed")
    if kind != "placed":
        assert differences(undisturbed, run) == SAME
    assert len(tip_rows(undisturbed)) == len(tip_rows(run))


def test_tips_that_an_abandoned_start_left_are_named(
    start_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = tiny_config(start_model, train={"iterations": 1}), tmp_path / "run"
    run.mkdir()
    with open_memory(run / "memory.db", config.memory) as memory:
        memory.add([replace(make_tip(config), text="another")])
    train(config, run, memory=write_tip(tmp_path / "tips.jsonl", config))
    assert f"began with 1 tips, beside those of {run / 'memory.db'}, 2 in all" in capsys.readouterr().err


# --- looking and changing


@pytest.fixture
def place(tmp_path: Path) -> str:
    with open_memory(tmp_path / "memory.db", MemoryConfig()) as memory:
        memory.add([Tip("maze/1", "go left twice", "a hall with two doors", 1.0), Tip("maze/2", "jump", "a pit", 0.5)])
    return str(tmp_path)


def test_each_subcommand_on_a_small_memory(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> list[str]:
        assert main(["memory", *words]) == 0
        return capsys.readouterr().out.splitlines()

    head, *listed = run("list", place)
    assert head.split() == ["id", "score", "task", "and", "marks", "text"]
    assert [line.split()[1:] for line in listed] == [
        ["0.5/1", "maze/2", "jump"], ["1/1", "maze/1", "go", "left", "twice"]
    ]  # fmt: skip
    assert len(run("list", place, "--limit", "1")[1:]) == 1
    (line,) = run("list", place, "--namespace", "maze/1", "--json")
    assert (json.loads(line)["text"], json.loads(line)["key"]) == ("go left twice", "a hall with two doors")
    assert "text       go left twice" in run("show", place, "1")
    assert run("stats", place)[0].split() == ["tips", "2"]
    (line,) = run("search", place, "maze/1", "a hall with two doors")
    assert line.split() == ["1", "similarity", "1.000", "1/1", "maze/1", "go", "left", "twice"]
    run("enable", place, "1", "--off")
    assert "are off or retired" in run("search", place, "maze/1", "a hall")[0]
    (line,) = run("add", place, "turn back", "--task", "maze/1", "--score", "0.25", "--key", "a dead end")
    assert line.split() == ["3", "0.25/1", "maze/1", "imported", "turn", "back"]
    _, warning = run("add", place, "turn back", "--namespace", "maze/11", "--off")
    assert "first tip of maze/11" in warning
    assert "0.9/1  maze/2  climb" in run("edit", place, "2", "climb", "--score", "0.9")[0]
    file = tmp_path / "tips.jsonl"
    assert run("export", place, str(file), "--namespace", "maze/1") == [f"1 tips written to {file}"], "1 is off"
    assert run("delete", place, "1", "3") == ["2 tips deleted"]
    assert run("import", place, str(file))[0].startswith("1 tips imported (off until")
    assert all(" imported off " in line for line in run("list", place, "--namespace", "maze/1")[1:])
    (again,) = run("import", place, str(file), "--enable")
    assert again.startswith("0 tips imported, 1 were known; known tips stay as they are: `trailnotes memory enable`")
    assert run("enable", place, "--all") == ["2 tips enabled"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "--limit", "-1"], "limit of -1"),
        (["show", "99"], "99"),
        (["enable"], "either IDs or --all"),
        (["list", "--namespace", "maze/3"], "no tip of 'maze/3': it has tips of maze/2, maze/1"),
        (["search", "maze/1", "a hall", "--top-k", "0"], "1 or more"),
        (["edit", "1"], "nothing to change"),
        (["edit", "1", "--score", "nan"], "finite number"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    place: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", words[0], place, *words[1:]]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
