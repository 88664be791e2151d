"""Adaptation as a run of its own: what is kept, what is asked again, and what a killed process loses."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trailnotes
from adaptrun import NEVER, Gate, Guesser, adapt_by, gate_config, run_process, seeds_asked, seeds_on_disk
from small import lines, small_config
from trailnotes.commands import main
from trailnotes.config.toml import load_config, to_toml
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.errors import BudgetError, ConfigError, RunError
from trailnotes.memory.store import TipStore
from trailnotes.rollout.tips import CompletionRequest
from trailnotes.runs.adapt import adapt
from trailnotes.runs.adaptation import AdaptationRun
from trailnotes.runs.directory import RunDir
from trailnotes.runs.evaluate import evaluate
from trailnotes.runs.load_policy import EvaluatedModel
from trailnotes.runs.panels import PanelResult
from trailnotes.storage.files import read_jsonl, trajectory_from_json
from trailnotes.types import Message, Sampling

METHODS = ("naive", "reflexion", "empo2-tips")


def without_clock(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "seconds"}


def timeless(rows: Sequence[PanelResult]) -> list[PanelResult]:
    return [replace(row, seconds=0.0) for row in rows]


def story(out: Path) -> dict[str, Any]:
    """All that a run says, but for what its clock and its process said."""
    result: dict[str, Any] = {
        name: (out / name).read_bytes()
        for name in ("trajectories.jsonl", "eval/episodes.jsonl", "eval/panel.json", "eval/eval.toml", "table.md")
    }
    result["metrics"] = [without_clock(line) for line in lines(out / "metrics.jsonl")]
    for name in ("table.json", "eval/table.json"):
        result[name] = [without_clock(row) for row in json.loads((out / name).read_text())["rows"]]
    if (out / "memory.db").exists():
        with closing(TipStore(out / "memory.db")) as store:
            result["tips"] = [replace(tip, created="") for tip in store.load_tips()]
    return result


# -- killed and resumed


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_adaptation_resumes_after_kills(method: str, tmp_path: Path) -> None:
    whole, cut, asked = tmp_path / "whole", tmp_path / "cut", tmp_path / "asked.jsonl"
    assert run_process(method, whole, asked, 0) == 0
    wanted = seeds_asked(asked)
    assert len(set(wanted)) == len(wanted)
    assert seeds_on_disk(whole) == set(wanted)
    received: set[int] = set()
    for start in range(60):  # each is killed a little later than the one before
        asked = tmp_path / f"asked-{start}.jsonl"
        done = seeds_on_disk(cut)
        code = run_process(method, cut, asked, 12 + 5 * start)
        assert not done & set(seeds_asked(asked)), "what had ended is asked for again"
        received |= set(seeds_asked(asked))
        if code == 0:
            break
        assert code == -9
    assert start >= 2, "killed too seldom to show anything"
    assert received == set(wanted)
    assert story(cut) == story(whole)


@pytest.mark.parametrize("method", METHODS)
def test_torn_last_line_is_replayed(method: str, tmp_path: Path) -> None:
    adapt_by(Guesser(), method, tmp_path / "whole")
    adapt_by(Guesser(), method, tmp_path / "cut", eval={"trials": 0})
    for name in ("phases/trial-0.episodes.jsonl", "metrics.jsonl", "trajectories.jsonl"):
        file = tmp_path / "cut" / name
        file.write_bytes(file.read_bytes()[:-20])
    again = Guesser()
    adapt_by(again, method, tmp_path / "cut", eval={"trials": 3})
    torn = lines(next((tmp_path / "whole" / "phases").glob("trial-0.episodes.jsonl")))[-1]
    assert torn["steps"][0]["completion"]["logprobs"][0] in {float(s) for s in seeds_on_disk(tmp_path / "cut")}
    cut, whole = (story(tmp_path / name) | {"eval/eval.toml": b""} for name in ("cut", "whole"))
    assert cut == whole


def test_more_trials_go_on_after_the_last_one(tmp_path: Path) -> None:
    whole = timeless(adapt_by(Guesser(), "empo2-tips", tmp_path / "whole"))
    for trials in (0, 1, 3):
        policy = Guesser()
        rows = adapt_by(policy, "empo2-tips", tmp_path / "parts", eval={"trials": trials})
        assert timeless(rows) == whole[: trials + 1]
        assert len(policy.prompts) == {0: 8, 1: 8, 3: 16}[trials]  # four episodes and as many notes a trial
    assert story(tmp_path / "parts") == story(tmp_path / "whole")


def test_resume_after_spending_limit(tmp_path: Path) -> None:
    whole = adapt_by(Guesser(), "reflexion", tmp_path / "whole")
    with pytest.raises(BudgetError, match=r"limit is reached; every episode .* is kept in .*cut$"):
        adapt_by(Guesser(allowed=9), "reflexion", tmp_path / "cut")
    assert len(seeds_on_disk(tmp_path / "cut")) == 9
    assert "| trial 0 |" in (tmp_path / "cut" / "table.md").read_text()
    raised = Guesser()
    rows = adapt_by(raised, "reflexion", tmp_path / "cut", endpoint={"max_cost": 5.0})
    assert timeless(rows) == timeless(whole)
    assert len(raised.prompts) == len(seeds_on_disk(tmp_path / "whole")) - 9
    assert (tmp_path / "cut/trajectories.jsonl").read_bytes() == (tmp_path / "whole/trajectories.jsonl").read_bytes()


def test_failed_episodes_are_not_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trailnotes.rollout.groups.MAX_REPLACEMENTS", 1)
    options = {"env": {"options": {"broken": [1]}}}
    adapt_by(Guesser(), "empo2-tips", tmp_path, **options, eval={"trials": 0})
    failed = [record for record in lines(tmp_path / "trajectories.jsonl") if record["outcome"] == "error"]
    assert [record["task"]["id"] for record in failed] == ["gate/test-1"] * 2
    (metrics,) = lines(tmp_path / "metrics.jsonl")
    assert (metrics["rollout/errors"], metrics["env_steps"]) == (2, 3 + 2)
    (row,) = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert (row["env_steps"], row["num_episodes"]) == (0, 3), "the steps of failed attempts are of the trial itself"
    lost = "Not counted: 1 of 4 games, which failed every time (gate/test-1)."
    assert lost in (tmp_path / "table.md").read_text()
    Gate.played.clear()
    adapt_by(Guesser(), "empo2-tips", tmp_path, **options, eval={"trials": 0})
    assert not Gate.played
    (tmp_path / "metrics.jsonl").unlink()  # as if killed before the line was written
    journal = tmp_path / "phases/trial-0.episodes.jsonl"
    journal.write_bytes(b"".join(line for line in journal.read_bytes().splitlines(True) if b"hinges" not in line))
    before = (tmp_path / "trajectories.jsonl").read_bytes()
    adapt_by(Guesser(), "empo2-tips", tmp_path, **options, eval={"trials": 0})
    assert Gate.played == ["gate/test-1"] * 2
    assert (tmp_path / "trajectories.jsonl").read_bytes() == before


def test_adaptation_without_any_episode_is_refused(tmp_path: Path) -> None:
    broken = {"env": {"options": {"broken": [0, 1, 2, NEVER]}}}
    for _ in range(2):
        Gate.played.clear()
        with pytest.raises(ConfigError, match=r"no episode of trial-0 could be played; .*the hinges came off"):
            adapt_by(Guesser(), "empo2-tips", tmp_path, **broken)
        assert len(Gate.played) == 12
    assert not (tmp_path / "eval").exists()


def test_a_broken_game_that_is_left_alone_ends_no_run(tmp_path: Path) -> None:
    broken = {"env": {"options": {"gates": [0, 5], "broken": [5]}}, "eval": {"trials": 1}}
    assert [row.mean for row in adapt_by(Guesser(), "reflexion", tmp_path, **broken)] == [1.0, 1.0]


def test_a_trial_that_an_outage_left_empty_is_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapt_by(Guesser(), "empo2-tips", tmp_path, eval={"trials": 0})
    with monkeypatch.context() as outage:
        outage.setattr(Gate, "step", lambda *_: 1 / 0)
        with pytest.raises(ConfigError, match="no episode of trial-1 could be played"):
            adapt_by(Guesser(), "empo2-tips", tmp_path, eval={"trials": 2})
    rows = adapt_by(Guesser(), "empo2-tips", tmp_path, eval={"trials": 2})
    assert [row.mean for row in rows] == [0.25, 0.5, 0.75]


# -- what a run directory says


def test_a_run_of_trials_is_an_ordinary_run_directory(tmp_path: Path) -> None:
    adapt_by(Guesser(), "empo2-tips", tmp_path)
    config = load_config(tmp_path / "config.toml")
    assert (config.algorithm.name, config.model.path) == ("empo2-tips", "guesser")
    metrics, episodes = lines(tmp_path / "metrics.jsonl"), lines(tmp_path / "trajectories.jsonl")
    assert [line["phase"] for line in metrics] == [f"trial-{trial}" for trial in range(4)]
    assert [line["mode"] for line in metrics] == ["plain", *["on_policy_tips"] * 3]
    assert [record["iteration"] for record in episodes] == [n for n in range(4) for _ in range(4)]
    assert [record["task"]["id"][-1] for record in episodes[:4]] == ["0", "1", "2", str(NEVER)]
    notes = [record for file in tmp_path.glob("phases/*.notes.jsonl") for record in read_jsonl(file)]
    last = metrics[-1]
    assert (last["env_steps"], last["episodes"], len(notes)) == (16, 16, 16)
    steps = [step for record in episodes for step in record["steps"]]
    assert last["tokens_generated"] == sum(kept["tokens"] for kept in [*steps, *notes])
    assert last["tokens_read"] == sum(kept["prompt_tokens"] for kept in [*steps, *notes])
    assert last["tokens_trained"] == 0
    assert last["seconds"] > metrics[0]["seconds"] > 0


def test_adaptation_writes_table_curve_and_evaluation(tmp_path: Path) -> None:
    rows = adapt_by(Guesser(), "empo2-tips", tmp_path, picture=True)
    assert [row.mean for row in rows] == [0.25, 0.5, 0.75, 0.75]  # gate i opens in trial i
    assert [row.memory for row in rows] == [False, True, True, True]
    table = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["figure"] for row in table] == [f"trial {trial}" for trial in range(4)]
    assert [row["mean"] for row in table] == [row.mean for row in rows]
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    episodes = [trajectory_from_json(record) for record in lines(tmp_path / "eval" / "episodes.jsonl")]
    assert [episode.success for episode in episodes] == [True, True, True, False]
    (row,) = json.loads((tmp_path / "eval" / "table.json").read_text())["rows"]
    assert (row["algorithm"], row["memory"], row["mean"]) == ("empo2-tips", True, 0.75)
    assert row["env_steps"] == 12, "sixteen episodes of one step were played; the four examined cost nothing"
    assert (tmp_path / "eval" / "eval.toml").read_text() == (tmp_path / "config.toml").read_text()


def with_trials(path: Path, body: Any, **sections: dict[str, Any]) -> Any:
    """Run `body(trials)`, a coroutine, in a run directory."""

    async def run() -> Any:
        config = gate_config(**sections)
        with RunDir.open(path, config) as directory, EnvPool(config.env) as pool:
            policy, subject = Guesser(), EvaluatedModel("guesser", "start")
            return await body(AdaptationRun(config, directory, policy, policy, pool, subject, None))

    return asyncio.run(run())


def test_play_and_write_are_read_back_after_a_restart(tmp_path: Path) -> None:
    async def body(run: AdaptationRun) -> Any:
        groups = await run.play("trial-0", run.tasks, num_samples=2)
        request = CompletionRequest([Message("user", "next time say w7")], Sampling(max_tokens=8))
        return groups, await run.write("trial-0", [request, request]), run.policy

    first, written, policy = with_trials(tmp_path, body)
    assert len(policy.prompts) == 8 + 2
    assert [len(group.trajectories) for group in first] == [2, 2, 2, 2]
    again, rewritten, policy = with_trials(tmp_path, body)
    assert not policy.prompts
    assert (again, rewritten) == (first, written)
    step = first[0].trajectories[0].steps[0]
    assert step.completion.num_prompt_tokens > step.completion.num_tokens > 0
    assert [completion.text for completion in written] == ["w7", "w7"]


# -- commands and settings


def test_adapt_on_the_command_line_with_a_model(start_model: Path, tmp_path: Path, capsys: Any) -> None:
    config = tmp_path / "config.toml"
    config.write_text(to_toml(small_config(model={"path": str(start_model)}, eval={"num_tasks": 2})))
    out = tmp_path / "out"
    words = ["adapt", str(start_model), "--config", str(config), "--out", str(out), "--trials", "1"]
    assert main([*words, "--method", "reflexion"]) == 0
    assert "solved by trial 1" in capsys.readouterr().out
    assert "| solved by trial 1 | with | test (2) | success |" in (out / "table.md").read_text()
    for arguments, named in (
        ([*words, "--method", "naive"], "algorithm.name"),
        ([*words[:-1], "-1", "--method", "naive"], "--trials"),
        ([*words, "--method", "magic"], "'magic'"),
    ):
        assert main(arguments) == 2
        assert named in capsys.readouterr().err


def test_a_served_engine_holds_two_adapters_but_not_two_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = {"name": "vllm", "urls": ["http://127.0.0.1:9"]}
    config = gate_config(engine=engine, model={"path": str(tmp_path)}, algorithm={"author": "start"})
    subject = nullcontext(EvaluatedModel(str(tmp_path), "empo2", trained=config))
    monkeypatch.setattr("trailnotes.runs.adapt.open_evaluated_model", lambda _: subject)
    monkeypatch.setattr("trailnotes.runs.adapt.require_dependencies", lambda _: 1 / 0)  # which comes next
    with pytest.raises(ConfigError, match=r"would replace .* set engine.urls = \[\], or algorithm.author"):
        adapt(config, "run", out=tmp_path / "out")
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(ZeroDivisionError):
        adapt(config, "run", out=tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("algorithm.name", "empo2-tips"), ("rollout.max_steps", 7), ("env.options", {"gates": [0, 1]}),
        ("run.seed", 1), ("reflexion.max_write_tokens", 7),
    ],
)  # fmt: skip
def test_fixed_settings_cannot_change(name: str, value: object, tmp_path: Path) -> None:
    adapt_by(Guesser(), "reflexion", tmp_path, eval={"trials": 1})
    before = (tmp_path / "config.toml").read_text()
    section, key = name.split(".")
    config = gate_config(**{"eval": {"trials": 1}, "algorithm": {"name": "reflexion"}, section: {key: value}})
    for allowed in (name, section):
        refusal = rf"another {re.escape(name)}, which no run .*: set {re.escape(name)} to .*or choose another directory"
        with pytest.raises(RunError, match=refusal):
            adapt(config, "guesser", out=tmp_path, allow_change=[allowed])
    assert (tmp_path / "config.toml").read_text() == before


def test_naive_adaptation_equals_evaluation(start_model: Path, tmp_path: Path) -> None:
    config = small_config(model={"path": str(start_model)}, eval={"temperature": 0.0})  # greedy: seeds say nothing
    (row,) = trailnotes.adapt(config, start_model, method="naive", out=tmp_path / "adapt")
    printed = evaluate(config, start_model, out=tmp_path / "eval")
    assert replace(row, algorithm="start", seconds=0.0) == printed
    places = tmp_path / "adapt" / "eval", tmp_path / "eval"
    played = [lines(place / "episodes.jsonl") for place in places]
    assert played[0] == played[1]
