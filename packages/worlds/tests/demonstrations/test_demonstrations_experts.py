"""Recorded experts of Sokoban, and scripted searches for a coin: in houses drawn here, and a few in the simulator's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from small import count_words, small_config
from trailnotes.config.methods_schema import RehearsalConfig
from trailnotes.config.schema import Config, EnvConfig, EvalConfig, MemoryConfig, RolloutConfig, WarmstartConfig
from trailnotes.errors import ConfigError
from trailnotes.types import Observation, Task
from trailnotes.warmstart.demonstrations import iter_held_out_demonstrations
from trailnotes.warmstart.demonstrations.episodes import get_actions, play_script, replay_actions
from trailnotes_worlds.demonstrations.coin import TAKE, CoinDemonstrator, Searcher, extract_path, format_search_note
from trailnotes_worlds.demonstrations.experts import ExpertDemonstrator

STEPS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
TASK = Task("coin/1", "textworld-express", options={"game": "coin", "params": {"includeDoors": 0}})


class House:
    """Rooms on a grid, worded as the simulator words them; the coin lies in one."""

    def __init__(self, rooms: dict[tuple[int, int], str], coin: str) -> None:
        self.rooms, self.coin = rooms, coin

    @property
    def exits(self) -> dict[str, tuple[int, int]]:
        x, y = self.at
        around = {direction: (x + dx, y + dy) for direction, (dx, dy) in STEPS.items()}
        return {direction: there for direction, there in around.items() if there in self.rooms}

    def reset(self, task: Task) -> Observation:
        del task
        self.at = next(iter(self.rooms))
        return self.seen()

    def step(self, action: str) -> Observation:
        if action == TAKE and self.rooms[self.at] == self.coin:
            return Observation("You take the coin.", 1.0, terminated=True, success=True, score=1.0)
        self.at = self.exits[action.removeprefix("move ")]  # a way that does not exist fails the test
        return self.seen()

    def close(self) -> None:
        """Nothing is open."""

    def seen(self) -> Observation:
        here = self.rooms[self.at]
        thing = " There is also a coin." if here == self.coin else ""
        ways = " ".join(f"To the {way.title()} you see the {self.rooms[to]}." for way, to in self.exits.items())
        offered = (*(f"move {way}" for way in self.exits), *([TAKE] if thing else []))
        return Observation(f"You are in the {here}.{thing} \n{ways}", actions=offered)


@st.composite
def houses(draw: st.DrawFn) -> House:
    """Of up to nine rooms, each beside one of those before, with or without loops."""
    places = [(0, 0)]
    for _ in range(draw(st.integers(1, 8))):
        x, y = draw(st.sampled_from(places))
        dx, dy = draw(st.sampled_from([*STEPS.values()]))
        places.append((x + dx, y + dy))
    rooms = {at: f"room {'abcdefghi'[number]}" for number, at in enumerate(dict.fromkeys(places))}
    return House(rooms, draw(st.sampled_from([*rooms.values()])))


@given(houses(), st.integers(0, 9))
def test_notes_of_a_search_lead_to_the_coin(house: House, seed: int) -> None:
    first = play_script(house, TASK, partial(Searcher(random.Random(seed), frozenset()).search, 60))
    assert first.success
    way = extract_path(first)
    assert len({room for room, _ in way}) == len(way)
    again = play_script(house, TASK, partial(replay_actions, [*(f"move {direction}" for _, direction in way), TAKE]))
    assert again.success
    assert len(again.steps) <= len(first.steps)
    steps, _, where = format_search_note(first).rpartition("coin in ")
    assert where == house.coin
    assert steps == "".join(f"{room} {direction} , " for room, direction in way)
    assert format_search_note(again) == format_search_note(first)


def a_config(doors: int = 0, **warmstart: float) -> Config:
    params = {"numLocations": 11, "numDistractorItems": 0, "includeDoors": doors}
    return small_config(
        env={"name": "textworld-express", "options": {"params": params, "view": "short", "num_games": 30}},
        rollout={"max_steps": 8, "max_context_tokens": 4000, "max_observation_tokens": 400, "style": "terse"},
        memory={"top_k": 3, "max_tip_tokens": 100},
        warmstart=warmstart,
    )


@pytest.fixture(scope="module")
def subject() -> Iterator[CoinDemonstrator]:
    pytest.importorskip("textworld_express", reason="needs the extra textworld-express")
    made = CoinDemonstrator(a_config(), count_words, 1)
    yield made
    made.env.close()


@pytest.mark.long
def test_no_game_that_is_examined_is_played(subject: CoinDemonstrator, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Task] = []
    reset = subject.env.reset
    monkeypatch.setattr(subject.env, "reset", lambda task: played.append(task) or reset(task))
    for _ in range(30):
        subject.demonstrate_search(subject.rng.choice(subject.coins))
    assert {task.split for task in played} == {"train"}


def test_a_right_tip_is_followed_whatever_stands_beside_it(subject: CoinDemonstrator) -> None:
    played = [each for task in subject.coins[:15] if (each := subject.play_with_tip(task))]
    assert len(played) > 10
    for trajectory, (right, *others) in played:
        assert trajectory.success
        assert right.text == format_search_note(trajectory)
        assert (right.score, right.max_score) == (1.0, 1.0)
        assert all(tip.score == 0 and tip.text.startswith("no coin in ") for tip in others)
        assert len(trajectory.steps) == len(extract_path(trajectory)) + 1 <= subject.config.rollout.max_steps


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
    made = ExpertDemonstrator(config_of(p_follow_tip=1.0), count_words, 0)
    episodes = {" ; ".join(get_actions(each)) for recorded in made.recordings for each in recorded.all_episodes}
    acting = [demonstration for demonstration in islice(made, 30) if len(demonstration.taught) > 1]
    assert acting
    for demonstration in acting:
        said = [message.content for message in demonstration.messages if message.role == "assistant"]
        assert " ; ".join(said) in episodes
        assert " ; ".join(said) in "\n".join(message.content for message in demonstration.messages[:3])


def test_without_tips_none_is_followed() -> None:
    made = ExpertDemonstrator(config_of(p_follow_tip=1.0, num_tips=0), count_words, 0)
    acting = [demonstration for demonstration in islice(made, 30) if len(demonstration.taught) > 1]
    assert acting
    assert not [each for each in acting if " ; " in "\n".join(message.content for message in each.messages[:3])]


def test_apart_leaves_out_what_is_trained_or_examined() -> None:
    config = config_of().model_copy(update={"eval": EvalConfig(split="test")})
    with pytest.raises(ConfigError, match=r"name others in rehearsal\.options"):
        iter_held_out_demonstrations(config, count_words, 0)
    other = config.model_copy(update={"rehearsal": RehearsalConfig(options={"dataset_seed": 7})})
    made = iter_held_out_demonstrations(other, count_words, 0)
    assert isinstance(made, ExpertDemonstrator)
    assert len(made.recordings) == 3
    assert next(iter(made)).messages
