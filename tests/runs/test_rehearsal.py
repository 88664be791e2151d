"""What a run rehearses: whose games, what was said in them, what it costs, and what an interruption leaves."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tinyrun import SAME, differences, metrics, record, run_command, tiny_config, train_in_process
from trailnotes.commands import main
from trailnotes.config.schema import Config
from trailnotes.config.toml import to_toml
from trailnotes.envs.tasks import describe_training_overlap, load_panel, load_rehearsal_tasks, load_tasks
from trailnotes.errors import ConfigError
from trailnotes.policies.chat import ChatFormat
from trailnotes.policies.hf.policy import HFPolicy, load_tokenizer
from trailnotes.rollout.tips import WrittenTip, write_tips
from trailnotes.runs.dry_run import count_rehearsal_episodes, dry_run, estimate_iterations, shrink_config, split_usage
from trailnotes.runs.load_policy import build_model_policy
from trailnotes.runs.rehearsal import (
    Rehearsal,
    build_recording_config,
    iter_recorded_demonstrations,
    read_recording_usage,
    read_rehearsal,
    record_rehearsal,
)
from trailnotes.runs.train import train
from trailnotes.storage.demonstrations import Demonstration, read_demonstrations, write_demonstrations
from trailnotes.storage.files import read_jsonl, trajectory_from_json
from trailnotes.types import Completion, Message, Task

SPARE = {"split": "spare", "num_tasks": 2, "rows": 3}


def rehearsing(start: Path, **sections: dict[str, Any]) -> Config:
    """One iteration of the tiny run that records two games first."""
    own = {"rehearsal": SPARE | sections.pop("rehearsal", {}), "train": {"iterations": 2, "save_every": 1}}
    own["train"] |= sections.pop("train", {})
    return tiny_config(start, **own, **sections)


@pytest.fixture(scope="module")
def recorded(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a recording that nothing happened to."""
    out = tmp_path_factory.mktemp("recorded") / "rehearsal"
    record_rehearsal(rehearsing(start_model), out)
    return out


@pytest.fixture(scope="module")
def alone(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that recorded and rehearsed, and that nothing happened to."""
    run_dir = tmp_path_factory.mktemp("alone") / "run"
    train(rehearsing(start_model), run_dir)
    return run_dir


# -- whose games


@pytest.mark.parametrize(
    ("rehearsal", "more", "named"),
    [
        ({"split": "train"}, {}, r"rehearsal\.split = 'train'.*train\.split = 'train'"),
        ({"split": "test"}, {}, r"rehearsal\.split = 'test'.*eval\.split = 'test'"),
        ({"split": "validation"}, {"train": {"eval_every": 1}}, r"'validation'.*train\.validation_split"),
        ({"split": "spare", "options": {"families": ["keys/hazel"]}, "num_tasks": 0}, {}, ""),
    ],
)
def test_trained_or_evaluated_games_are_refused(
    rehearsal: dict[str, Any], more: dict[str, Any], named: str, start_model: Path, tmp_path: Path
) -> None:
    env = {"name": "paying:Paid", "options": {"families": ["keys/granite"], "max_steps": 2, "new_families": 2}}
    config = rehearsing(start_model, rehearsal=rehearsal, env=env, **more)
    if not named:
        assert build_recording_config(config).eval.split == "spare"
        return
    with pytest.raises(ConfigError, match=named):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists(), "refused before anything is made"


def test_games_in_a_file_are_recognized_by_content(start_model: Path, tmp_path: Path) -> None:
    """By identity: the file's game has another id, but the environment, seed and options of one that is trained."""
    config = rehearsing(start_model, rehearsal={"split": "", "path": str(tmp_path / "r.jsonl")})
    turns = (Message("user", "u"), Message("assistant", "a"))
    for known, named in ((load_tasks(config, "train")[0], "train.split"), (load_panel(config)[0], "the panel")):
        other = replace(known, id="another-name")
        write_demonstrations([Demonstration(turns, frozenset({1}), other)], tmp_path / "r.jsonl")
        with pytest.raises(ConfigError, match=named):
            read_rehearsal(config, tmp_path / "r.jsonl")
    write_demonstrations([Demonstration(turns, frozenset({1}), Task("elsewhere", "x", 7))], tmp_path / "r.jsonl")
    assert len(read_rehearsal(config, tmp_path / "r.jsonl")) == 1


def test_evaluation_on_rehearsed_games_is_reported(start_model: Path, recorded: Path) -> None:
    trained = rehearsing(start_model, rehearsal={"num_tasks": 0})
    examined = trained.model_copy(update={"eval": trained.eval.model_copy(update={"split": "spare", "num_tasks": 0})})
    assert describe_training_overlap(trained, trained) == ""
    output = describe_training_overlap(trained, examined)
    assert output.startswith("the model rehearsed ")
    few = rehearsing(start_model)
    assert {task.id for task in load_rehearsal_tasks(few)} < {task.id for task in load_rehearsal_tasks(trained)}
    by_file = rehearsing(start_model, rehearsal={"split": "", "path": str(recorded / "rehearsal.jsonl")})
    assert describe_training_overlap(by_file, examined).startswith("the model rehearsed 2 of the ")
    gone = rehearsing(start_model, rehearsal={"split": "", "path": "gone.jsonl"})
    assert describe_training_overlap(gone, examined) == ""


# -- what was said


def test_recording_has_the_sampled_ids(start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row begins with a prompt that the start model was given, and ends with the very ids that it sampled."""
    calls = record(monkeypatch, HFPolicy, "generate")
    config = rehearsing(start_model)
    path = record_rehearsal(config, tmp_path / "out")
    chat = ChatFormat(load_tokenizer(config.model))
    received: list[Completion] = [completion for _, completion in calls]
    output = {(*each.prompt_ids, *each.token_ids) for each in received}
    values = read_demonstrations(path, "rehearsal.path")
    assert len(values) == 8, "2 games, 2 trials: an episode and its tip each"
    rows = [chat.encode_with_mask(each.messages, each.taught) for each in values]
    for ids, mask in rows:
        assert tuple(ids[: len(mask) - mask[::-1].index(1)]) in output
    assert sum(sum(mask) for _, mask in rows) == sum(len(each.token_ids) for each in received)
    assert {each.task.id for each in values if each.task} == {task.id for task in load_rehearsal_tasks(config)}
    ends = [each for each in values if each.taught == {len(each.messages) - 1}]
    tips = [each for each in ends if "note ?" in each.messages[-2].content]
    assert len(tips) == 4
    printed = {message.content for each in tips for message in each.messages if message.role == "assistant"}
    prompts = [message.content for each in values for message in each.messages if "note" in message.content]
    assert any(text in prompt for text in printed for prompt in prompts)


@pytest.mark.parametrize(
    ("earned", "won", "episodes", "tips"),
    [
        ((0.0, 0.5, 1.0), (False, False, True), [True, True, True], [True, True, True]),
        ((1.0, 0.0, 0.0), (True, False, False), [True, False, False], [False, False, False]),
        ((1.0, 1.0, 0.5), (True, True, False), [True, True, False], [True, False, False]),
        ((0.5, 0.5, 0.5), (False, False, False), [False, False, False], [False, False, False]),
    ],
)
def test_helpful_rows_by_later_trials(
    earned: tuple[float, ...], won: tuple[bool, ...], episodes: list[bool], tips: list[bool],
    start_model: Path, recorded: Path, tmp_path: Path,
) -> None:  # fmt: skip
    """Of one game with an episode in each of three trials."""
    played = build_recording_config(rehearsing(start_model, rehearsal={"num_tasks": 1}))
    played = played.model_copy(update={"eval": played.eval.model_copy(update={"trials": 2})})
    (game,) = (task.id for task in load_panel(played))
    (tmp_path / "phases").mkdir()
    (one, *_) = (e for e in read_jsonl(recorded / "phases/trial-0.episodes.jsonl") if e["task"]["id"] == game)
    (note, *_) = read_jsonl(recorded / "phases/trial-0.notes.jsonl")
    for trial, (reward, success) in enumerate(zip(earned, won, strict=True)):
        steps = [{**step, "reward": reward if i == 0 else 0.0} for i, step in enumerate(one["steps"])]
        record = {**one, "member": 0, "steps": steps, "success": success}
        (tmp_path / f"phases/trial-{trial}.episodes.jsonl").write_text(json.dumps(record) + "\n")
        (tmp_path / f"phases/trial-{trial}.notes.jsonl").write_text(json.dumps({**note, "index": 0}) + "\n")
    values = [*iter_recorded_demonstrations(played, tmp_path, lambda text: len(text.split()))]
    assert [(each.kind, each.helped) for each in values] == [
        pair for i in range(3) for pair in ((f"trial-{i}", episodes[i]), ("tip", tips[i]))
    ]


def test_rehearsed_rows_are_even_over_kinds(start_model: Path, tmp_path: Path) -> None:
    kinds = {"trial-0": 3, "trial-1": 6, "tip": 20}
    turns = (Message("user", "go"), Message("assistant", "north"))
    made = [
        Demonstration((Message("user", f"{kind} {i}"), turns[1]), frozenset({1}), None, kind, i % 2 == 0)
        for kind, many in kinds.items()
        for i in range(many)
    ]
    write_demonstrations(made, tmp_path / "r.jsonl")
    assert read_demonstrations(tmp_path / "r.jsonl", "rehearsal.path") == made
    own = {"split": "", "path": str(tmp_path / "r.jsonl"), "hold": 0.4, "imitate": 0.1, "rows": 14}
    config = rehearsing(start_model, rehearsal=own)
    chat = ChatFormat(load_tokenizer(config.model))
    subject = Rehearsal(config, tmp_path / "r.jsonl", chat)
    known = {tuple(chat.encode_with_mask(each.messages, each.taught)[0]): each for each in made}
    drawn = [[known[row.token_ids] for row in subject.sample_rows(random.Random(seed))] for seed in range(40)]
    for rows in drawn:
        counts = Counter(row.kind for row in rows)
        assert counts["trial-0"] == 3, "all there are"
        assert sorted([counts["trial-1"], counts["tip"]]) == [5, 6], "the others make up for it"
    assert len({sum(row.kind == "tip" for row in rows) for rows in drawn}) == 2, "who gets what is left over is drawn"
    for row in subject.sample_rows(random.Random(0)):
        assert (row.role, row.hold) == ("rehearsal", 0.4)
        assert row.imitate == (0.1 if known[row.token_ids].helped else 0.0)
        assert not any(row.advantages)
    likelihood = rehearsing(start_model, rehearsal=own | {"hold": 0.0})  # teaches only what helped
    rows = Rehearsal(likelihood, tmp_path / "r.jsonl", chat).sample_rows(random.Random(0))
    assert all(known[row.token_ids].helped for row in rows)


# -- what it costs


def test_what_is_recorded_counts_from_the_start(alone: Path) -> None:
    spent = read_recording_usage(alone / "rehearsal")
    first, second = metrics(alone)
    played = [*map(trajectory_from_json, read_jsonl(alone / "rehearsal" / "trajectories.jsonl"))]
    assert spent["env_steps"] == sum(len(episode.steps) for episode in played) > 0
    assert first["env_steps"] == spent["env_steps"] + first["rollout/env_steps"]
    assert first["tokens_generated"] == spent["tokens_generated"] + first["rollout/tokens"] + first["tips/tokens"]
    assert second["env_steps"] == first["env_steps"] + second["rollout/env_steps"]
    (line, _) = read_jsonl(alone / "metrics.jsonl")
    assert line["seconds"] > spent["seconds"] > 0
    assert first["episodes"] == 20, "those are of the training alone"
    assert 0 < first["update/tokens_rehearsal"] < first["update/tokens_trained"]
    assert first["update/kl_to_reference_rehearsal"] == pytest.approx(0.0, abs=1e-2)


def test_a_file_costs_nothing(start_model: Path, recorded: Path, tmp_path: Path) -> None:
    path = str(recorded / "rehearsal.jsonl")
    config = rehearsing(start_model, rehearsal={"split": "", "path": path}, train={"iterations": 1})
    train(config, tmp_path / "run")
    (line,) = metrics(tmp_path / "run")
    assert line["env_steps"] == line["rollout/env_steps"]
    assert line["update/tokens_rehearsal"] > 0
    assert not (tmp_path / "run" / "rehearsal").exists()


def test_dry_run_extrapolates_the_recording(start_model: Path, tmp_path: Path) -> None:
    rehearsal = {"num_tasks": 60}
    config = rehearsing(start_model, rehearsal=rehearsal, train={"iterations": 1000, "max_env_steps": 1000})
    copy = shrink_config(config)
    assert (count_rehearsal_episodes(config), count_rehearsal_episodes(copy)) == (60 * 2, 4 * 2)
    line = {"env_steps": 56, "tokens_generated": 110, "seconds": 5.0}
    first, before = split_usage(config, copy, line, {"env_steps": 16, "tokens_generated": 30, "seconds": 1.0})
    assert first == {"env_steps": 40, "tokens_generated": 80, "seconds": 4.0}
    assert before == {"env_steps": 240, "tokens_generated": 450, "seconds": 15.0}
    assert estimate_iterations(config, first, before) == 19  # 760 steps are left, of 40 each
    with pytest.raises(ConfigError, match=r"environment steps.*leaves nothing to train: raise train"):
        dry_run(rehearsing(start_model, rehearsal=rehearsal, train={"max_env_steps": 200}))
    report = dry_run(config)
    assert "before them  120 episodes in " in report
    assert "iterations   about 19\n" in report


# -- what an interruption leaves


@pytest.mark.long
def test_resume_after_kill_while_recording(start_model: Path, alone: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (tmp_path / "config.toml").write_text(to_toml(rehearsing(start_model)))
    words = ["train", str(tmp_path / "config.toml"), "--run-dir", str(run_dir)]
    for fatal in (20, 25):
        assert run_command(words, run_dir / "rehearsal", fatal) == -9
        assert not (run_dir / "rehearsal" / "rehearsal.jsonl").exists()
    assert any([*read_jsonl(journal)] for journal in (run_dir / "rehearsal" / "phases").glob("*.episodes.jsonl"))
    train(rehearsing(start_model), run_dir)
    assert differences(alone, run_dir) == SAME
    assert (run_dir / "rehearsal/rehearsal.jsonl").read_bytes() == (alone / "rehearsal/rehearsal.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("command", "number"), [("train", signal.SIGINT), ("record", signal.SIGTERM), ("adapt", signal.SIGINT)]
)
def test_interrupt_names_the_finished_work(
    command: str, number: int, start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    async def interrupted(*_: Any, **__: Any) -> Completion:
        signal.raise_signal(number)
        await asyncio.sleep(1)
        raise AssertionError("the signal went unheard")

    monkeypatch.setattr(HFPolicy, "generate", interrupted)
    config, out = tmp_path / "config.toml", tmp_path / "out"
    config.write_text(to_toml(rehearsing(start_model)))
    words = {
        "train": ["train", str(config), "--run-dir", str(out)],
        "record": ["rehearsal", "record", str(config), "--out", str(out)],
        "adapt": ["adapt", str(start_model), "--config", str(config), "--out", str(out)],
    }
    assert main(words[command]) == 128 + number
    kept = out / "rehearsal" if command == "train" else out
    assert f"{kept} keeps all finished work: the same command continues" in capsys.readouterr().err


def test_recording_of_other_settings_is_refused(start_model: Path, recorded: Path) -> None:
    other = rehearsing(start_model, rehearsal={"num_tasks": 1})
    with pytest.raises(ConfigError, match=r"recording with another eval\.num_tasks: set it back, or remove"):
        record_rehearsal(other, recorded)
    longer = rehearsing(start_model, train={"iterations": 9}, optim={"lr": 0.5}, env={"num_workers": 1})
    assert record_rehearsal(longer, recorded) == recorded / "rehearsal.jsonl"


# -- the start model as the author


@pytest.mark.long
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("author", ["start", "policy"])
def test_the_start_model_writes_the_tips(
    lora: bool, author: str, start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word for word what a policy of the start model writes about the same episodes, before and after an update."""
    start = build_model_policy(tiny_config(start_model))
    written: list[tuple[list[str], list[str]]] = []

    async def listening(policy: HFPolicy, groups: Any, config: Config, **options: Any) -> list[WrittenTip]:
        result = await write_tips(policy, groups, config, **options)
        again = await write_tips(start, groups, config, **options)
        written.append(([each.completion.text for each in result], [each.completion.text for each in again]))
        assert {tip.version for each in result for tip in each.tips} == {0 if author == "start" else len(written) - 1}
        return result

    monkeypatch.setattr("trailnotes.runs.iteration.write_tips", listening)
    model = {"path": str(start_model), "lora": {"enabled": lora, "rank": 4}}
    algorithm = {"author": author, "p_memory": 0.5}
    config = tiny_config(start_model, model=model, algorithm=algorithm, loss={"kl": 0.0}, train={"iterations": 2})
    train_in_process(config, tmp_path)
    (own, theirs), (later, theirs_later) = written
    assert own == theirs
    assert (later == theirs_later) == (author == "start")
    lines = [line for line in read_jsonl(tmp_path / "trajectories.jsonl") if line["iteration"] == 1]
    assert {step["policy_version"] for line in lines for step in line["steps"]} == {1}, "it acts as before"
