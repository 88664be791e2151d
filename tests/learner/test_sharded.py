"""A learner of two processes: its life as that of one, and every way in which a process can be lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from children import alive, wait_for
from sharded_cases import Case, config_of, difference, one_process, rows_of
from tiny import tiny_model
from trailnotes.config.toml import to_toml
from trailnotes.errors import ConfigError, LearnerError, NonFiniteError
from trailnotes.learner.learner import Learner
from trailnotes.learner.ranks import BUILD_KEY, RankProcess, is_torchrun_worker, validate_world_size
from trailnotes.learner.sharded import ShardedLearner, make_learner, run_torchrun_rank
from trailnotes.policies.hf.policy import load_model
from trailnotes.runs.dry_run import dry_run
from trailnotes.runs.train import train

ROWS = rows_of(Case())
PARENT = """
import sys, time
from pathlib import Path
from trailnotes.config.toml import load_config
from trailnotes.learner.sharded import ShardedLearner
if __name__ == "__main__":
    learner = ShardedLearner(load_config(sys.argv[1]))
    print(learner._monitor.ranks[1].process.pid, learner._monitor.ranks[1].log.parent, flush=True)
    time.sleep(1000)
"""
TORCHRUN = """
import signal, sys, threading
from trailnotes.config.toml import load_config
from trailnotes.learner.ranks import is_torchrun_worker
from trailnotes.learner.sharded import ShardedLearner, run_torchrun_rank
if __name__ == "__main__":
    sys.path.insert(0, sys.argv[2])
    config = load_config(sys.argv[1])
    if is_torchrun_worker():
        run_torchrun_rank(config)
    else:
        from sharded_cases import Case, rows_of
        stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        learner = ShardedLearner(config)
        for _ in range(2):
            print("tokens", learner.update(rows_of(Case()))["tokens_trained"], flush=True)
            stopped.wait()
        learner.close()
        print("closed", flush=True)
"""


@pytest.fixture
def two(start_model: Path, tmp_path: Path) -> Iterator[ShardedLearner]:
    learner = ShardedLearner(config_of(start_model), tmp_path / "dumps")
    yield learner
    learner.close()
    assert process_of(learner).process.poll() is not None
    assert not process_of(learner).log.parent.exists()


def process_of(learner: ShardedLearner) -> RankProcess:
    """The process of rank 1."""
    rank = learner._monitor.ranks[1]
    assert isinstance(rank, RankProcess)
    return rank


@contextmanager
def opened_directory(path: Path) -> Iterator[Path]:
    """A path of a directory that this process alone can follow."""
    descriptor = os.open(path, os.O_RDONLY)
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


def test_two_processes_learn_save_and_resume_as_one(two: ShardedLearner, start_model: Path, tmp_path: Path) -> None:
    alone = one_process(config_of(start_model, 1))
    for seed in range(2):
        mine, theirs = two.update(ROWS, seed=seed), alone.update(ROWS, seed=seed)
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    assert difference(two, alone) <= 1e-5
    for row, other in zip(two.logprobs(ROWS), alone.logprobs(ROWS), strict=True):
        assert row == pytest.approx(other, abs=1e-4)
    assert two.steps == alone.steps == 2

    two.export(tmp_path / "two")
    alone.export(tmp_path / "one")
    names = [{file.name for file in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert names[0] == names[1]
    assert all(
        torch.equal(p, two.weights()[n]) for n, p in load_model(config_of(tmp_path / "two").model)[0].named_parameters()
    )

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    two.save(tmp_path / "a")
    alone.save(tmp_path / "b")
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["learner.json", "learner.safetensors"]
    assert json.loads((tmp_path / "a/learner.json").read_text()) == {"steps": 2}
    assert not list((tmp_path / "a").rglob(".metadata"))  # torch would unpickle it
    two.update(ROWS, seed=9)
    went_on = two.weights()
    two.load(tmp_path / "a")
    two.update(ROWS, seed=9)
    assert all(torch.equal(tensor, went_on[name]) for name, tensor in two.weights().items())  # 2 -> 2, bit for bit
    resumed = one_process(config_of(start_model, 1))
    resumed.load(tmp_path / "a")
    resumed.update(ROWS, seed=9)
    assert difference(two, resumed) <= 1e-5  # 2 -> 1
    two.load(tmp_path / "b")
    assert two.steps == 2
    two.update(ROWS, seed=9)
    assert difference(two, resumed) <= 1e-5  # 1 -> 2


@pytest.mark.long
def test_shared_errors_leave_the_ranks_and_a_kill_ends_all(
    two: ShardedLearner, start_model: Path, tmp_path: Path
) -> None:
    broken = [replace(row, advantages=tuple(m * float("inf") if m else 0.0 for m in row.loss_mask)) for row in ROWS]
    with pytest.raises(NonFiniteError, match="the weights were left as they were"):
        two.update(broken)
    assert len(list((tmp_path / "dumps").iterdir())) == 1
    with pytest.raises(ConfigError, match="give the learner a reference"):
        two.update([replace(ROWS[0], role="tip", hold=1.0)])
    other = Learner(tiny_model(), two._learner.optim, two._learner.loss)
    other.save(tmp_path)
    with pytest.raises(ValueError, match="another model's"):
        two.load(tmp_path)
    (tmp_path / "own").mkdir()
    one_process(config_of(start_model, 1)).save(tmp_path / "own")
    with opened_directory(tmp_path / "own") as path, pytest.raises(ValueError, match="rank 1 of the learner: RunError"):
        two.load(path)
    assert two.update(ROWS)["optimizer_steps"] == 1  # all goes on

    process_of(two).process.kill()
    with pytest.raises(LearnerError, match="rank 1 of the learner died of SIGKILL"):
        two.update(ROWS)
    with pytest.raises(LearnerError, match="have ended"):
        two.update(ROWS)


@pytest.mark.long
@pytest.mark.parametrize("stopped", [False, True])
def test_no_rank_outlives_rank_0(start_model: Path, tmp_path: Path, stopped: bool) -> None:
    (tmp_path / "config.toml").write_text(to_toml(config_of(start_model)), encoding="utf-8")
    (tmp_path / "parent.py").write_text(PARENT, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "config.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            pid, directory = parent.stdout.readline().split()
            if stopped:
                os.kill(int(pid), signal.SIGSTOP)
        finally:
            parent.kill()
    wait_for(lambda: not alive(int(pid)), 120)
    assert not Path(directory).exists()


def test_a_rank_that_ends_before_it_meets_the_others_is_named(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no GPU >&2\nexit 3\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(LearnerError, match="rank 1 of the learner exited with status 3: no GPU"):
        ShardedLearner(config_of(start_model))
    assert [*tmp_path.iterdir()] == [python], "the directory of the ranks goes with them"


@pytest.mark.long
def test_a_rank_that_hangs_is_named(start_model: Path) -> None:
    learner = ShardedLearner(config_of(start_model, timeout=20.0))
    os.kill(process_of(learner).process.pid, signal.SIGSTOP)
    with pytest.raises(LearnerError, match=r"rank 1 of the learner hangs: nothing from it for learner\.timeout = 20 s"):
        learner.update(ROWS)


@pytest.mark.long
def test_torchrun_starts_the_ranks_and_a_signal_lets_them_finish(start_model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(to_toml(config_of(start_model)), encoding="utf-8")
    (tmp_path / "both.py").write_text(TORCHRUN, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(tmp_path / "both.py")]
    arguments = [str(tmp_path / "config.toml"), str(Path(__file__).parents[1])]
    env = os.environ | {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600"}
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True, env=env) as torchrun:
        assert torchrun.stdout is not None
        lines = [torchrun.stdout.readline()]
        torchrun.terminate()
        lines += torchrun.stdout.readlines()
    tokens = f"tokens {float(sum(sum(row.loss_mask) for row in ROWS))}\n"
    assert lines == [tokens, tokens, "closed\n"], "one update before the signal, and one after it"


@pytest.fixture
def torchrun_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[TCPStore]:
    """The store of a torchrun whose rank 1 is this process."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in (where | {"RANK": "1", "WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(name, value)
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield store
    for number, handler in signals.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("command", ["finished", "dry run"])
def test_torchrun_ranks_end_where_rank_0_needs_no_learner(
    torchrun_store: TCPStore, start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    config = config_of(start_model)
    with monkeypatch.context() as patch:
        patch.setenv("RANK", "0")
        if command == "finished":
            patch.setattr("trailnotes.runs.training.find_final_model", lambda *_: start_model)
            assert train(config, tmp_path) == start_model
        else:
            absent = config_of(Path("nobody/nothing"))
            assert "nobody/nothing is not on this machine" in dry_run(absent)
    assert torchrun_store.check([BUILD_KEY])
    run_torchrun_rank(config)


def test_torchrun_ranks_wait_however_long_rank_0_prepares(torchrun_store: TCPStore, start_model: Path) -> None:
    rank_0 = threading.Timer(1.5, torchrun_store.set, (BUILD_KEY, "null"))
    rank_0.start()
    run_torchrun_rank(config_of(start_model, timeout=0.5))
    rank_0.join()


def test_what_cannot_work_is_refused_before_anything_starts(start_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = config_of(start_model, 4).model_copy(
        update={"model": config_of(start_model).model.model_copy(update={"device": "cuda"})}
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"learner\.world_size = 4 needs 4 GPUs here, and there are 2"):
        make_learner(cuda, None, None, None)
    one = cuda.model_copy(update={"model": cuda.model.model_copy(update={"device": "cuda:1"})})
    with pytest.raises(ConfigError, match=r"model\.device = 'cuda:1'"):
        validate_world_size(one)
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"torchrun started 3 processes: set learner\.world_size = 3"):
        validate_world_size(config_of(start_model))
    assert not is_torchrun_worker()
    monkeypatch.setenv("RANK", "2")
    assert is_torchrun_worker()
