"""A learner of two processes: its life as that of one, and every way in which a process can be lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch.distributed.checkpoint.api import CheckpointException

from children import wait_for
from sharded_cases import Case, config_of, difference, one_process, rows_of, wait_until_gone
from small import small_config
from tiny import tiny_model
from trailnotes.errors import ConfigError, LearnerError, NonFiniteError
from trailnotes.learner import ranks as ranks_module
from trailnotes.learner import states
from trailnotes.learner.building import _require_plain_head, _require_shared_directory, build_single
from trailnotes.learner.learner import Learner
from trailnotes.learner.process_group import init_process_group, validate_world_size
from trailnotes.learner.ranks import (
    FAILURE_KEY,
    RankMonitor,
    RankProcess,
    is_communication_error,
    is_torchrun_worker,
    start_rank_process,
)
from trailnotes.learner.sharded import ShardedLearner, make_learner
from trailnotes.policies.hf.policy import load_model

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
import sys
from trailnotes.config.toml import load_config
from trailnotes.learner.ranks import is_torchrun_worker, run_torchrun_rank
if __name__ == "__main__":
    sys.path.insert(0, sys.argv[2])
    config = load_config(sys.argv[1])
    if is_torchrun_worker():
        run_torchrun_rank(config)
    else:
        from children import wait_for
from sharded_cases import Case, config_of, difference, one_process, rows_of, wait_until_gone
        from trailnotes.learner.sharded import ShardedLearner
        learner = ShardedLearner(config)
        print("tokens", learner.update(rows_of(Case()))["tokens_trained"], flush=True)
        learner.close()
"""


@pytest.fixture
def two(start_model: Path, tmp_path: Path) -> Iterator[ShardedLearner]:
    """Two processes beside a model that acts."""
    config = config_of(start_model)
    learner = ShardedLearner(config, load_model(config.model)[0], tmp_path / "dumps")
    yield learner
    learner.close()
    assert process_of(learner).process.poll() is not None
    assert not process_of(learner).log.parent.exists()


def process_of(learner: ShardedLearner) -> RankProcess:
    """The process of rank 1."""
    rank = learner._monitor.ranks[1]
    assert isinstance(rank, RankProcess)
    return rank


def test_a_life_of_two_processes_is_that_of_one(two: ShardedLearner, start_model: Path, tmp_path: Path) -> None:
    alone = one_process(config_of(start_model, 1))
    for seed in range(2):
        mine, theirs = two.update(ROWS, seed=seed), alone.update(ROWS, seed=seed)
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    assert difference(two, alone) <= 1e-5
    for row, other in zip(two.logprobs(ROWS), alone.logprobs(ROWS), strict=True):
        assert row == pytest.approx(other, abs=1e-4)
    assert two.steps == alone.steps == 2
    assert all(torch.equal(p, two.weights()[n]) for n, p in two.model.named_parameters())  # what acts has learned, too

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


def test_what_stops_every_rank_alike_is_raised_once_and_what_kills_one_ends_all(
    two: ShardedLearner, tmp_path: Path
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
    assert two.update(ROWS)["optimizer_steps"] == 1  # all goes on

    process_of(two).process.kill()
    with pytest.raises(LearnerError, match="rank 1 of the learner died of SIGKILL"):
        two.update(ROWS)
    with pytest.raises(LearnerError, match="have ended"):
        two.update(ROWS)


def test_who_waited_in_vain_meets_the_next_and_hears_why_it_fails(start_model: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        init_process_group(0, 2, "cpu", 0.1, dist.FileStore(str(tmp_path / "store"), 2))
    learner = ShardedLearner(config_of(start_model))
    assert learner._group is not None
    learner._group.broadcast_call(("dance", (), {}))
    with pytest.raises(LearnerError, match=r"rank 1 of the learner failed: AttributeError: .*dance"):
        learner.update(ROWS)
    learner.close()


def test_a_model_that_does_not_load_leaves_nobody_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises((ConfigError, Exception), match="does not load"):
        ShardedLearner(config_of(tmp_path))
    assert list(tmp_path.glob("trailnotes-learner-*")) == []


@pytest.mark.parametrize("stopped", [False, True])
def test_nobody_outlives_rank_0(start_model: Path, tmp_path: Path, stopped: bool) -> None:
    from trailnotes.config.toml import to_toml

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
    wait_until_gone(int(pid))
    assert not Path(directory).exists()


@pytest.mark.long
def test_a_rank_that_hangs_is_named(start_model: Path) -> None:
    learner = ShardedLearner(config_of(start_model, timeout=20.0))
    os.kill(process_of(learner).process.pid, signal.SIGSTOP)
    with pytest.raises(LearnerError, match=r"rank 1 of the learner hangs: nothing from it for learner\.timeout = 20 s"):
        learner.update(ROWS)


def test_adapters_of_two_processes(start_model: Path, tmp_path: Path) -> None:
    sections = {"loss": {"kl": 0.1}}
    config = config_of(start_model, sections=sections)
    lora = config.model.model_copy(update={"lora": config.model.lora.model_copy(update={"enabled": True, "rank": 2})})
    config = config.model_copy(update={"model": lora})
    torch.manual_seed(0)
    learner = make_learner(config, load_model(config.model)[0], None, None)
    assert isinstance(learner, ShardedLearner)
    learner.update(ROWS)
    weights = learner.weights()
    assert all(".lora_" in name and ".default" not in name for name in weights)
    trained = {n: p.detach().clone() for n, p in learner.model.named_parameters() if p.requires_grad}
    with learner.use_initial_adapters():
        assert not any(torch.equal(p, trained[n]) for n, p in learner.model.named_parameters() if "lora_B" in n)
    learner.export(tmp_path / "adapters")
    with safe_open(tmp_path / "adapters/adapter_model.safetensors", framework="pt") as file:
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in weights.items())
    learner.close()


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_adapters_on_the_head_are_not_compared_with_the_start_by_several_processes(start_model: Path) -> None:
    lora = {"enabled": True, "rank": 2, "target_modules": ("q_proj", "lm_head")}
    sections = {"model": {"path": str(start_model), "device": "cpu", "lora": lora}}
    held = small_config(**sections, algorithm={"name": "empo2", "anchor_tips": 1.0})
    assert held.has_anchor_rows
    model = load_model(held.model)[0]
    with pytest.raises(ConfigError, match=r"leave it out of model\.lora\.target_modules, or set learner\.world_size"):
        _require_plain_head(held, model)
    _require_plain_head(small_config(**sections), model)  # nothing is held


class Apart:
    """Rank 0 of two, of which the other sees nothing."""

    rank = 0

    def gather(self, value: Any) -> list[Any]:
        return [value, False]


def test_a_rank_that_does_not_see_the_run_directory_is_told(tmp_path: Path) -> None:
    ranks: Any = Apart()
    with pytest.raises(ConfigError, match=r"rank 1 of the learner does not see the run directory .*: put --run-dir"):
        _require_shared_directory(ranks, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_torchrun_starts_the_ranks(start_model: Path, tmp_path: Path) -> None:
    from trailnotes.config.toml import to_toml

    (tmp_path / "config.toml").write_text(to_toml(config_of(start_model)), encoding="utf-8")
    (tmp_path / "both.py").write_text(TORCHRUN, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(tmp_path / "both.py")]
    arguments = [str(tmp_path / "config.toml"), str(Path(__file__).parents[1])]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert f"tokens {float(sum(sum(row.loss_mask) for row in ROWS))}" in done.stdout


def test_what_cannot_work_is_refused_before_anything_starts(start_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = config_of(start_model, 4).model_copy(
        update={"model": config_of(start_model).model.model_copy(update={"device": "cuda"})}
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"learner\.world_size = 4 needs 4 GPUs here, and there are 2"):
        make_learner(cuda, None, None, None)
    one = cuda.model_copy(update={"model": cuda.model.model_copy(update={"device": "cuda:1"})})
    with pytest.raises(ConfigError, match=r"set model\.device = 'cuda'"):
        validate_world_size(one)
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"torchrun started 3 processes: set learner\.world_size = 3"):
        validate_world_size(config_of(start_model))
    assert not is_torchrun_worker()
    monkeypatch.setenv("RANK", "2")
    assert is_torchrun_worker()


def test_attention_and_joined_rows_are_refused_where_they_do_not_fit(start_model: Path) -> None:
    for packed, packing in {"always": "joined", "auto": "padded", "shared": "shared"}.items():  # sdpa skips nothing
        assert build_single(config_of(start_model, 1, packed=packed), tiny_model(), None, None).packing == packing
    mixing = tiny_model()
    body = mixing.model.forward
    mixing.model.forward = lambda **inputs: body(**{k: v for k, v in inputs.items() if k != "position_ids"})
    with pytest.raises(ConfigError, match=r"learner\.packed = 'always'"):
        build_single(config_of(start_model, 1, packed="always"), mixing, None, None)


def raised_by(function: Any, *arguments: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        function(*arguments)
    return caught.value


def test_a_lost_connection_is_somebody_elses_trouble(tmp_path: Path) -> None:
    assert is_communication_error(
        raised_by(init_process_group, 0, 2, "cpu", 0.1, dist.FileStore(str(tmp_path / "store"), 2))
    )
    assert not is_communication_error(raised_by(torch.nn.functional.linear, torch.ones(2), torch.ones(3)))
    assert not is_communication_error(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert not is_communication_error(RuntimeError("Connection closed by peer"))  # words are nothing to go by


@dataclass
class FakeRank:
    """A rank that lives (None), ended (""), or died for a reason."""

    reason: str | None
    where: str = ""

    def exit_reason(self) -> str | None:
        return self.reason

    def end(self, seconds: float) -> None:
        self.reason = "was killed"


def test_the_cause_is_told_from_its_consequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "GRACE", 0.0)
    lost, own = dist.DistNetworkError("Connection reset by peer"), RuntimeError("out of memory")
    ranks = {1: FakeRank(""), 2: FakeRank("exited with status 1", " on node 10.0.0.7"), 3: FakeRank(None)}
    store = dist.HashStore()
    monitor = RankMonitor(ranks, 7.0, store)
    assert monitor.explain(lost) == "rank 2 on node 10.0.0.7 of the learner exited with status 1"
    store.set(FAILURE_KEY.format(2), "failed: OutOfMemoryError: CUDA out of memory")
    cause = "rank 2 on node 10.0.0.7 of the learner failed: OutOfMemoryError: CUDA out of memory"
    assert monitor.explain(lost) == cause
    assert monitor.explain(own) == "rank 0 of the learner failed: RuntimeError: out of memory"
    del ranks[2]
    hangs = "rank 3 of the learner hangs: nothing from it for learner.timeout = 7 s (DistNetworkError: Connection reset"
    assert monitor.explain(lost).startswith(hangs)
    del ranks[3]
    assert monitor.explain(lost).startswith("the processes of the learner lost each other: DistNetworkError")
    monitor.end(at_once=True)
    assert ranks[1].reason == "was killed"


def test_rank_0_does_not_wait_on_a_device_for_a_rank_that_failed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ranks_module, "STUCK_SECONDS", 0.1)
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monitor = RankMonitor({1: FakeRank("died of SIGKILL")}, 7.0, dist.HashStore())
    with monitor.watch():
        wait_for(lambda: codes)
    assert codes[0] == 1
    assert "trailnotes: rank 1 of the learner died of SIGKILL; resume from the last" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise SystemExit(3)", "exited with status 3"),
        ("raise SystemExit('no GPU')", "exited with status 1: no GPU"),
        ("import os; os.abort()", "died of SIGABRT"),
    ],
)
def test_how_a_process_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, told: str) -> None:
    monkeypatch.setattr(sys, "executable", str(fake_python(tmp_path, code)))
    rank = start_rank_process(1, [], tmp_path)
    rank.process.wait(60)
    assert rank.exit_reason() == told
    rank.end(0.0)


def test_what_a_rank_cannot_write_is_an_error_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: Any, **_named: Any) -> None:
        raise CheckpointException("", {1: (OSError(28, "No space left on device"), None)})

    monkeypatch.setattr(states, "save_shards", fail)
    ranks: Any = SimpleNamespace(world=2, rank=0, object_group=None)
    with pytest.raises(OSError, match=r"^rank 1 of the learner: \[Errno 28\] No space left on device$"):
        states.save_state(tmp_path, {}, {}, ranks)
    with pytest.raises(ValueError, match=r"^rank 1 of the learner: "), states._raise_first_failure(ValueError):
        fail()


def fake_python(path: Path, code: str) -> Path:
    """A program that runs this code, whatever it is told."""
    (path / "python").write_text(f"#!{sys.executable}\n{code}\n", encoding="utf-8")
    (path / "python").chmod(0o755)
    return path / "python"
