from __future__ import annotations

import json
import math
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from small import demonstration_texts, small_config
from trailnotes.commands import main
from trailnotes.config.toml import to_toml
from trailnotes.envs.tasks import tasks_of
from trailnotes.errors import ConfigError
from trailnotes.policies.chat import ChatFormat
from trailnotes.policies.hf.policy import load_model
from trailnotes.storage.records import task_to_json
from trailnotes.types import Message
from trailnotes.warmstart import training as module
from trailnotes.warmstart.demonstrations import Demonstration
from trailnotes.warmstart.small_model import END, train_tokenizer
from trailnotes.warmstart.training import batches, collate, encode, learning_rate, warmstart


@pytest.fixture(autouse=True)
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer of 100 demonstrations instead of thousands."""
    texts = module._texts
    monkeypatch.setattr(module, "_texts", lambda config: texts(config, 100))


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def equal(first: Path, second: Path) -> bool:
    a, b = weights(first), weights(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# -- the command


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


def test_the_same_seed_gives_the_same_model_and_another_seed_another(tmp_path: Path) -> None:
    config = small_config(warmstart={"steps": 3})
    first, again = warmstart(config, tmp_path / "a"), warmstart(config, tmp_path / "b")
    other = warmstart(small_config(warmstart={"steps": 3}, run={"seed": 1}), tmp_path / "c")
    assert equal(first, again)
    assert (first / "tokenizer.json").read_bytes() == (again / "tokenizer.json").read_bytes()
    assert not equal(first, other)


def test_the_command_line_trains_the_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "warm.toml"
    path.write_text(to_toml(small_config()))
    assert main(["warmstart", str(path), "--out", str(tmp_path / "model"), "--warmstart.steps", "2"]) == 0
    assert f"model: {tmp_path / 'model'}" in capsys.readouterr().out
    assert json.loads((tmp_path / "model" / "warmstart.json").read_text())["steps"] == 2


@pytest.mark.parametrize("kind", ["model", "other", "file"])
def test_what_is_there_already_is_never_replaced(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / ("config.json" if kind == "model" else "thesis.tex")).write_text("mine")
    before = {path: path.read_text() for path in [out, *out.glob("*")] if path.is_file()}
    with pytest.raises(ConfigError, match="already exists; choose another --out"):
        warmstart(small_config(), out)
    assert {path: path.read_text() for path in [out, *out.glob("*")] if path.is_file()} == before


def test_an_environment_without_scripted_episodes_is_named_before_any_work(tmp_path: Path) -> None:
    config = small_config(env={"name": "textworld", "options": {}}, model={"path": "no-such-model"})
    with pytest.raises(ConfigError, match=r"env\.name = 'textworld' has no scripted episodes .*waymarks"):
        warmstart(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- plain SFT of a given model


def sft_config(start: Path, path: Path, **changes: Any) -> Any:
    path.write_text(
        "\n".join(
            json.dumps({"messages": [{"role": "user", "content": u}, {"role": "assistant", "content": a}]})
            for u, a in [("exits north", "north"), ("exits east", "east")]
        )
    )
    model = {"path": str(start), "device": "cpu"}
    return small_config(model=model, warmstart={"demonstrations": str(path), "steps": 20, **changes})


def test_a_given_model_learns_a_file_and_keeps_its_tokenizer(start_model: Path, tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []
    config = sft_config(start_model, tmp_path / "sft.jsonl")
    out = warmstart(config, tmp_path / "tuned", progress=seen.append)
    assert seen[-1]["loss"] < seen[0]["loss"] - 1
    assert not equal(start_model, out)
    loaded, own = (AutoTokenizer.from_pretrained(path, local_files_only=True) for path in (out, start_model))
    assert loaded.get_vocab() == own.get_vocab()


def test_demonstrations_of_a_game_of_the_panel_are_refused(start_model: Path, tmp_path: Path) -> None:
    config = sft_config(start_model, tmp_path / "sft.jsonl", steps=1)
    line, _ = (tmp_path / "sft.jsonl").read_text().splitlines()
    train, test = (tasks_of(config, split)[0] for split in ("train", "test"))
    for named in (test.id, {**task_to_json(test), "id": "by another name", "split": "train"}):
        (tmp_path / "sft.jsonl").write_text(json.dumps(json.loads(line) | {"task": named}))
        with pytest.raises(ConfigError, match=r"warmstart\.demonstrations = .*1 of the 4 games of the panel .*test-0"):
            warmstart(config, tmp_path / "out")
    (tmp_path / "sft.jsonl").write_text(json.dumps(json.loads(line) | {"task": {"name": "x"}}))
    with pytest.raises(ConfigError, match=r"sft\.jsonl:1 is not a demonstration"):
        warmstart(config, tmp_path / "out")
    (tmp_path / "sft.jsonl").write_text(json.dumps(json.loads(line) | {"task": train.id}))
    warmstart(config, tmp_path / "out")


def test_demonstrations_that_never_fit_are_an_error_not_an_endless_search(start_model: Path, tmp_path: Path) -> None:
    config = sft_config(start_model, tmp_path / "sft.jsonl")
    tight = config.rollout.model_copy(update={"max_context_tokens": 4, "max_action_tokens": 1})
    with pytest.raises(ConfigError, match=r"no demonstration fits rollout\.max_context_tokens = 4"):
        warmstart(config.model_copy(update={"rollout": tight}), tmp_path / "tuned")
    assert not (tmp_path / "tuned").exists()


def test_a_bad_line_stops_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{}\n")
    model = {"path": "no-such-model"}
    config = small_config(model=model, warmstart={"demonstrations": str(tmp_path / "bad.jsonl")})
    with pytest.raises(ConfigError, match=r"bad\.jsonl:1 is not a demonstration"):
        warmstart(config, tmp_path / "out")


# -- rows


def test_only_taught_turns_and_their_end_are_imitated() -> None:
    tokenizer = train_tokenizer(demonstration_texts(50), 420)
    said = [("user", "exits north"), ("assistant", "north"), ("user", "exits east"), ("assistant", "east")]
    messages = tuple(Message(role, text) for role, text in said)  # type: ignore[arg-type]
    chat = ChatFormat(tokenizer)
    whole, mask = encode(Demonstration(messages, frozenset({1, 3})), chat)
    assert tokenizer.decode([i for i, m in zip(whole, mask, strict=True) if m]).split() == [
        f"north{END}",
        f"east{END}",
    ]
    assert tuple(whole[: mask.index(1)]) == chat.encode(messages[:1])
    ids, only_last = encode(Demonstration(messages, frozenset({3})), chat)
    assert ids == whole
    assert tokenizer.decode([i for i, m in zip(ids, only_last, strict=True) if m]).split() == [f"east{END}"]


def test_batches_hold_similar_lengths_and_lose_no_row() -> None:
    rng = random.Random(0)
    rows = [([i] * rng.randint(1, 50), [1]) for i in range(64)]
    cut = list(islice(batches(iter(rows), 4, random.Random(0)), 16))
    assert sorted(row[0][0] for batch in cut for row in batch) == list(range(64))
    spreads = [max(lengths) - min(lengths) for batch in cut if (lengths := [len(row[0]) for row in batch])]
    assert sum(spreads) <= 49  # together no more than the whole range: they were sorted
    means = [sum(len(row[0]) for row in batch) for batch in cut]
    assert means != sorted(means)


def test_collate_pads_on_the_right() -> None:
    ids, mask = collate([([5, 6, 7], [0, 1, 1]), ([8], [1])], torch.device("cpu"))
    assert ids.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert mask.tolist() == [[False, True, True], [True, False, False]]


def test_learning_rate_by_hand() -> None:
    # 100 steps: two of warm-up, then a cosine over the other 98, half-way 0.1 + 0.9 / 2, at the end a tenth
    assert [learning_rate(step, 100, 1.0) for step in (0, 1, 2, 51, 100)] == pytest.approx([0.5, 1.0, 1.0, 0.55, 0.1])
