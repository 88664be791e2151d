"""A start model of random weights that every test of whole commands may share."""

from __future__ import annotations

from pathlib import Path

import pytest

from small import save_start_model


@pytest.fixture(scope="session")
def start_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory, never written to."""
    return save_start_model(tmp_path_factory.mktemp("start") / "model")
