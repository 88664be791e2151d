from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trailnotes.commands.demo_run import Job
from trailnotes.commands.demo_story import (
    before_and_after,
    curve_of,
    draw,
    followed_tip,
    last_line,
    note_that_mattered,
    print_table,
)
from trailnotes.config.schema import Config
from trailnotes.runs.panels import PanelResult
from trailnotes.storage.files import append_jsonl
from trailnotes.storage.records import trajectory_to_json
from trailnotes.types import Completion, Mode, Observation, Step, Task, Tip, Trajectory

FAMILY = "waymarks/route/amber"
RULE = "north east south"
NOTHING = "nothing found"


def tip(text: str, iteration: int, action: str, task: str = f"{FAMILY}/train-1") -> Tip:
    return Tip(task, text, key="k", score=0.0, step=iteration, action=action)


def episode(
    task: str, actions: list[str], end: str, *, won: bool = False, mode: Mode = "plain", tips: tuple[Tip, ...] = ()
) -> dict[str, Any]:
    steps = [
        Step(
            Observation(f"room {i}. exits north east.", instruction="find the way" if i == 0 else None),
            tips if i == 0 else (),
            Completion((1,), (2,), (0.0,), action),
            (1,),
            action,
            0.0,
        )
        for i, action in enumerate(actions)
    ]
    final = Observation(end, terminated=True, success=won)
    return trajectory_to_json(
        Trajectory(Task(task, "waymarks"), tuple(steps), final, "terminated", won, 0.0, mode=mode)
    )


TRAIN = f"{FAMILY}/train-1"
READS = episode(TRAIN, ["west"], f"archive. carved here: {RULE}.")
FAILS = episode(TRAIN, ["west"], "nook. a dead end.")
USES = episode(
    TRAIN, RULE.split(), "garden. the way out.", won=True, mode="off_policy",
    tips=(tip(NOTHING, 3, "east"), tip(RULE, 3, "west")),
)  # fmt: skip


def training(path: Path, *records: tuple[int, dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    append_jsonl(path, [{"iteration": iteration, **record} for iteration, record in records])
    return path


def panel(out: Path, name: str, *records: dict[str, Any]) -> None:
    (out / "panels" / name).mkdir(parents=True)
    append_jsonl(out / "panels" / name / "episodes.jsonl", records)


def test_the_story_follows_the_note_from_who_read_it_to_who_needs_it_no_more(tmp_path: Path) -> None:
    game = f"{FAMILY}/test-4"
    training(tmp_path / "empo2-0" / "trajectories.jsonl", (3, FAILS), (3, READS), (7, USES))
    panel(tmp_path, "start-0", episode(game, ["west"], "nook. a dead end."))
    panel(tmp_path, "empo2-0", episode(game, RULE.split(), "meadow. the way out.", won=True))
    jobs = [Job("grpo", 0, tmp_path / "grpo-0"), Job("empo2", 0, tmp_path / "empo2-0")]
    text = before_and_after(jobs, tmp_path)
    wanted = [
        "BEFORE. The start model meets an unseen game.", game, "find the way", "> west", "a dead end.  (not won)",
        "IN TRAINING, iteration 3.", TRAIN, "> west", f"carved here: {RULE}.  (not won)",
        f'note it leaves: "{RULE}"',
        "IN TRAINING, iteration 7.", f'note it is shown: "{RULE}"', "> north", "> east", "> south", "(won)",
        "AFTER. The trained agent meets the unseen game of above", game, "> north", "> south", "meadow.", "(won)",
    ]  # fmt: skip
    position = 0
    for part in wanted:
        position = text.index(part, position) + len(part)
    assert NOTHING not in text
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) < 40


def test_a_family_whose_training_tells_the_story_is_preferred(tmp_path: Path) -> None:
    other, game = "waymarks/keys/hazel/test-0", f"{FAMILY}/test-4"
    training(tmp_path / "empo2-0" / "trajectories.jsonl", (3, READS), (7, USES))
    panel(tmp_path, "start-0", *(episode(name, ["west"], "lost.") for name in (other, game)))
    panel(tmp_path, "empo2-0", *(episode(name, ["north"], "won.", won=True) for name in (other, game)))
    text = before_and_after([Job("empo2", 0, tmp_path / "empo2-0")], tmp_path)
    assert game in text
    assert other not in text


def test_without_a_note_before_and_after_are_still_told_and_without_a_win_nothing_is_claimed(tmp_path: Path) -> None:
    game = f"{FAMILY}/test-4"
    training(tmp_path / "empo2-0" / "trajectories.jsonl", (3, FAILS))
    panel(tmp_path, "start-0", episode(game, ["west"], "lost."), episode(f"{FAMILY}/test-5", ["x"], "won.", won=True))
    panel(tmp_path, "empo2-0", episode(game, ["north"], "won.", won=True), episode(f"{FAMILY}/test-5", ["x"], "lost."))
    jobs = [Job("empo2", 0, tmp_path / "empo2-0")]
    text = before_and_after(jobs, tmp_path)
    assert "BEFORE" in text
    assert "AFTER" in text
    assert "IN TRAINING" not in text
    (tmp_path / "panels" / "empo2-0" / "episodes.jsonl").unlink()
    append_jsonl(tmp_path / "panels" / "empo2-0" / "episodes.jsonl", [episode(game, ["west"], "lost.")])
    assert before_and_after(jobs, tmp_path).startswith("No unseen game was won")


def test_the_tip_that_mattered_is_the_one_that_was_followed() -> None:
    assert (followed_tip(USES) or {})["text"] == RULE
    assert followed_tip(READS) is None
    ignored = episode(TRAIN, ["look"], "won.", won=True, mode="off_policy", tips=(tip(RULE, 1, "west"),))
    assert followed_tip(ignored) is None


@pytest.mark.parametrize("stranger", ["other task", "other iteration", "other action"])
def test_the_author_is_the_attempt_that_the_tip_names(stranger: str, tmp_path: Path) -> None:
    task = f"{FAMILY}/train-2" if stranger == "other task" else TRAIN
    wrong = episode(task, ["east" if stranger == "other action" else "west"], f"archive. {RULE}.")
    records = (4 if stranger == "other iteration" else 3, wrong), (7, USES)
    note = note_that_mattered(training(tmp_path / "t.jsonl", *records), FAMILY)
    assert note is not None
    assert note.author is None
    assert note.reader["iteration"] == 7


def test_another_family_with_the_same_beginning_is_another_family(tmp_path: Path) -> None:
    assert note_that_mattered(training(tmp_path / "t.jsonl", (7, USES)), "waymarks/route/amb") is None


def test_long_texts_stay_within_the_columns(tmp_path: Path) -> None:
    game, long = f"{FAMILY}/test-4", "word " * 60
    training(tmp_path / "empo2-0" / "trajectories.jsonl", (3, READS), (7, USES | {"success": True}))
    panel(tmp_path, "start-0", episode(game, [long], long))
    panel(tmp_path, "empo2-0", episode(game, ["", "x" * 90], long, won=True))
    text = before_and_after([Job("empo2", 0, tmp_path / "empo2-0")], tmp_path)
    assert max(map(len, text.splitlines())) <= 100
    assert "(nothing)" in text


# -- curves and the table


def metrics(run: Path, *lines: dict[str, Any]) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_a_curve_is_of_validation_games_where_there_are_any(tmp_path: Path) -> None:
    trained = [{"env_steps": 10 * i, "rollout/success/plain": i / 4} for i in (1, 2)]
    assert curve_of(metrics(tmp_path / "a", *trained)) == [(10.0, 0.25), (20.0, 0.5)]
    validated = [trained[0], trained[1] | {"validation/success": 0.75}]
    assert curve_of(metrics(tmp_path / "b", *validated)) == [(20.0, 0.75)]
    assert last_line(tmp_path / "b") == validated[1]
    assert last_line(tmp_path / "none") == {}


def rows() -> list[PanelResult]:
    given = ("start", False, 0), ("grpo", False, 38912), ("empo2", False, 38915), ("empo2", True, 38915)
    return [
        PanelResult(name, memory, "test", "success", 0.5, 0.25, 0.75, steps, 2, 80, 160, "bootstrap over seeds",
                    5 * steps, 100 * steps, 612.3 * bool(steps))
        for name, memory, steps in given
    ]  # fmt: skip


def test_the_table_prints_what_each_method_cost(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(rows())
    said = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in said.splitlines() if line[:1] == "│"]
    assert cells == [
        ["start model, without notes", "0.500", "[0.250, 0.750]", "-", "-", "-", "-"],
        ["GRPO, without notes", "0.500", "[0.250, 0.750]", "38,912", "194,560", "3,891,200", "612"],
        ["EMPO², without notes", "0.500", "[0.250, 0.750]", "38,915", "194,575", "3,891,500", "612"],
        ["EMPO², with notes", "0.500", "[0.250, 0.750]", "38,915", "194,575", "3,891,500", "612"],
    ]
    assert "success on 80 unseen games (test)" in said
    assert "Costs: mean of a training run, 2 seeds." in said
    assert max(map(len, said.splitlines())) <= 100


def test_the_picture_of_a_demo(tmp_path: Path) -> None:
    jobs = [Job(name, 0, tmp_path / name) for name in ("grpo", "empo2")]
    for job in jobs:
        metrics(job.directory, {"env_steps": 10, "rollout/success/plain": 0.1})
    draw(Config(), jobs, rows(), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
