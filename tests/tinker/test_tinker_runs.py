"""Whole runs at a server: killed, lost, refused, limited and evaluated, and what each asks of the server."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from children import wait_for
from small import merge_sections, small_config
from tinker_servers import KEY, RANK, REAL, Server, SkyRL, StandIn, close_service, score_here
from tinyrun import command, episodes, metrics
from trailnotes.commands import main
from trailnotes.config.methods import resolve_method
from trailnotes.config.model_schema import TINKER_KEY_VARIABLE
from trailnotes.config.toml import load_config, to_toml
from trailnotes.errors import ConfigError
from trailnotes.learner.samples import anchor_sample
from trailnotes.learner.tinker import TinkerLearner
from trailnotes.policies.tinker import SampledTokens
from trailnotes.runs import iteration as iterations
from trailnotes.runs.directory import RunDir
from trailnotes.runs.preflight import run_preflight
from trailnotes.runs.train import run_method
from trailnotes.runs.training import open_run
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Sample
from trailnotes.web import tinker as endpoint
from trailnotes.web.ledger import TokenLedger
from trailnotes.web.tinker import TinkerServer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Adapter .* was active:UserWarning"),
]
NUM_PROBES = 3  # sampled by each load of weights, one token each
ASKED = 12  # completions of an iteration: four episodes of two actions, and their tips


def write_config(server: Server, path: Path, **sections: dict[str, Any]) -> list[str]:
    """Write three iterations of EMPO2 at the server, and return the command that trains them in `path`/run."""
    own: dict[str, dict[str, Any]] = {
        "model": {"path": str(server.model), "lora": {"rank": RANK}},
        "env": {"name": "paying:Paid", "options": {"families": ["keys/granite"], "max_steps": 2}},
        "rollout": {"num_tasks": 2, "group_size": 2},
        "algorithm": {"p_memory": 0.5},
        "loss": {"mask_logprob": -20.0},  # to a random model every token is improbable
        "optim": {"lr": 1e-2, "epochs": 2, "grad_clip": 0.0},
        "learner": {"name": "tinker", "url": server.url, "timeout": 60.0},
        "train": {"iterations": 3, "max_env_steps": 0},
    }
    config = small_config(**merge_sections(own, sections))
    path.mkdir(parents=True, exist_ok=True)
    (path / "run.toml").write_text(to_toml(config))
    return ["train", str(path / "run.toml"), "--run-dir", str(path / "run")]


class Command:
    """A command in a process of its own, which kills itself at its `fatal`-th touch of `touched`."""

    def __init__(self, words: Sequence[str], output: Path, touched: Path = Path("/nowhere"), fatal: int = 0) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["trailnotes.runs.training", "trailnotes.learner.tinker", "peft", "tinyrun"])
        self.output, key = output, os.environ.get(TINKER_KEY_VARIABLE, "")
        self.process = context.Process(target=run_quietly, args=(words, output, touched, fatal, key))
        self.process.start()

    def wait(self) -> tuple[int, str]:
        """Return its exit code, negative for a signal, and all that it printed."""
        self.process.join(120)
        code = self.process.exitcode
        self.process.kill()
        assert code is not None, f"the command hangs: {self.output.read_text()}"
        return code, self.output.read_text()


def run_quietly(words: Sequence[str], output: Path, touched: Path, fatal: int, key: str) -> None:
    os.environ[TINKER_KEY_VARIABLE] = key
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    endpoint.ALIVE_EVERY = 1.5
    command(words, touched, fatal)


def fail(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that fails here, and return its one line."""
    capsys.readouterr()
    assert main(words) == 2
    return find_line(capsys.readouterr().err)


def find_line(output: str) -> str:
    """Find the one line of an error, with which the output ends."""
    assert "Traceback" not in output
    assert "never retrieved" not in output
    lines = [line for line in output.splitlines() if line.startswith("trailnotes:")]
    assert len(lines) == 1, output
    assert output.rstrip().endswith(lines[0])
    return lines[0]


def count_tokens(run_dir: Path) -> Mapping[str, int]:
    """Add up what a run has written down."""
    ledger = TokenLedger(load_config(run_dir / "config.toml").learner, run_dir / "tinker.jsonl")
    return Counter(asdict(ledger.count))


def count_at(server: StandIn) -> Counter[str]:
    """Count what the server has computed, in the words of a run."""
    tokens = Counter(server.counts()["tokens"])
    tokens["prefilled"] += tokens.pop("forwarded", 0)
    return tokens


def load_adapters(run_dir: Path) -> dict[str, torch.Tensor]:
    path = max((run_dir / "checkpoints").glob("step-*"))
    return load_file(path / "model" / "adapter_model.safetensors")


def assert_same_run(one: Path, other: Path) -> None:
    """Assert that two runs have played the same episodes, and have the same weights, as the stand-in promises."""
    assert episodes(one) == episodes(other)
    left, right = load_adapters(one), load_adapters(other)
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], rtol=0, atol=0, msg=name)


@pytest.fixture(params=["documented", pytest.param("skyrl", marks=pytest.mark.long)])
def own(request: pytest.FixtureRequest, stand_in: Any) -> StandIn:
    """A server that a test may kill."""
    server: StandIn = stand_in(request.param)
    return server


@pytest.fixture(scope="session")
def undisturbed(
    forks: Any, model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, Counter[str]]]:
    """The directory of a run that met no fault, and the tokens that the server computed; one for each dialect."""
    found: dict[str, tuple[Path, Counter[str]]] = {}

    def get(dialect: str) -> tuple[Path, Counter[str]]:
        if dialect not in found:
            path = tmp_path_factory.mktemp(dialect)
            server = StandIn(dialect, model_dir, path / "server", forks=forks)
            server.start()
            assert main(write_config(server, path)) == 0
            found[dialect] = path / "run", count_at(server)
            server.close()
        return found[dialect]

    return get


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the connections of each session, which the SDK leaves to the end of the process."""
    opened, init = [], TinkerServer.__init__

    def remember(self: TinkerServer, *given: Any, **named: Any) -> None:
        init(self, *given, **named)
        opened.append(self.service)

    monkeypatch.setattr(TinkerServer, "__init__", remember)
    yield
    for service in opened:
        close_service(service)


# -- kills


def test_resume_after_kill_while_playing(own: StandIn, tmp_path: Path, undisturbed: Any) -> None:
    whole, _ = undisturbed(own.dialect)
    words, kept = write_config(own, tmp_path), tmp_path / "run" / "completions" / "000001.jsonl"
    code, output = Command(words, tmp_path / "output", kept, fatal=4).wait()
    assert code == -9, output
    assert len(metrics(tmp_path / "run")) == 1
    assert len([*read_jsonl(kept)]) == 3
    before = own.counts()["requests"]["asample"]
    assert main(words) == 0
    assert own.counts()["requests"]["asample"] - before == 2 * (ASKED + NUM_PROBES) - 3
    assert [line["engine/reused"] for line in metrics(tmp_path / "run")] == [0, 3, 0]
    assert_same_run(whole, tmp_path / "run")


@pytest.mark.long
def test_resume_after_kill_while_learning(own: StandIn, tmp_path: Path, undisturbed: Any) -> None:
    whole, tokens = undisturbed(own.dialect)
    lines = [*read_jsonl(whole / "tinker.jsonl")]
    update = [number for number, line in enumerate(lines) if "trained" in line][2:4]  # the second: two steps
    words, run_dir = write_config(own, tmp_path), tmp_path / "run"
    code, output = Command(words, tmp_path / "output", run_dir / "tinker.jsonl", fatal=update[1] + 1).wait()
    assert code == -9, output
    assert len(metrics(run_dir)) == 1
    assert main(words) == 0
    assert_same_run(whole, run_dir)
    assert [line["engine/reused"] for line in metrics(run_dir)] == [0, ASKED, 0]
    again = lines[update[0]]["trained"]
    assert count_at(own) == count_tokens(run_dir)
    assert count_at(own)["sampled"] == tokens["sampled"] + NUM_PROBES
    assert count_at(own)["trained"] == tokens["trained"] + again


@pytest.mark.parametrize(
    "kind",
    ["documented", pytest.param("skyrl", marks=pytest.mark.long), pytest.param("real", marks=pytest.mark.tinker)],
)
def test_a_run_outlives_its_server(
    kind: str, stand_in: Any, tmp_path: Path, model_dir: Path, undisturbed: Any, request: pytest.FixtureRequest
) -> None:
    if kind == "real":
        if not REAL:
            pytest.skip("TRAILNOTES_TEST_TINKER names no Python with skyrl-tx")
        server: Server = SkyRL("skyrl", model_dir, tmp_path / "server")
        request.addfinalizer(server.close)
        server.start()
    else:
        server = stand_in(kind)
    words, kept = write_config(server, tmp_path), tmp_path / "run" / "completions" / "000001.jsonl"
    asking = Command(words, tmp_path / "output")
    wait_for(lambda: kept.is_file() and len(kept.read_text().splitlines()) > 2, 120.0)
    server.kill()
    code, output = asking.wait()
    assert code == 2, output
    assert f"{server.url} is gone while" in find_line(output)
    assert "start it again, and the same command resumes at the last checkpoint" in output
    assert len(metrics(tmp_path / "run")) == 1
    reused = len(kept.read_text().splitlines())
    server.start()
    assert main([*words, "--learner.url", server.url, "--allow-change", "learner.url"]) == 0
    assert [line["engine/reused"] for line in metrics(tmp_path / "run")] == [0, reused, 0]
    if kind != "real":  # which batches as it likes
        assert_same_run(undisturbed(kind)[0], tmp_path / "run")


# -- refusals


def test_a_server_that_samples_otherwise_than_it_trains_stops_the_run(
    own: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    name = "trailnotes.policies.tinker.SampledTokens"
    monkeypatch.setattr(name, lambda ids, values, reason: SampledTokens(ids, [v - 0.2 for v in values], reason))
    line = fail(write_config(own, tmp_path, train={"iterations": 1}), capsys)
    assert "differ by 0.2 nats a sampled token, more than engine.max_logprob_mismatch = 0.05" in line
    assert "--allow-change engine.max_logprob_mismatch" in line


def test_a_spent_account_is_named(own: StandIn, tmp_path: Path, capsys: Any) -> None:
    own.add_fault(path="asample", status=402)
    assert "top it up, and run the same command again" in fail(write_config(own, tmp_path), capsys)


@pytest.mark.long
def test_what_is_refused_for_a_while_is_asked_again(own: StandIn, tmp_path: Path, undisturbed: Any) -> None:
    for path in ("asample", "forward", "forward_backward", "optim_step", "save_weights"):
        own.add_fault(path=path, status=429)
        own.add_fault(path=path, status=500)
    own.add_fault(path="retrieve_future", status=500, times=2)
    assert main(write_config(own, tmp_path)) == 0
    whole, tokens = undisturbed(own.dialect)
    assert_same_run(whole, tmp_path / "run")
    assert count_at(own) == tokens == count_tokens(tmp_path / "run")


def test_a_wrong_key_is_named_and_never_shown(
    stand_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    server = stand_in("documented", "--key", KEY)
    words = write_config(server, tmp_path)
    for key, said in {
        "": "export TINKER_API_KEY with a key that it takes",
        "tml-another": "export TINKER_API_KEY with a key that it takes",
        "sk-another": "TINKER_API_KEY holds no key: those of the API begin with tml-",
    }.items():
        monkeypatch.setenv(TINKER_KEY_VARIABLE, key)
        line = fail(words, capsys)
        assert said in line
        assert not key or key not in line
    monkeypatch.delenv(TINKER_KEY_VARIABLE)
    assert "the hosted Tinker service wants a key" in fail([*words, "--learner.url", ""], capsys)


@pytest.mark.long
def test_the_key_is_in_no_file_and_in_no_output(stand_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = stand_in("documented", "--key", KEY)
    monkeypatch.setenv(TINKER_KEY_VARIABLE, KEY)
    words = [*write_config(server, tmp_path), "--debug"]
    code, output = Command(words, tmp_path / "output").wait()
    assert code == 0, output
    assert KEY not in output
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("setting", "section", "value"),
    [
        ("model.path", "model", {"path": "."}),  # adapters are no base model
        ("rollout.temperature", "rollout", {"temperature": 0.9}),
        ("model.lora.alpha", "model", {"path": "m", "lora": {"alpha": 16.0}}),
        ("model.lora.target_modules", "model", {"path": "m", "lora": {"target_modules": ["q_proj"]}}),
        ("model.load_in_4bit", "model", {"path": "m", "load_in_4bit": True}),
        ("engine.name", "engine", {"name": "vllm"}),
        ("cluster.address", "cluster", {"address": "auto"}),
        ("learner.anchor_by", "algorithm", {"name": "empo2", "anchor_tips": 0.5}),
    ],
)
def test_settings_that_no_server_follows_are_refused(
    setting: str, section: str, value: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    config = small_config(**{"model": {"path": "m"}, "learner": {"name": "tinker"}} | {section: value})
    with pytest.raises(ConfigError, match=rf'^learner.name = "tinker" does not go with {setting} \('):
        run_preflight(config, machine=False)


# -- limits


@pytest.mark.long
def test_token_limit_stops_a_run_cleanly(own: StandIn, tmp_path: Path, undisturbed: Any, capsys: Any) -> None:
    whole, _ = undisturbed(own.dialect)
    first = sum(value for name, value in metrics(whole)[0].items() if name.startswith("tinker/tokens_"))
    limit = ["--learner.max_tokens_total", str(int(1.9 * first))]
    words = write_config(own, tmp_path)
    assert main([*words, *limit]) == 0
    output = capsys.readouterr()
    assert "stopped after iteration 1: another could pass learner.max_tokens_total" in output.err
    assert "step-000001/model" in output.out
    spent = count_tokens(tmp_path / "run")
    assert main([*words, *limit]) == 0
    assert len(metrics(tmp_path / "run")) == 1
    assert count_tokens(tmp_path / "run")["sampled"] == spent["sampled"]
    assert main([*words, "--allow-change", "learner.max_tokens_total"]) == 0
    assert_same_run(whole, tmp_path / "run")


# -- overlap, authors, anchors


def train_and_score(words: Sequence[str], rows: Sequence[Sample]) -> tuple[list[float], Path]:
    """Train, and score rows by the adapters that are trained at the end; return that, and what was exported."""
    config = load_config(Path(words[1]))

    async def body() -> tuple[list[float], Path]:
        with RunDir.open(words[3], config, allow_change=["train"]) as opened, open_run(config, opened) as run:
            await run_method(resolve_method(config.algorithm.name).load(), run)
            assert run.saved is not None
            return [value for row in run.learner.logprobs(rows) for value in row], run.saved / "model"

    return asyncio.run(body())


ROW = Sample((5, 6, 7, 8, 9, 10, 11), (0, 0, 1, 1, 1, 1, 1), (0.0,) * 7, (0.0,) * 7)


@pytest.mark.long
@pytest.mark.parametrize(("overlap", "parts"), [(1, [2]), (0, [1, 2])])
def test_the_start_model_writes_and_leaves_what_is_trained(
    own: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlap: int, parts: list[int]
) -> None:
    """In a run of overlapping iterations, and in one that resumes after the first."""
    write_tips, written = iterations.write_tips, []

    async def write_and_remember(*given: Any, **named: Any) -> Any:
        tips = await write_tips(*given, **named)
        written.extend(tip.completion for tip in tips)
        return tips

    monkeypatch.setattr(iterations, "write_tips", write_and_remember)
    sections = {"algorithm": {"author": "start"}, "rollout": {"max_async_iterations": overlap}}
    for last in parts:
        words = write_config(own, tmp_path, train={"iterations": last}, **sections)
        trained, exported = train_and_score(words, [ROW])
    assert [line.get("stale/versions", 0) for line in metrics(tmp_path / "run")] == [0, overlap]
    config = load_config(Path(words[1]))
    assert trained == pytest.approx(score_here(config, exported, [ROW]), abs=1e-4)
    assert trained != pytest.approx(score_here(config, own.model, [ROW]), abs=1e-2)
    newest = written[-4:]
    found = score_here(config, own.model, [anchor_sample(each, "tip", 0.0) for each in newest])
    assert [value for value in found if value] == pytest.approx([v for each in newest for v in each.logprobs], abs=1e-4)


def test_anchors_are_learned_from_what_the_start_model_says(own: StandIn, tmp_path: Path) -> None:
    words = write_config(own, tmp_path, algorithm={"anchor_tips": 0.5}, learner={"anchor_by": "samples"})
    config = load_config(Path(words[1]))
    run_preflight(config)
    learner = TinkerLearner(config, TinkerServer(config.learner))
    held = [replace(ROW, role="tip", hold=1.0)]
    (said,) = learner._replace_anchors(held, seed=0)
    assert said.token_ids[:2] == ROW.token_ids[:2]
    assert (said.imitate, said.hold) == (0.0, 1.0)
    before = sum(learner.logprobs([said])[0])
    for _ in range(3):
        learner.update(held, seed=0)
    assert sum(learner.logprobs([said])[0]) > before + 0.01
    learner.close()


# -- evaluation


def test_evaluation_at_the_server_equals_the_one_here(own: StandIn, tmp_path: Path) -> None:
    assert main(write_config(own, tmp_path, train={"keep_optimizer": False})) == 0
    played = {}
    for name in ("tinker", "torch"):
        words = ["eval", str(tmp_path / "run"), "--out", str(tmp_path / name), "--learner.name", name]
        assert main([*words, "--eval.temperature", "0", "--eval.num_tasks", "3", "--eval.trials", "1"]) == 0
        played[name] = [
            [step["action"] for step in each["steps"]] for each in read_jsonl(tmp_path / name / "episodes.jsonl")
        ]
    assert len(played["torch"]) == 3
    assert played["tinker"] == played["torch"]
    before, adapted = count_at(own), tmp_path / "adapted"
    words = ["adapt", str(tmp_path / "run"), "--out", str(adapted), "--algorithm.author", "start"]
    assert main([*words, "--eval.num_tasks", "3", "--eval.trials", "1"]) == 0
    assert count_tokens(adapted) == count_at(own) - before, "the author's tokens count, too"
