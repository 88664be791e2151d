"""A dry run builds everything, reports, and leaves nothing."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config

from tinyrun import tiny_config
from trailnotes.commands import main
from trailnotes.config.toml import to_toml
from trailnotes.errors import ConfigError, Interrupted
from trailnotes.runs.dry_run import dry_run


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an empty directory of temporary files, both inside it."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()]


def test_the_report_has_time_memory_and_disk_and_nothing_stays(
    start_model: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trailnotes.runs.dry_run.shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    config = tiny_config(start_model, train={"iterations": 1000, "max_env_steps": 400})
    Path("config.toml").write_text(to_toml(config).replace(str(start_model), "nowhere"))
    assert main(["train", "config.toml", "--model", str(start_model), "--run-dir", "run", "--dry-run"]) == 0
    report = capsys.readouterr().out
    report = report[report.index("everything could be built") :].splitlines()
    assert [line.split()[0] for line in report[1:5]] == ["iterations", "time", "memory", "disk"]
    assert report[1] == "iterations   about 10"  # of 5 tasks x 4 members x 2 steps
    assert report[5].startswith("the disk is too small: lower train.keep_last")
    with pytest.raises(ConfigError, match="max_context_tokens"):  # what would end the run
        dry_run(tiny_config(start_model, rollout={"max_context_tokens": 1000}), show=pytest.fail)
    assert [file.name for file in files(elsewhere)] == ["config.toml"]


@pytest.mark.usefixtures("elsewhere")
def test_memory_and_what_follows_are_shown_before_the_iteration(
    start_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr("trailnotes.runs.dry_run.train", interrupt)
    parts: list[str] = []
    with pytest.raises(Interrupted):
        dry_run(tiny_config(start_model), show=parts.append)
    assert len(parts) == 2


# -- the memory of the device


def test_a_model_that_does_not_fit_is_refused_before_anything_is_loaded(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory has the config of 7 billion weights, and no weights."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    shape = Qwen2Config(
        vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, max_position_embeddings=32768, tie_word_embeddings=False,
    )  # fmt: skip
    shape.save_pretrained("large")
    config = tiny_config(elsewhere / "large", model={"device": "auto", "dtype": "bfloat16"})
    Path("config.toml").write_text(to_toml(config))
    before = files(elsewhere)
    assert main(["train", "config.toml", "--run-dir", "run", "--dry-run"]) == 2
    printed = capsys.readouterr()
    assert "weights, bfloat16" in printed.out
    assert "it does not fit a GPU of 80 GB (74.5 GiB); none is here" in printed.out
    assert "train adapters (model.lora.enabled = true" in printed.err
    assert files(elsewhere) == before


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("model", "words", "named"),
    [
        ("runs/start", "train config.toml --dry-run", "trailnotes warmstart CONFIG --out runs/start"),
        ("runs/start", "eval runs/start --config config.toml", "model.path = 'runs/start'"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "train config.toml --dry-run --train.split test --eval.split test", "examined"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "train config.toml --dry-run --memory nowhere.jsonl", "nowhere.jsonl"),
    ],
)
def test_a_start_that_would_fail_is_refused_without_a_download(
    model: str, words: str, named: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("config.toml").write_text(to_toml(tiny_config(Path(model), model={"device": "auto"})))
    assert main(words.split()) == 2
    assert named in capsys.readouterr().err
    assert [file.name for file in files(elsewhere)] == ["config.toml"]
