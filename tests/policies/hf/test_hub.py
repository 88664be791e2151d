from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import HfApi

from trailnotes.config.model_schema import ModelConfig
from trailnotes.errors import PolicyError
from trailnotes.policies.hf.policy import get_context_length, is_cache_only

NAME = "some/model"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    is_cache_only.cache_clear()
    yield
    is_cache_only.cache_clear()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that the hub was asked for; it cannot be reached."""
    names: list[str] = []

    def unreachable(_: HfApi, name: str, **options: Any) -> None:
        names.append(name)
        raise ConnectionError("Name or service\nnot known")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", unreachable)
    return names


def cached(monkeypatch: pytest.MonkeyPatch, path: Path | None) -> None:
    monkeypatch.setattr("trailnotes.policies.hf.policy.try_to_load_from_cache", lambda *_: str(path) if path else None)


def test_hub_out_of_reach_falls_back_to_the_cache(
    monkeypatch: pytest.MonkeyPatch, asked: list[str], tmp_path: Path
) -> None:
    cached(monkeypatch, None)
    with pytest.raises(PolicyError, match=r"model\.path = 'some/model'") as caught:
        get_context_length(ModelConfig(path=NAME))
    assert "\n" not in str(caught.value)
    assert asked == [NAME]
    cached(monkeypatch, tmp_path / "config.json")
    assert [is_cache_only(NAME) for _ in range(3)] == [True] * 3
    assert asked == [NAME] * 2


def test_a_first_download_is_announced(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", lambda *_, **__: None)
    cached(monkeypatch, None)
    with caplog.at_level(logging.WARNING):
        assert is_cache_only(NAME) is False
    assert NAME in caplog.text
