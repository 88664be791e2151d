from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from tinyrun import tiny_config, train_in_process
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.errors import ConfigError, RunError
from trailnotes.runs.directory import RunDir, RunLock, find_lock_holder, is_trained, load_run_config

HOLDER = """
import sys, time
from pathlib import Path
from trailnotes.runs.directory import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_new_directory_explains_itself(tmp_path: Path) -> None:
    config = load_config(None, ["--run.seed", "5", "--run.name", "first"])
    with RunDir.open(tmp_path / "deep" / "run", config) as run:
        assert run.checkpoints.is_dir()
    assert load_run_config(run.path) == config
    about = json.loads((run.path / "run.json").read_text())
    assert (about["name"], about["seed"]) == ("first", 5)
    (start,) = about["starts"]
    assert start["command"] == sys.argv
    assert start["python"] == ".".join(map(str, sys.version_info[:3]))
    assert start["packages"]["trailnotes"]
    assert "git" in start


def test_changed_config_needs_allow_change(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, Config()) as run:
        written = (tmp_path / "config.toml").stat()
        run.write_config()
        assert (tmp_path / "config.toml").stat() == written, "it has these settings already"
        run.append_metrics({"iteration": 0})
    changed = load_config(None, ["--optim.lr", "1e-3", "--train.iterations", "7"])
    with pytest.raises(RunError, match=r"--allow-change optim\.lr --allow-change train\.iterations"):
        RunDir.open(tmp_path, changed)
    with pytest.raises(RunError, match=r"another train\.iterations: resume it"):
        RunDir.open(tmp_path, changed, allow_change=["optim"])
    assert load_run_config(tmp_path) == Config()
    with RunDir.open(tmp_path, changed, allow_change=["optim", "train.iterations"]) as run:
        assert load_run_config(tmp_path) == Config(), "until the state of the run has been loaded under the new one"
        run.write_config()
    assert load_run_config(tmp_path) == changed
    starts = json.loads((tmp_path / "run.json").read_text())["starts"]
    assert starts[-1]["changed"] == {"optim.lr": [1e-6, 1e-3], "train.iterations": [100, 7]}
    RunDir.open(tmp_path, changed).close()


def test_a_fixed_setting_is_refused_with_the_value_to_set_it_to(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, Config(model={"path": "a"}, env={"options": {"families": 2}})) as run:
        run.append_metrics({"iteration": 0})
    changed = Config(model={"path": "b"}, env={"options": {"families": 2, "actions": True}})
    values = r'set model\.path, by MODEL_OR_RUN, to "a", env\.options to \{ families = 2 \} to continue it'
    with pytest.raises(RunError, match=values):
        RunDir.open(tmp_path, changed, fixed=["env.options", "model.path"])


def test_a_start_that_came_to_nothing_binds_nobody(tmp_path: Path) -> None:
    changed = load_config(None, ["--optim.lr", "1e-3"])
    RunDir.open(tmp_path, Config()).close()
    RunDir.open(tmp_path, changed).close()
    assert load_run_config(tmp_path) == changed
    (tmp_path / "config.toml").write_text("[optim]\nlr = 'of a version that is gone'\n")
    RunDir.open(tmp_path, changed).close()
    assert load_run_config(tmp_path) == changed


@pytest.mark.parametrize("left", ["phases/trial-0.episodes.jsonl", "trajectories.jsonl", "checkpoints/step-000001/x"])
def test_whatever_a_start_has_ended_binds_the_next(tmp_path: Path, left: str) -> None:
    RunDir.open(tmp_path, Config()).close()
    (tmp_path / left).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / left).write_text('{"iteration": 0}\n')
    with pytest.raises(RunError, match=r"holds a run with another optim\.lr"):
        RunDir.open(tmp_path, load_config(None, ["--optim.lr", "1e-3"]))


def test_what_cannot_be_opened_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"optim\.lrr names no setting"):
        RunDir.open(tmp_path, Config(), allow_change=["optim", "optim.lrr"])
    (tmp_path / "run.json").write_text("")
    with pytest.raises(RunError, match=r"run\.json is damaged .* remove it"):
        RunDir.open(tmp_path, Config())
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(38, "not here")))
    with pytest.raises(RunError, match=r"cannot be locked \(not here\): choose a directory"):
        RunDir.open(tmp_path, Config())


def test_lock_refuses_a_second_process(tmp_path: Path) -> None:
    assert find_lock_holder(tmp_path / "lock") == ""
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path / "lock"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match=f"in use by process {holder.pid} on .*: wait for it or stop it"):
            RunDir.open(tmp_path, Config())
        assert not (tmp_path / "config.toml").exists()
        assert find_lock_holder(tmp_path / "lock").startswith(f"process {holder.pid} on ")
        holder.send_signal(signal.SIGKILL)
    RunDir.open(tmp_path, Config()).close()


def test_a_lock_whose_file_its_holder_removes_meanwhile_is_taken_anew(tmp_path: Path) -> None:
    path, held = tmp_path / "eval.lock", RunLock(tmp_path / "eval.lock")
    remover = threading.Timer(0.03, lambda: (path.unlink(), held.release()))
    remover.start()
    taken = RunLock(path)
    remover.join()
    assert find_lock_holder(path).startswith("process ")
    taken.release()


def test_a_damaged_or_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        load_run_config(tmp_path)
    (tmp_path / "config.toml").write_text("[rollout]\nold_key = 1\n")
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 0}\n')
    with pytest.raises(RunError, match=r"own settings.*config\.toml.*'old_key'"):
        RunDir.open(tmp_path, Config())


def test_is_trained(start_model: Path, tmp_path: Path) -> None:
    config = tiny_config(start_model, train={"iterations": 1, "max_env_steps": 0})
    assert not is_trained(tmp_path / "run", config)
    train_in_process(config, tmp_path / "run")
    spent = json.loads((tmp_path / "run/metrics.jsonl").read_text())["env_steps"]
    assert is_trained(tmp_path / "run", config)
    for steps in (spent, spent + 1):
        longer = tiny_config(start_model, train={"iterations": 9, "max_env_steps": steps})
        assert is_trained(tmp_path / "run", longer) == (steps == spent)
