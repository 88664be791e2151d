"""Long runs: killed, stopped or out of disk, a run ends as one that nothing happened to."""

from __future__ import annotations

import errno
import signal
from pathlib import Path
from typing import Any

import pytest

from tinyrun import (
    SAME,
    at_update,
    differences,
    distance,
    episodes,
    metrics,
    run_command,
    tiny_config,
    tip_rows,
    train_in_process,
    train_until_power_cut,
    weights,
)
from trailnotes.config.schema import Config
from trailnotes.config.toml import to_toml
from trailnotes.errors import Interrupted, RunError
from trailnotes.memory.tipfile import read_tips
from trailnotes.runs import iteration as run_module
from trailnotes.runs.load_policy import open_evaluated_model
from trailnotes.runs.train import train
from trailnotes.runs.training import delete_optimizer_state
from trailnotes.storage import checkpoint
from trailnotes.storage.files import read_jsonl


def long_config(start_model: Path) -> Config:
    """Six iterations with a checkpoint after every other one."""
    return tiny_config(start_model, train={"iterations": 6, "save_every": 2})


@pytest.fixture(scope="session")
def alone(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `long_config` that nothing happened to."""
    path = tmp_path_factory.mktemp("alone") / "run"
    train(long_config(start_model), path)
    return path


# --- the same again


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_same_seed_gives_the_same_run(alone: Path, start_model: Path, tmp_path: Path, num_workers: int) -> None:
    env = {"num_workers": num_workers}
    config = long_config(start_model)
    train(config.model_copy(update={"env": config.env.model_copy(update=env)}), tmp_path)
    assert differences(alone, tmp_path) == SAME
    assert distance(alone, start_model) > 1e-2
    assert {episode["mode"] for episode in episodes(tmp_path)} == {"plain", "off_policy"}
    assert any(step["tips"] for episode in episodes(tmp_path) for step in episode["steps"])


# --- killed


def test_resume_after_kills(alone: Path, start_model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "config.toml").write_text(to_toml(long_config(start_model)))
    words = ["train", str(tmp_path / "config.toml"), "--run-dir", str(run)]
    killed = [run_command(words, run, moment) for moment in (9, 45, 61)]
    assert killed.count(-signal.SIGKILL) >= 2, killed
    assert set(killed) <= {-signal.SIGKILL, 0}
    assert run_command(words, run) == 0
    assert differences(alone, run) == SAME
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["step-000004", "step-000006"]


def test_what_is_newer_than_the_checkpoint_moves_to_files(alone: Path, start_model: Path, tmp_path: Path) -> None:
    train_until_power_cut(long_config(start_model), tmp_path, 4)
    assert len(metrics(tmp_path)) == 3  # the checkpoint has two iterations
    late_metrics, late_tips = metrics(tmp_path)[2:], tip_rows(tmp_path)
    train(long_config(start_model), tmp_path)
    assert differences(alone, tmp_path) == SAME
    moved = {kind: next(tmp_path.glob(f"{kind}.after-*")) for kind in ("metrics", "trajectories", "tips")}
    assert len([*tmp_path.glob("*.after-*")]) == 3
    assert [line["iteration"] for line in read_jsonl(moved["metrics"])] == [n["iteration"] for n in late_metrics] == [2]
    assert {line["iteration"] for line in read_jsonl(moved["trajectories"])} == {2}
    assert {tip.step for tip in read_tips(moved["tips"])} >= {2, 3}  # those of the fourth iteration, too
    assert len(late_tips) > 0


# --- asked to stop


@pytest.mark.usefixtures("heeds_hangup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_finishes_the_iteration(
    alone: Path, start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], number: signal.Signals,
) -> None:  # fmt: skip
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        at_update(patch, 3, lambda: signal.raise_signal(number))
        with pytest.raises(Interrupted, match="stopped after iteration 3; the same command resumes there") as caught:
            train(long_config(start_model), tmp_path)
    assert caught.value.number == number
    assert checkpoint.find_latest(tmp_path / "checkpoints") == tmp_path / "checkpoints" / "step-000003"
    assert len(metrics(tmp_path)) == 3
    assert "a second signal stops at once" in capsys.readouterr().err
    assert signal.getsignal(number) is before
    train(long_config(start_model), tmp_path)
    assert differences(alone, tmp_path) == SAME
    assert not list(tmp_path.glob("*.after-*"))


@pytest.mark.usefixtures("heeds_hangup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_stops_at_once(
    alone: Path, start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], number: signal.Signals,
) -> None:  # fmt: skip
    def twice() -> None:
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        at_update(patch, 4, twice)
        with pytest.raises(Interrupted) as caught:
            train(long_config(start_model), tmp_path)
    assert caught.value.number == signal.SIGINT
    assert len(metrics(tmp_path)) == 3
    error = capsys.readouterr().err
    assert f"stopped: {tmp_path / 'checkpoints' / 'step-000002'} is saved" in error
    train(long_config(start_model), tmp_path)
    assert differences(alone, tmp_path) == SAME


# --- in the way


@pytest.mark.parametrize(
    "broken", ["learner.states.save_file", "storage.checkpoint.write_json", "storage.files.Path.open"]
)
def test_a_full_disk_stops_with_what_was_saved_and_where(
    alone: Path, start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], broken: str,
) -> None:  # fmt: skip
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill_the_disk() -> None:
        monkeypatch.setattr(f"trailnotes.{broken}", full)

    with monkeypatch.context() as patch:
        at_update(patch, 4, fill_the_disk)
        with pytest.raises(RunError, match=r"cannot (save iteration 4|write) .*No space left on device.*free space"):
            train(long_config(start_model), tmp_path)
    monkeypatch.undo()
    saved = tmp_path / "checkpoints" / "step-000002"
    assert f"{saved} is saved, and the same command resumes there" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000002"]
    train(long_config(start_model), tmp_path)
    assert differences(alone, tmp_path) == SAME


# --- when to stop, and what to keep


def test_environment_steps_end_the_run(start_model: Path, tmp_path: Path) -> None:
    train(tiny_config(start_model, train={"iterations": 100, "max_env_steps": 50}), tmp_path)
    lines = metrics(tmp_path)
    assert lines[-2]["env_steps"] < 50 <= lines[-1]["env_steps"]
    assert lines[-1]["env_steps"] == sum(len(episode["steps"]) for episode in episodes(tmp_path))
    assert (tmp_path / "checkpoints" / f"step-{len(lines):06d}").is_dir(), "the last iteration is always saved"


def test_pruning_keeps_the_best_checkpoint_of_a_whole_validation_split(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.1, 0.9, 0.3, 1.0, 0.4, 0.1])
    splits: set[str] = set()
    play_panel = run_module.play_panel

    async def scripted(policy: Any, pool: Any, tasks: Any, *args: Any, **options: Any) -> list[Any]:
        splits.update(task.split for task in tasks)
        played = await play_panel(policy, pool, tasks, *args, **options)
        assert {episode.mode for episode in played} == {"plain"}
        score = next(scores)
        return [type("Episode", (), {"success": score, "episode_return": score})()] * (len(played) - (score == 1.0))

    monkeypatch.setattr(run_module, "play_panel", scripted)
    config = tiny_config(start_model, train={"iterations": 6, "save_every": 4, "keep_last": 1, "eval_every": 1})
    train(config, tmp_path)
    kept = [path.name for path in sorted((tmp_path / "checkpoints").glob("step-*"))]
    assert kept == ["step-000002", "step-000006"]
    assert checkpoint.load_best(tmp_path / "checkpoints") == tmp_path / "checkpoints" / "step-000002"
    assert [line["validation/success"] for line in metrics(tmp_path)] == [0.1, 0.9, 0.3, 1.0, 0.4, 0.1]
    assert [line["validation/errors"] for line in metrics(tmp_path)] == [0, 0, 0, 1, 0, 0]
    assert splits == {"validation"}


def test_a_run_without_its_optimizer_keeps_its_models_and_cannot_go_on(start_model: Path, tmp_path: Path) -> None:
    run = {"iterations": 3, "save_every": 1, "keep_optimizer": False}
    root = tmp_path / "checkpoints"
    train(tiny_config(start_model, train=run | {"keep_optimizer": True}), tmp_path)
    with checkpoint.hold_checkpoint(root / "step-000002"):  # by an evaluation
        assert not delete_optimizer_state(root)
    assert len([*root.rglob("learner.safetensors")]) == 2
    model = train(tiny_config(start_model, train=run), tmp_path, allow_change=["train.keep_optimizer"])
    assert not [*root.rglob("learner.*")]
    kept = checkpoint.scan(root)
    assert [(each.step, each.problems) for each in kept] == [(2, ()), (3, ())]
    with open_evaluated_model(tmp_path) as subject:
        assert subject.model == str(model) == str(kept[-1].path / "model")

    before = {file: file.read_bytes() for file in tmp_path.rglob("*.jsonl")}
    assert train(tiny_config(start_model, train=run), tmp_path) == model, "the same command plays nothing"
    limited = tiny_config(start_model, train=run, endpoint={"max_cost": 5.0})
    assert train(limited, tmp_path) == model, "the limits of an endpoint may change"
    settings = (tmp_path / "config.toml").read_text()
    longer = tiny_config(start_model, train=run | {"iterations": 4}, endpoint={"max_cost": 5.0})
    with pytest.raises(RunError, match=r"keep_optimizer = false\), so it cannot be trained further: .*-000003/model"):
        train(longer, tmp_path, allow_change=["train.iterations"])
    assert (tmp_path / "config.toml").read_text() == settings
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.jsonl")} == before


# --- environments that die


def test_workers_that_are_killed_cost_episodes_not_the_run(start_model: Path, tmp_path: Path) -> None:
    grave = tmp_path / "grave"
    grave.mkdir()
    options = {"families": ["keys/granite"], "max_steps": 2, "grave": str(grave), "deaths": 3}
    env = {"name": "paying:Mortal", "options": options, "num_workers": 2}
    train(tiny_config(start_model, env=env), tmp_path / "run")
    lines, played = metrics(tmp_path / "run"), episodes(tmp_path / "run")
    assert len(lines) == 3
    failed = [episode for episode in played if episode["outcome"] == "error"]
    assert len(failed) >= 3
    assert all(episode["error"] for episode in failed)
    assert sum(line["rollout/errors"] for line in lines) == len(failed)
    well = [episode for episode in played if episode["outcome"] != "error"]
    assert sum(line["update/rows"] for line in lines) == len(well)  # one row an episode: errors are not among them
    assert lines[-1]["env_steps"] == sum(len(episode["steps"]) for episode in played)


# --- adapters


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_train_and_resume(
    dtype: str, start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora = {"enabled": True, "rank": 4}
    config = tiny_config(start_model, model={"lora": lora, "dtype": dtype})
    train_in_process(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        at_update(patch, 2, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted, match="stopped after iteration 2"):
            train(config, tmp_path / "parts")
    train(config, tmp_path / "parts")
    assert differences(tmp_path / "whole", tmp_path / "parts") == SAME
    trained = weights(tmp_path / "whole")
    assert all("lora_" in name for name in trained), "a checkpoint holds the adapters, not their base"
    assert max(float(w.abs().max()) for name, w in trained.items() if "lora_B" in name) > 1e-4


def test_trained_adapters_are_the_reference_of_a_further_run(start_model: Path, tmp_path: Path) -> None:
    lora = {"enabled": True, "rank": 4}
    config = tiny_config(start_model, model={"lora": lora}, train={"iterations": 2})
    first = train_in_process(config, tmp_path / "first")
    adapters = tmp_path / "first" / "checkpoints" / "step-000002" / "model"
    further = tiny_config(adapters, model={"lora": lora}, train={"iterations": 1}, optim={"epochs": 1})
    second = train_in_process(further, tmp_path / "second")
    (line,) = metrics(tmp_path / "second")
    assert line["update/kl_to_reference"] == pytest.approx(0, abs=1e-6), "the reference is what it started from"
    assert 0 < distance(adapters, tmp_path / "second") < 1
    assert second.policy.model.peft_config["default"].base_model_name_or_path == str(start_model)
    assert first.policy.model.peft_config["default"].base_model_name_or_path == str(start_model)
