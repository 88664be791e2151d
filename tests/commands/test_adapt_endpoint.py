"""A real server, for engineers who train nothing: adaptation that is killed, limited and gone on with; an own agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proxy import Proxy
from served import MODEL
from small import small_config
from tinyrun import episodes
from trailnotes.config.toml import to_toml
from trailnotes.memory.tipfile import read_tips
from trailnotes.storage.files import read_jsonl

METHODS = ["empo2-tips", *(pytest.param(name, marks=pytest.mark.long) for name in ("reflexion", "rememberer"))]
COMMAND = """
import sys
for name in ("torch", "transformers", "tokenizers", "matplotlib"):  # not in the base install
    sys.modules[name] = None
from trailnotes.commands import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def config(tmp_path: Path, proxy: Proxy) -> Path:
    """Four games of two families; one request at a time, so that the server draws as each seed has it."""
    settings = small_config(
        env={"options": {"families": ["route/amber", "keys/granite"], "max_steps": 4}},
        rollout={"max_steps": 4, "max_context_tokens": 400},
        memory={"max_write_tokens": 12},
        endpoint={"base_url": proxy.url, "concurrency": 1, "context_tokens": 512},
        eval={"num_tasks": 4, "trials": 2, "temperature": 1.0},
        algorithm={"author": f"openai:{MODEL}"},
        reflexion={"max_write_tokens": 12},
        rememberer={"epochs": 2, "num_tasks": 3, "max_write_tokens": 16},
    )
    file = tmp_path / "config.toml"
    file.write_text(to_toml(settings))
    return file


def start(config: Path, method: str, out: Path, *settings: str) -> subprocess.Popen[str]:
    words = ["adapt", f"openai:{MODEL}", "--config", str(config), "--method", method, "--out", str(out), *settings]
    env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == code, output
    return output


def count_answers(out: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in out.rglob("answers.jsonl"))


@pytest.mark.parametrize("method", METHODS)
def test_resume_after_kill_and_budget_stop(method: str, proxy: Proxy, config: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    finish(start(config, method, whole))
    once, tokens = proxy.counts, proxy.tokens
    assert set(once.values()) == {1}
    proxy.asked.clear()

    killed = start(config, method, out)
    proxy.wait_for(len(once) // 3)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    lost = len(proxy.asked) - count_answers(out)
    assert 0 <= lost <= 1  # what was under way

    limit = tokens * 2 // 3
    output = finish(start(config, method, out, "--endpoint.max_tokens_total", str(limit)), code=2)
    assert f"endpoint.max_tokens_total = {limit}" in output
    assert output.count("raise the limit") == 1
    assert len(output.splitlines()[-1].split("trailnotes: ")) == 2
    assert len(once) // 3 < count_answers(out) < len(once)
    lines = [line for path in out.rglob("answers.jsonl") for line in read_jsonl(path)]  # of the policy and the author
    spent = sum(line["prompt_tokens"] + line["completion_tokens"] for line in lines)
    assert spent <= limit

    finish(start(config, method, out, "--endpoint.max_tokens_total", str(2 * tokens)))
    assert "nothing was played again" in finish(start(config, method, out))
    assert proxy.counts.keys() == once.keys()
    assert sum(proxy.counts.values()) == len(once) + lost
    assert episodes(out) == episodes(whole)
    (*_, last) = read_jsonl(out / "metrics.jsonl")
    assert last["endpoint/requests"] == len(once)
    assert last["endpoint/tokens_read"] + last["endpoint/tokens_generated"] == tokens
    rows = [json.loads((each / "table.json").read_text())["rows"] for each in (out, whole)]
    for row in (*rows[0], *rows[1]):
        row.pop("seconds")
    assert rows[0] == rows[1]


# -- no harness at all


@pytest.mark.usefixtures("no_endpoint_variables")
def test_an_agent_of_ones_own_reads_what_it_wrote(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    from own_agent import main

    scores = main(proxy.url, MODEL, str(tmp_path / "own.db"))
    first = next(tip for tip in read_tips(tmp_path / "own.db") if tip.step == 0)
    assert (first.model, first.score, scores[0]) == (MODEL, 0.0, 0.0)
    opening = [asked.body["messages"][0]["content"] for asked in proxy.asked if len(asked.body["messages"]) == 1]
    assert len(opening) == len(scores) == 4
    assert "notes :" not in opening[0]
    assert all(f'- " {first.text} " 0 / 1' in text for text in opening[1:])
    assert max(scores[1:]) == 1.0, "what the archive said wins the game"
    assert "attempt 1: score " in capsys.readouterr().out
