"""Demonstrations of games that bring an expert, recorded from Sokoban."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.config.methods_schema import RehearsalConfig
from trailnotes.config.schema import Config, EnvConfig, EvalConfig, RolloutConfig, WarmstartConfig
from trailnotes.errors import ConfigError
from trailnotes.warmstart.demonstrations import iter_held_out_demonstrations
from trailnotes.warmstart.demonstrations.episodes import get_actions
from trailnotes_worlds.demonstrations.experts import ExpertDemonstrator


def words(text: str) -> int:
    return len(text.split())


def config_of(**shares: float) -> Config:
    return Config(
        env=EnvConfig(name="sokoban", options={"num_games": 6}),
        rollout=RolloutConfig(style="terse", max_steps=20, max_observation_tokens=500, max_context_tokens=20_000),
        memory=MemoryConfig(max_tip_tokens=500),
        warmstart=WarmstartConfig(variations=3, **shares),
    )


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAILNOTES_CACHE", str(tmp_path))


def test_with_a_tip_it_does_what_the_best_one_says() -> None:
    made = ExpertDemonstrator(config_of(p_follow_tip=1.0), words, 0)
    episodes = {" ; ".join(get_actions(each)) for recorded in made.recordings for each in recorded.all_episodes}
    acting = [demonstration for demonstration in islice(made, 30) if len(demonstration.taught) > 1]
    assert acting
    for demonstration in acting:
        said = [message.content for message in demonstration.messages if message.role == "assistant"]
        assert " ; ".join(said) in episodes
        assert " ; ".join(said) in "\n".join(message.content for message in demonstration.messages[:3])


def test_apart_leaves_out_what_is_trained_or_examined() -> None:
    config = config_of().model_copy(update={"eval": EvalConfig(split="test")})
    with pytest.raises(ConfigError, match=r"name others in rehearsal\.options"):
        iter_held_out_demonstrations(config, words, 0)
    other = config.model_copy(update={"rehearsal": RehearsalConfig(options={"dataset_seed": 7})})
    made = iter_held_out_demonstrations(other, words, 0)
    assert isinstance(made, ExpertDemonstrator)
    assert len(made.recordings) == 3
    assert next(iter(made)).messages
