from __future__ import annotations

import json
import math
import random
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from transformers import AutoTokenizer

from small import small_config
from tinyrun import weights
from trailnotes.envs.tasks import load_tasks
from trailnotes.errors import ConfigError, Interrupted, RunError
from trailnotes.policies.chat import ChatFormat
from trailnotes.policies.hf.policy import load_model
from trailnotes.storage.files import task_to_json
from trailnotes.warmstart import training as module
from trailnotes.warmstart.training import collate, compute_learning_rate, iter_batches, warmstart


@pytest.fixture(autouse=True)
def _few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train tokenizers on the texts of 300 demonstrations instead of 4,000."""
    monkeypatch.setattr(module, "_iter_texts", partial(module._iter_texts, num=300))


def test_a_few_steps_lower_the_loss_and_the_directory_acts(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []
    config = small_config(warmstart={"steps": 24, "batch_size": 16})
    out = warmstart(config, tmp_path / "model", progress=seen.append)
    losses = [state["loss"] for state in seen]
    assert [state["step"] for state in seen] == list(range(1, 25))
    assert losses[0] == pytest.approx(math.log(len(AutoTokenizer.from_pretrained(out))), rel=0.1)  # uniform at first
    assert sum(losses[-4:]) / 4 < losses[0] - 1.5
    record = json.loads((out / "warmstart.json").read_text())
    assert record == {"steps": 24, "final_loss": pytest.approx(sum(losses) / 24), "seed": 0}
    model, tokenizer = load_model(config.model.model_copy(update={"path": str(out)}))
    assert ChatFormat(tokenizer).append_only
    assert model.config.hidden_size == 16


# -- plain SFT of a given model


def sft_config(start: Path, path: Path, **changes: Any) -> Any:
    texts = [("exits north", "north"), ("exits east", "east")]
    turns = [[{"role": "user", "content": u}, {"role": "assistant", "content": a}] for u, a in texts]
    path.write_text("\n".join(json.dumps({"messages": messages}) for messages in turns))
    model = {"path": str(start), "device": "cpu"}
    return small_config(model=model, warmstart={"demonstrations": str(path), "steps": 20, **changes})


def test_demonstrations_of_a_game_of_the_panel_are_refused(start_model: Path, tmp_path: Path) -> None:
    config = sft_config(start_model, tmp_path / "sft.jsonl", steps=1)
    line, _ = (tmp_path / "sft.jsonl").read_text().splitlines()
    train, test = (load_tasks(config, split)[0] for split in ("train", "test"))
    for named in (test.id, {**task_to_json(test), "id": "by another name", "split": "train"}):
        (tmp_path / "sft.jsonl").write_text(json.dumps(json.loads(line) | {"task": named}))
        with pytest.raises(ConfigError, match=r"warmstart\.demonstrations = .*1 of the 4 games of the panel .*test-0"):
            warmstart(config, tmp_path / "out")
    (tmp_path / "sft.jsonl").write_text(json.dumps(json.loads(line) | {"task": {"name": "x"}}))
    with pytest.raises(ConfigError, match=r"sft\.jsonl, line 1: is not a demonstration"):
        warmstart(config, tmp_path / "out")
    (tmp_path / "sft.jsonl").write_text(json.dumps(json.loads(line) | {"task": train.id}))
    warmstart(config, tmp_path / "out")


def test_conversations_that_do_not_fit_are_counted(start_model: Path, tmp_path: Path) -> None:
    config, notes = sft_config(start_model, tmp_path / "sft.jsonl", steps=1), list[str]()
    longer = [{"role": "user", "content": "exits north " * 1000}, {"role": "assistant", "content": "north"}]
    with (tmp_path / "sft.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"messages": longer}))
    warmstart(config, tmp_path / "out", note=notes.append)
    limit = config.rollout.max_context_tokens
    assert notes == [f"left out: 1 of 3 conversations exceed rollout.max_context_tokens = {limit}"]


# -- micro-batches, precision, adapters


def test_the_steps_are_those_of_plain_adamw_on_the_mean_over_tokens(start_model: Path, tmp_path: Path) -> None:
    config = sft_config(start_model, tmp_path / "sft.jsonl", steps=4, batch_size=3)
    out = warmstart(config, tmp_path / "tuned")
    model, tokenizer = load_model(config.model)
    rows = module._iter_rows(config, ChatFormat(tokenizer), 0)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01, betas=(0.9, 0.95))
    for step, batch in zip(range(4), iter_batches(rows, 3, random.Random(0)), strict=False):
        ids, mask = collate(batch, torch.device("cpu"))
        logprobs = model(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        optimizer.zero_grad()
        (-logprobs[mask[:, 1:]].mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = compute_learning_rate(step, 4, config.warmstart.lr)
        optimizer.step()
    expected = {name: p.detach() for name, p in model.named_parameters()}
    for name, weight in weights(out).items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-4, atol=1e-5)
    assert AutoTokenizer.from_pretrained(out, local_files_only=True).get_vocab() == tokenizer.get_vocab()


def in_model(config: Any, **changes: Any) -> Any:
    return type(config).model_validate(config.model_dump() | {"model": config.model.model_dump() | changes})


def test_adapters_are_tuned_and_their_base_is_not(start_model: Path, tmp_path: Path) -> None:
    lora = {"enabled": True, "rank": 4}
    config = in_model(sft_config(start_model, tmp_path / "sft.jsonl"), lora=lora)
    seen: list[dict[str, float]] = []
    out = warmstart(config, tmp_path / "tuned", progress=seen.append)
    assert seen[-1]["loss"] < seen[0]["loss"] - 0.1
    assert (out / "adapter_model.safetensors").is_file()
    assert not (out / "model.safetensors").exists()
    further = load_model(config.model.model_copy(update={"path": str(out)}))[0]
    assert any(parameter.requires_grad for parameter in further.parameters())
    with pytest.raises(ConfigError, match=r"holds adapters: set model\.lora\.enabled = true"):
        warmstart(in_model(config, path=str(out), lora={}), tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rollout": {"example_turns": (("seen", "said"),)}}, "rollout.example_turns"),
        ({"model": {"lora": {"enabled": True}}}, "model.path"),
        ({"env": {"name": "textworld", "options": {}}, "model": {"path": "no-such-model"}}, "env.name"),
    ],
)
def test_what_cannot_be_taught_is_refused_before_any_work(settings: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        warmstart(small_config(**settings), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- resuming


class Killed(BaseException):
    """Nobody may catch it."""


def at_step(number: int, do: Callable[[], object]) -> Callable[[dict[str, float]], None]:
    return lambda state: do() if state["step"] == number else None  # type: ignore[func-returns-value, return-value]


@pytest.mark.parametrize("given", [False, True])
def test_resume_after_kill(given: bool, start_model: Path, tmp_path: Path) -> None:
    config = small_config(warmstart={"steps": 8, "save_every": 3})
    if given:
        lora = {"enabled": True, "rank": 2}
        tuning = sft_config(start_model, tmp_path / "sft.jsonl", steps=8, save_every=3)
        config = in_model(tuning, dtype="bfloat16", lora=lora)
    whole = warmstart(config, tmp_path / "whole")
    with pytest.raises(Killed):
        warmstart(config, tmp_path / "parts", progress=at_step(5, Mock(side_effect=Killed)))
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["unfinished"]
    seen: list[dict[str, float]] = []
    notes: list[str] = []
    parts = warmstart(config, tmp_path / "parts", progress=seen.append, note=notes.append)
    assert [state["step"] for state in seen] == [4, 5, 6, 7, 8]
    assert notes[0].startswith("resuming after step 3")
    names = {path.name for path in whole.iterdir()}
    assert {path.name for path in parts.iterdir()} == names
    assert {n for n in names if (whole / n).read_bytes() != (parts / n).read_bytes()} == set()


def test_a_signal_saves_after_the_step_and_a_full_disk_loses_none(tmp_path: Path) -> None:
    config = small_config(warmstart={"steps": 6, "save_every": 0})
    stop = at_step(2, lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Interrupted, match="stopped after step 2; the same command resumes there") as stopped:
        warmstart(config, tmp_path / "model", progress=stop)
    assert stopped.value.number == signal.SIGTERM
    full = patch("transformers.PreTrainedTokenizerBase.save_pretrained", side_effect=Exception("no space"))
    seen: list[dict[str, float]] = []
    for name in ("model", "other"):  # a stopped one, and one that has saved nothing yet
        with full, pytest.raises(RunError, match=r"no space.*the same command resumes"):  # tokenizers, no OSError
            warmstart(config, tmp_path / name, progress=seen.append)
    assert [state["step"] for state in seen] == [3, 4, 5, 6, *range(1, 7)]
    warmstart(config, tmp_path / "other", progress=seen.append)
    assert len(seen) == 10


def test_learning_rate_by_hand() -> None:
    # 100 steps: two of warm-up, then a cosine over the other 98, half-way 0.1 + 0.9 / 2, at the end a tenth
    rates = [compute_learning_rate(step, 100, 1.0) for step in (0, 1, 2, 51, 100)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.55, 0.1])
