"""`trailnotes engine`: what is wrong is said before anything starts."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from small import small_config
from trailnotes.commands import main
from trailnotes.config.model_schema import ENGINE_TOKEN_VARIABLE
from trailnotes.config.toml import to_toml


@pytest.fixture
def settings(start_model: Path, tmp_path: Path) -> str:
    engine = {"name": "vllm", "python": sys.executable}
    config = small_config(model={"path": str(start_model), "device": "cpu"}, engine=engine)
    (tmp_path / "config.toml").write_text(to_toml(config))
    return str(tmp_path / "config.toml")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["engine", "serve", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_beyond_loopback_only_with_a_token(settings: str, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENGINE_TOKEN_VARIABLE, raising=False)
    assert f"set {ENGINE_TOKEN_VARIABLE} to the same 16 characters" in refused(capsys, settings, "--host", "0.0.0.0")


def test_a_port_that_is_taken(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refused(capsys, settings, "--port", port)
    assert f"cannot listen at 127.0.0.1:{port} (Address already in use)" in line


def test_a_python_without_vllm(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "vLLM is not installed for" in refused(capsys, settings, "--port", "0")
