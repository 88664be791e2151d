"""Models and tips published on a hub of the loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from hub import Hub, Repository, serving_hub
from tinyrun import tiny_config, train_in_process
from trailnotes.commands import main
from trailnotes.config.toml import load_config, to_toml
from trailnotes.memory.exchange import open_store
from trailnotes.memory.tipfile import read_tips

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # how huggingface_hub uploads
TOKEN = "hf_" + "x" * 30
BASE = "somebody/base"


@pytest.fixture(scope="module")
def runs(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of adapters, and one of all weights with an evaluation."""
    root = tmp_path_factory.mktemp("runs")
    for name, model in (("lora", {"lora": {"enabled": True, "rank": 2}}), ("whole", {})):
        train_in_process(tiny_config(start_model, model=model, train={"iterations": 1}), root / name)
    assert main(["eval", str(root / "whole"), "--out", str(root / "whole" / "eval")]) == 0
    return root


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving_hub(TOKEN) as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield served


def read_card(text: bytes) -> tuple[dict[str, object], str]:
    _, facts, body = text.decode().split("---\n", 2)
    return yaml.safe_load(facts), body


def test_a_process_publishes_what_it_shows_and_never_its_token(hub: Hub, runs: Path) -> None:
    env = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0"}
    words = [sys.executable, "-m", "trailnotes", "export", str(runs / "whole"), "--push-to-hub", "me/whole", "--debug"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"published: {hub.url}/me/whole"
    repository = hub.repositories["models/me/whole"]
    checkpoint = next((runs / "whole" / "checkpoints").glob("step-*"))
    copied = {path.name: path.read_bytes() for path in (checkpoint / "model").iterdir()}
    card = repository.files["README.md"]
    assert repository.files == copied | {"README.md": card}
    assert all(name in done.stdout for name in copied)
    assert card.decode() in done.stdout
    facts, body = read_card(card)
    assert facts["library_name"] == "transformers"
    assert not {"base_model", "license"} & facts.keys(), (
        "a directory is no model of the hub, and nobody named a licence"
    )
    assert (runs / "whole" / "eval" / "table.md").read_text() in body
    assert "optim.lr = 0.01\n" in body
    assert str(runs) not in body
    assert "model.device" not in body


def test_adapters_name_a_base_that_others_can_load(
    hub: Hub, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(runs / "lora"), "--push-to-hub", "me/lora", "--private", "--licence", "mit"]
    assert main(words) == 2
    assert "a directory of this machine: name it on the hub by --base" in capsys.readouterr().err
    assert not hub.repositories
    assert main([*words, "--base", BASE, "--out", str(tmp_path / "model")]) == 0
    repository = hub.repositories["models/me/lora"]
    assert repository.private
    facts, _ = read_card(repository.files["README.md"])
    assert (facts["library_name"], facts["base_model"], facts["license"]) == ("peft", BASE, "mit")
    assert json.loads(repository.files["adapter_config.json"])["base_model_name_or_path"] == BASE
    assert repository.files == {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}


def test_a_dry_run_writes_and_uploads_nothing(hub: Hub, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    assert main(["export", str(runs / "whole"), "--push-to-hub", "me/whole", "--dry-run", "--out", str(out)]) == 0
    assert (out / "README.md").is_file()
    assert not hub.repositories


def test_a_second_push_is_a_commit_on_top_and_never_mixes_two_models(
    hub: Hub, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ["export", str(runs / "whole"), "--push-to-hub", "me/model"]
    assert main(whole) == main(whole) == 0
    repository = hub.repositories["models/me/model"]
    assert repository.commits == 2
    assert main(["export", str(runs / "lora"), "--push-to-hub", "me/model", "--base", BASE]) == 2
    assert "model.safetensors" in capsys.readouterr().err
    assert repository.commits == 2


@pytest.mark.parametrize("fault", ["public", "token", "unreachable"])
def test_what_the_hub_refuses_is_one_line_without_the_token(
    fault: str, hub: Hub, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(runs / "whole"), "--push-to-hub", "me/open"]
    if fault == "public":
        hub.repositories["models/me/open"] = Repository(private=False)
        assert main([*words, "--private"]) == 2
        assert not hub.repositories["models/me/open"].files
        assert "leave --private out" in capsys.readouterr().err
        return
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with socket.socket() as unused:  # bound, and listening to nobody
        unused.bind(("127.0.0.1", 0))
        if fault == "unreachable":
            monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        assert main(words) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert ("hf auth login" if fault == "token" else "me/open was not published") in message
    assert "hf_wrong" not in message
    assert not hub.repositories


def test_tips_become_a_data_set_that_can_be_read_back(hub: Hub, runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "tips.jsonl"
    assert main(["memory", "export", str(runs / "whole"), str(file), "--push-to-hub", "me/tips"]) == 0
    files = hub.repositories["datasets/me/tips"].files
    written = read_tips(file)
    assert all(tip.model.startswith("/") for tip in written), "the author is a directory of this machine"
    (tmp_path / "published.jsonl").write_bytes(files["tips.jsonl"])
    assert read_tips(tmp_path / "published.jsonl") == [replace(tip, model=tip.run) for tip in written]
    assert f"| tips | {len(written)}, of which" in read_card(files["README.md"])[1]
    assert written[0].model not in files["README.md"].decode()


@pytest.mark.parametrize("field", ["text", "key", "namespace", "action", "model", "run"])
def test_a_tip_that_holds_a_key_is_named_and_nothing_published(
    field: str, hub: Hub, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = shutil.copyfile(runs / "lora" / "memory.db", tmp_path / "memory.db")
    with open_store(memory) as store:
        tip = store.load_tips()[0]
    with closing(sqlite3.connect(memory)) as database, database:
        secret = f"ask with {'sk-' + 'a1' * 12} first"
        database.execute(f"UPDATE tips SET {field} = ? WHERE id = ?", (secret, tip.id))
    words = ["memory", "export", str(memory), str(tmp_path / "tips.jsonl"), "--push-to-hub", "me/tips"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"tips {tip.id} hold what looks like a key" in said
    assert "a1a1" not in said
    assert not hub.repositories


def test_a_card_that_would_hold_a_key_is_not_published(
    hub: Hub, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["memory", "export", str(runs / "whole"), str(tmp_path / "tips.jsonl"), "--push-to-hub", "me/tips"]
    assert main([*words, "--licence", "sk-" + "a1" * 12]) == 2
    assert "the card would hold what looks like a key" in capsys.readouterr().err
    assert not hub.repositories


def test_only_whole_evaluations_inside_the_run_are_on_the_card(runs: Path, tmp_path: Path) -> None:
    run = shutil.copytree(runs / "whole", tmp_path / "run")
    (run / "adapted").mkdir()
    (run / "adapted" / "table.md").write_text("of an adaptation")
    (run / "cut").mkdir()
    shutil.copy(runs / "whole" / "eval" / "panel.json", run / "cut")
    card = push_dry(run, tmp_path / "model")
    assert "of an adaptation" not in card
    assert (run / "eval" / "table.md").read_text() in card
    (tmp_path / "diary.txt").write_text("dear diary, which is no JSON")
    for name in ("table.md", "panel.json"):
        (run / "eval" / name).unlink()
        (run / "eval" / name).symlink_to(tmp_path / "diary.txt")
        card = push_dry(run, tmp_path / f"of {name}")
        assert "dear diary" not in card
    assert "No evaluation of this checkpoint" in card


@pytest.mark.parametrize(
    ("named", "claim", "setting"),
    [
        ("models/smollm2", None, "PATH OF THE INITIAL MODEL"),
        ("./smollm2", None, "PATH OF THE INITIAL MODEL"),
        ("builtin:waymarks-start", None, "builtin:waymarks-start"),
        ("owner/model", "owner/model", "owner/model"),
    ],
)
def test_only_a_model_of_the_hub_is_claimed(
    named: str, claim: str | None, setting: str, runs: Path, tmp_path: Path
) -> None:
    set_in_config(runs / "whole", tmp_path / "run", "model", "path", named)
    facts, body = read_card(push_dry(tmp_path / "run", tmp_path / "model").encode())
    assert facts.get("base_model") == claim
    assert f'model.path = "{setting}"\n' in body


def test_absolute_paths_of_settings_and_data_are_not_published(runs: Path, tmp_path: Path) -> None:
    games = ["/home/ada/games", "~/games", "keys/granite"]
    set_in_config(runs / "whole", tmp_path / "run", "env", "options", {"families": games})
    about = json.loads((tmp_path / "run" / "run.json").read_text()) | {"environment": {"data": games}}
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    card = push_dry(tmp_path / "run", tmp_path / "model")
    assert card.count('["PATH", "PATH", "keys/granite"]') == 2
    assert "/games" not in card


def test_a_stray_file_in_a_checkpoint_stays_there(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "whole", tmp_path / "run")
    (model,) = (tmp_path / "run" / "checkpoints").glob("step-*/model")
    saved = {path.name for path in model.iterdir()}
    (model / ".env").write_text("WORD=1")
    (model / "deep").mkdir()
    (model / "deep" / "notes.txt").write_text("mine")
    push_dry(tmp_path / "run", tmp_path / "model")
    files = {path.relative_to(tmp_path / "model").as_posix() for path in (tmp_path / "model").rglob("*.*")}
    assert files == saved | {"README.md"}


@pytest.mark.parametrize("command", ["export", "memory export"])
@pytest.mark.parametrize(
    "options",
    ["--dry-run", "--private", "--licence mit", "--push-to-hub tips --dry-run", "--push-to-hub me/a--b --dry-run"],
)
def test_options_that_cannot_work_are_refused_before_anything_is_written(
    command: str, options: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    place = [str(runs / "whole"), *(["--out"] if command == "export" else []), str(out)]
    assert main([*command.split(), *place, *options.split()]) == 2
    assert "OWNER/NAME" in capsys.readouterr().err
    assert not out.exists()


def test_without_huggingface_hub_nothing_is_written(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    out = tmp_path / "tips.jsonl"
    assert main(["memory", "export", str(runs / "whole"), str(out), "--push-to-hub", "me/tips"]) == 2
    assert "--push-to-hub needs huggingface_hub" in capsys.readouterr().err
    assert not out.exists()


def push_dry(run: Path, out: Path) -> str:
    assert main(["export", str(run), "--push-to-hub", "me/run", "--dry-run", "--out", str(out)]) == 0
    return (out / "README.md").read_text()


def set_in_config(run: Path, copy: Path, section: str, name: str, value: object) -> None:
    shutil.copytree(run, copy)
    config = load_config(copy / "config.toml")
    changed = getattr(config, section).model_copy(update={name: value})
    (copy / "config.toml").write_text(to_toml(config.model_copy(update={section: changed})))
