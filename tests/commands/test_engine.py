"""`trailnotes engine`: the command that it becomes, and what is wrong before it does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from small import small_config
from trailnotes.commands import main
from trailnotes.config.toml import to_toml
from trailnotes.policies.vllm.server import PROGRAM


def test_it_becomes_the_server(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = {"name": "vllm", "python": sys.executable}
    config = small_config(model={"path": str(start_model), "device": "cpu"}, engine=engine)
    (tmp_path / "config.toml").write_text(to_toml(config))
    became: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda *arguments: became.append(arguments))
    main(["engine", "serve", str(tmp_path / "config.toml"), "--host", "10.0.0.5", "--port", "99"])
    ((program, command, variables),) = became
    assert (program, command[:3]) == (sys.executable, [sys.executable, str(PROGRAM), "serve"])
    assert command[-4:] == ["--host", "10.0.0.5", "--port", "99"]
    assert variables["VLLM_SERVER_DEV_MODE"] == "1"
    assert "http://10.0.0.5:99" in capsys.readouterr().out
