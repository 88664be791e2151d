"""Demonstrations of games that bring an expert, recorded from Sokoban."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.config.methods_schema import RehearsalConfig
from trailnotes.config.schema import Config, EnvConfig, EvalConfig, RolloutConfig, WarmstartConfig
from trailnotes.errors import ConfigError
from trailnotes.warmstart.demonstrations import iter_held_out_demonstrations, load_demonstrator
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


def test_recordings_are_won_by_the_expert_and_repeat() -> None:
    made = ExpertDemonstrator(config_of(), words, 0)
    assert len(made.recordings) == 3
    assert len({recorded.wandered[0].task.id for recorded in made.recordings}) == 3
    for recorded in made.recordings:
        assert recorded.gold
        assert recorded.gold.success
        assert len(recorded.wandered) == 4
        assert recorded.gold.task.split == "train"
    assert ExpertDemonstrator(config_of(), words, 5).recordings == made.recordings  # from the file


def test_without_tips_the_expert_is_imitated_and_written_about() -> None:
    made = ExpertDemonstrator(config_of(p_follow_tip=0.0, p_explore=0.0), words, 0)
    golds = {
        " ; ".join(get_actions(recorded.gold)): get_actions(recorded.gold)
        for recorded in made.recordings
        if recorded.gold
    }
    seen = [demonstration for demonstration in islice(made, 40) if demonstration.messages[-1].content in golds]
    assert seen
    for demonstration in seen:
        said = [message.content for message in demonstration.messages if message.role == "assistant"]
        assert said[-1] == " ; ".join(said[:-1]) or len(said) == 1  # a row of its own, where tips were shown


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


def test_sokoban_has_demonstrations_in_both_wordings() -> None:
    for style in ("full", "terse"):
        assert load_demonstrator("sokoban", style) is ExpertDemonstrator
