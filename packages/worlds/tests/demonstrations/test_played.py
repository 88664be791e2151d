"""What people play becomes demonstrations: word for word what an agent would be shown, appended whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from shopfloor import FRONT, tasks
from small import small_config
from trailnotes.config.schema import Config
from trailnotes.errors import RunError
from trailnotes.prompts import parse_action
from trailnotes.storage.demonstrations import read_demonstrations
from trailnotes.warmstart.training import warmstart
from trailnotes_worlds.demonstrations.played import PlayRecorder, build_played_demonstration
from trailnotes_worlds.webshop.env import WebShopEnv
from trailnotes_worlds.webshop.writing import write_catalogue

BOUGHT = ("search[green mug]", "click[b000000001]", "click[large]", "click[buy now]")
HASTY = ("search[oat biscuits]", "click[b000000003]", "click[buy now]")


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("catalogues") / "front"
    write_catalogue(folder, FRONT.products).close()
    return str(folder)


@pytest.fixture
def env(catalogue: str) -> WebShopEnv:
    return WebShopEnv(catalogue=catalogue)


def words(text: str) -> int:
    return len(text.split())


def config(**rollout: Any) -> Config:
    return Config().model_copy(update={"rollout": Config().rollout.model_copy(update=rollout)})


@pytest.mark.parametrize("action_format", ["line", "tags", "react"])
def test_each_turn_is_what_the_environment_says(env: WebShopEnv, action_format: Any) -> None:
    task, settings = tasks()[0], config(action_format=action_format)
    demonstration = build_played_demonstration(env, task, BOUGHT, settings, words)
    observation = env.reset(task)
    turns = [message for message in demonstration.messages if message.role != "system"]
    assert task.options["instruction"] in turns[0].content
    for seen, said, action in zip(turns[::2], turns[1::2], BOUGHT, strict=True):
        assert observation.text in seen.content
        assert parse_action(said.content, action_format).action == action
        observation = env.step(action)
    assert demonstration.helped
    assert observation.success
    assert {demonstration.messages[i].role for i in demonstration.taught} == {"assistant"}
    assert len(demonstration.taught) == len(BOUGHT)


def test_a_poor_purchase_did_not_help(env: WebShopEnv) -> None:
    assert not build_played_demonstration(env, tasks()[0], HASTY, config(), words).helped


def test_what_the_environment_does_not_repeat_is_refused(env: WebShopEnv, catalogue: str) -> None:
    short = WebShopEnv(catalogue=catalogue, max_steps=2)
    with pytest.raises(RunError, match=r"ends after 2 of 4 steps: raise the environment's max_steps"):
        build_played_demonstration(short, tasks()[0], BOUGHT, config(), words)
    with pytest.raises(RunError, match="has not ended after the 3 steps"):
        build_played_demonstration(env, tasks()[0], BOUGHT[:3], config(), words)
    with pytest.raises(RunError, match="has not ended after the 0 steps"):
        build_played_demonstration(env, tasks()[0], (), config(), words)


def test_the_file_grows_by_whole_lines_and_keeps_what_it_held(env: WebShopEnv, tmp_path: Path) -> None:
    path = tmp_path / "new" / "played.jsonl"
    recorder = PlayRecorder(path, env, config(), words)
    recorder.write(recorder.line(tasks()[0], BOUGHT))
    recorder.close()
    recorder.close()
    with path.open("ab") as file:
        file.write(b'{"messages": [{"role": "us')  # what a crash leaves
    again = PlayRecorder(path, env, config(), words)
    assert again.torn_line_path is not None
    assert again.torn_line_path.read_bytes() == b'{"messages": [{"role": "us'
    again.write(again.line(tasks()[2], HASTY))
    again.close()
    found = read_demonstrations(path, "warmstart.demonstrations")
    assert [(each.task, each.kind, each.helped) for each in found] == [
        (tasks()[0], "played", True), (tasks()[2], "played", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "held",
    [b"garbage", b"garbage\n", b'"messages"\n', b"{}\n", b'{"messages": [{"role"\n', b"\xff\xfe\n", b"[" * 100_000],
)
def test_a_file_of_something_else_stays_as_it_is(env: WebShopEnv, tmp_path: Path, held: bytes) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_bytes(held)
    for _ in range(2):  # the second time, too: nothing holds the lock
        with pytest.raises(RunError, match=r"first line of .* is no demonstration"):
            PlayRecorder(path, env, config(), words)
    assert path.read_bytes() == held
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_whose_only_line_was_cut_is_begun_anew(env: WebShopEnv, tmp_path: Path) -> None:
    for number, held in enumerate((b"{", b'{"messages": [{"role": "us')):
        (tmp_path / str(number)).write_bytes(held)
        recorder = PlayRecorder(tmp_path / str(number), env, config(), words)
        recorder.close()
        assert recorder.torn_line_path
        assert recorder.torn_line_path.read_bytes() == held


def test_one_process_at_a_time_records(env: WebShopEnv, tmp_path: Path) -> None:
    first = PlayRecorder(tmp_path / "played.jsonl", env, config(), words)
    with pytest.raises(RunError, match="another process records to"):
        PlayRecorder(tmp_path / "played.jsonl", env, config(), words)
    first.close()
    PlayRecorder(tmp_path / "played.jsonl", env, config(), words).close()


def test_a_file_that_cannot_be_written(env: WebShopEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="choose another file to record to"):
        PlayRecorder(tmp_path, env, config(), words)
    path = tmp_path / "played.jsonl"
    recorder = PlayRecorder(path, env, config(), words)
    line = recorder.line(tasks()[0], BOUGHT)
    recorder.write(line)
    whole = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device"):
        recorder.write(line)
    assert path.read_bytes() == whole
    recorder.close()


@pytest.mark.usefixtures("same_threads")
def test_a_start_model_learns_from_it(env: WebShopEnv, catalogue: str, tmp_path: Path) -> None:
    shop = {"name": "webshop", "num_workers": 0, "options": {"catalogue": catalogue, "goals": "synthetic"}}
    path = tmp_path / "played.jsonl"
    settings = small_config(
        env=shop, rollout={"max_context_tokens": 2048, "max_observation_tokens": 256},
        warmstart={"steps": 2, "batch_size": 2, "demonstrations": str(path)},
    )  # fmt: skip
    recorder = PlayRecorder(path, env, settings, words)
    for task, actions in ((tasks()[0], BOUGHT), (tasks()[2], HASTY)):
        recorder.write(recorder.line(task, actions))
    recorder.close()
    losses: list[float] = []
    out = warmstart(settings, tmp_path / "model", progress=lambda state: losses.append(state["loss"]))
    assert len(losses) == 2
    assert (out / "model.safetensors").is_file()
