"""Roles exchanged between two players of which one has a role broken on purpose, and between tiny models."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from adaptrun import Gate, Guesser, gate_config, guess
from tinyrun import tiny_config, train_in_process
from trailnotes.commands import main
from trailnotes.config.schema import Config
from trailnotes.config.toml import to_toml
from trailnotes.errors import BudgetError, ConfigError, Interrupted, RunError
from trailnotes.runs.adapt import adapt
from trailnotes.runs.diagnose.roles import ROLES_BY_ROW, RoleAnalysis, exchange_roles
from trailnotes.runs.training import Counters
from trailnotes.storage import checkpoint
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Message, Observation, Task

NUM, LOCKED = 12, "test_exchanged_roles:Locked"


class Locked(Gate):
    """Twelve gates that all open to w1, which nobody says before having read a tip."""

    @staticmethod
    def tasks(split: str, gates: Sequence[int] = (), broken: Sequence[int] = ()) -> list[Task]:
        return [Task(f"gate/{split}-{number}", LOCKED, number + 1, split) for number in range(NUM)]

    def reset(self, task: Task) -> Observation:
        seen = super().reset(task)
        self.gate = 1
        return seen


LOAD_POLICY = "trailnotes.runs.load_policy.load_policy"


def writes(messages: Sequence[Message]) -> bool:
    return "Write one note" in messages[-1].content or "note ?" in messages[-1].content


def reads(messages: Sequence[Message]) -> bool:
    return "next time say" in messages[-1].content


class Broken(Guesser):
    """Plays one role wrongly, and the others as a `Guesser` does."""

    def __init__(self, role: str = "", allowed: int = 0) -> None:
        super().__init__(allowed=allowed)
        self._script = lambda messages: self._wrong(role, messages) or guess(messages)

    @staticmethod
    def _wrong(role: str, messages: Sequence[Message]) -> str:
        if writes(messages):
            return "next time say w7" if role == "author" else ""
        if reads(messages):
            return "w0" if role == "reader" else ""
        return "w5" if role == "explorer" else ""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """What a training leaves, but for the weights: players stand in for them."""
    path = tmp_path / "run"
    config = locked_config(algorithm={"name": "empo2"})
    path.mkdir()
    (path / "config.toml").write_text(to_toml(config))
    checkpoint.save(path / "checkpoints", 1, lambda aside: (aside / "model").mkdir(), meta=asdict(Counters()))
    return path


def locked_config(**sections: dict[str, Any]) -> Config:
    return gate_config(**{"env": {"name": LOCKED, "options": {}}, "model": {"path": "start"}} | sections)


@pytest.fixture
def players(monkeypatch: pytest.MonkeyPatch) -> dict[str, Guesser]:
    """The models by name: "start" is whole, "model" is the checkpoint's."""
    cast: dict[str, Guesser] = {"start": Guesser(), "model": Guesser()}
    monkeypatch.setattr(LOAD_POLICY, lambda _, subject, __: cast[Path(subject.model).name])
    return cast


def exchange(run_dir: Path, **sections: dict[str, Any]) -> RoleAnalysis:
    return exchange_roles(locked_config(**sections), run_dir)[0]


def curves(found: RoleAnalysis) -> dict[str, list[float]]:
    return {row: list(means) for row, means in found.means.items()}


WHOLE, LOST = [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]


@pytest.mark.parametrize("role", ["author", "explorer", "reader"])
def test_the_role_that_is_broken_is_named(role: str, run_dir: Path, players: dict[str, Guesser]) -> None:
    players["model"] = Broken(role)
    found = exchange(run_dir)
    assert curves(found) == dict.fromkeys(ROLES_BY_ROW, WHOLE) | {role: LOST, "all": LOST}
    assert [cost.row for cost in found.weak_roles] == [role]
    assert found.verdict()[0].startswith(f"weak link: the {role}. Its exchange costs 1.00 [")
    told = json.loads((run_dir / "roles/test/roles.json").read_text())
    assert (told["verdict"], told["start"]) == (found.verdict(), "start")


def test_where_both_are_the_same_no_link_is_weak(run_dir: Path, players: dict[str, Guesser]) -> None:
    found = exchange(run_dir)
    assert curves(found) == dict.fromkeys(ROLES_BY_ROW, WHOLE)
    assert not found.weak_roles
    assert found.verdict()[0].startswith("no weak link")


def test_rows_share_what_they_would_play_alike(run_dir: Path, players: dict[str, Guesser]) -> None:
    exchange(run_dir)
    episodes, tips = 2 + 5 * 2, 4 + 5 * 2  # trial 0 of two explorers, and its tips by two authors each; then all apart
    asked = [len(player.prompts) for player in players.values()]
    assert sum(asked) == NUM * (episodes + tips)
    assert asked[0] == NUM * (1 + 3 * 2 + 2 + 3 * 2)


def test_each_row_is_a_run_of_its_own_and_the_first_is_an_adaptation_of_the_start_model(
    run_dir: Path, players: dict[str, Guesser], monkeypatch: pytest.MonkeyPatch
) -> None:
    players["model"] = Broken("reader")
    exchange(run_dir)
    monkeypatch.setattr(LOAD_POLICY, lambda _, subject, __: players[Path(subject.model).name])
    monkeypatch.setattr("trailnotes.reporting.plots.plot_trials", lambda *_, **__: None)
    for row, model in {"none": "start", "all": str(run_dir)}.items():
        adapt(locked_config(), model, out=run_dir / "alone" / row, trials=2)
        for name in ("trajectories.jsonl", "eval/episodes.jsonl", "config.toml"):
            own = run_dir / "roles/test" / row / name
            assert own.read_bytes() == (run_dir / "alone" / row / name).read_bytes(), (row, name)


def test_it_goes_on_where_it_was_stopped(run_dir: Path, players: dict[str, Guesser], tmp_path: Path) -> None:
    players["model"] = Broken("author")
    whole = exchange_roles(locked_config(), run_dir, out=tmp_path / "whole")
    num_asked = [len(player.prompts) for player in players.values()]
    players |= {"start": Guesser(allowed=NUM * 7 + 5), "model": Broken("author")}
    with pytest.raises(BudgetError):
        exchange(run_dir)
    before = [len(player.prompts) for player in players.values()]
    players |= {"start": Guesser(), "model": Broken("author")}
    again = exchange(run_dir)
    after = [len(player.prompts) for player in players.values()]
    assert [sum(both) for both in zip(before, after, strict=True)] == num_asked
    assert again == whole[0]
    players |= {"start": Guesser(allowed=1), "model": Broken(allowed=1)}
    assert exchange(run_dir) == again
    more, _ = exchange_roles(locked_config(), run_dir, trials=1)
    assert len(more.means["none"]) == 2


def test_another_checkpoint_or_panel_is_no_resumption(run_dir: Path, players: dict[str, Guesser]) -> None:
    exchange(run_dir)
    with pytest.raises(RunError, match=r"exchange with another eval\.temperature: choose another --out"):
        exchange(run_dir, eval={"temperature": 0.7})
    checkpoint.save(run_dir / "checkpoints", 2, lambda aside: (aside / "model").mkdir(), meta=asdict(Counters()))
    with pytest.raises(RunError, match=r"exchange with another model\.path"):
        exchange(run_dir)
    assert not players["model"].prompts[NUM * 100 :]


def test_what_cannot_be_exchanged_is_refused(
    run_dir: Path, players: dict[str, Guesser], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="ask for one or more"):
        exchange_roles(locked_config(), run_dir, trials=0)
    with pytest.raises(ConfigError, match="is no run that changed weights"):
        exchange_roles(locked_config(), "start")
    assert main(["diagnose", str(run_dir), "--trials", "3"]) == 2
    assert "add --roles" in capsys.readouterr().err


def test_a_start_model_that_is_gone_can_be_named(run_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"the start model cannot be loaded .* by --start MODEL"):
        exchange_roles(locked_config(model={"path": "./gone"}), run_dir, start="./gone")


@pytest.mark.usefixtures("same_threads")
def test_a_run_with_adapters_on_the_command_line(
    start_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lora = {"path": str(start_model), "lora": {"enabled": True, "rank": 2}}
    config = tiny_config(start_model, model=lora, train={"iterations": 1}, eval={"num_tasks": 0, "metric": "return"})
    train_in_process(config, tmp_path / "run")
    words = ["diagnose", str(tmp_path / "run"), "--roles", "--trials", "1"]
    assert main(words) == 0
    first = capsys.readouterr()
    assert "│ explorer" in first.out
    assert "trained author  trial-1" in first.err
    assert first.out.endswith(f"written to {tmp_path / 'run/roles/test'}\n")
    assert main(words) == 0
    assert capsys.readouterr().out == first.out
    models = {
        json.loads((tmp_path / "run/roles/test" / row / "eval/panel.json").read_text())["model"] for row in ROLES_BY_ROW
    }
    assert models == {str(start_model), str(tmp_path / "run/checkpoints/step-000001/model")}
    lines = {row: list(read_jsonl(tmp_path / "run/roles/test" / row / "metrics.jsonl")) for row in ROLES_BY_ROW}
    assert lines["none"][0]["rollout/return"] == lines["author"][0]["rollout/return"]


@pytest.mark.usefixtures("same_threads")
def test_a_model_exchanged_with_itself_has_no_weak_link(start_model: Path, tmp_path: Path) -> None:
    config = tiny_config(start_model, train={"iterations": 1}, eval={"num_tasks": 0, "metric": "return"})
    run = train_in_process(config, tmp_path / "run")
    found, _ = exchange_roles(config, tmp_path / "run", start=str(run.saved / "model"), trials=1)
    assert {cost.mean for cost in found.costs.values()} == {0.0}
    assert not found.weak_roles
    assert found.means["none"][1] > 0


def test_whoever_interrupts_learns_that_the_same_command_continues(
    run_dir: Path, players: dict[str, Guesser], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(players["start"], "generate", interrupted)
    with pytest.raises(Interrupted, match=r"roles/test keeps all finished work: the same command continues") as caught:
        exchange(run_dir)
    assert caught.value.number == signal.SIGINT
