"""Retrospex: the weights of the specification, the choice among candidates, its actor, and whole runs."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from small import FAMILIES, small_config
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.memory.retrieval import Floats, HashingEmbedder
from trailnotes.policies.scripted import END_ID, ScriptedPolicy
from trailnotes.rollout.episode import EpisodeContext
from trailnotes.rollout.groups import GroupRunner
from trailnotes.runs.adapt import adapt
from trailnotes.storage.files import read_jsonl, trajectory_from_json
from trailnotes.types import Completion, Message, Observation, Sampling, Task, TokenIds, Trajectory
from trailnotes_lab.methods.retrospex import RescoringActor, map_to_admissible, override_sampling, select_candidate
from trailnotes_lab.methods.retrospex.critic import train_critic
from trailnotes_lab.methods.retrospex.transitions import RetrospexConfig


def test_the_largest_mixture_wins() -> None:
    # p^ = (1, 0.5, 0), q^ = (0, 0.8, 1): lambda 0.6 gives (0.6, 0.62, 0.4), 0.9 gives (0.9, 0.53, 0.1),
    # 0.1 gives (0.1, 0.77, 0.9)
    likelihoods, advantages = [0.5, 0.3, 0.1], [-1.0, 3.0, 4.0]
    assert [select_candidate(likelihoods, advantages, weight) for weight in (0.9, 0.6, 0.1)] == [0, 1, 2]
    assert select_candidate([0.2, 0.2], [1.0, 1.0], 0.5) == 0


numbers = st.lists(st.floats(-5, 5), min_size=1, max_size=6)


@given(numbers, numbers)
def test_at_either_end_of_the_weight_one_side_decides_alone(p: list[float], q: list[float]) -> None:
    p, q = p[: len(q)], q[: len(p)]
    assert p[select_candidate(p, q, 1.0)] == pytest.approx(max(p))
    assert q[select_candidate(p, q, 0.0)] == pytest.approx(max(q))


EMBEDDER = HashingEmbedder(64)


class Words:
    """A vector of length 1 with an axis for each word."""

    name, dim = "words", 8

    def embed(self, texts: Sequence[str]) -> Floats:
        axes = ["open", "the", "red", "door", "take", "key", "look", "wait"]
        counts = np.array([[text.split().count(word) for word in axes] for text in texts], dtype=np.float32)
        return counts / np.sqrt((counts**2).sum(axis=1, keepdims=True))


def test_admissible_predictions_come_first() -> None:
    admissible = ["look", "take key", "open red door", "open door", "wait"]
    predicted = ["open the door", "take key", "door", "take key"]
    # Likeness of "open door": 2 / sqrt(6) + 1 / sqrt(2) = 1.52; of "open red door": 2 / sqrt(9) + 1 / sqrt(3) = 1.24
    assert map_to_admissible(predicted, admissible, 2, Words()) == ["take key", "open door"]
    assert map_to_admissible(predicted, admissible, 3, Words()) == ["take key", "open door", "open red door"]
    assert map_to_admissible([], admissible, 2, EMBEDDER) == ["look", "take key"]
    wrong = ["search[cut", "search[lamp)", "search[ ]", "INPUT(2, eggs]"]
    queries, shop, phone = ["search[red lamp]", *wrong], ["search[a lamp]"], ["INPUT(2, boil)", "CLICK(1)"]
    assert map_to_admissible(queries, shop, 3, EMBEDDER) == ["search[red lamp]", *shop]
    assert map_to_admissible(queries, ["click[back to search]"], 3, EMBEDDER) == ["click[back to search]"]
    assert map_to_admissible([*wrong, "INPUT(2, eggs)", "INPUT(1, eggs)"], phone, 1, EMBEDDER) == ["INPUT(2, eggs)"]


actions = st.lists(st.sampled_from(["look", "go north", "go south", "take key", "xyzzy"]), max_size=6)


@given(actions, actions, st.integers(1, 5))
def test_mapped_actions_are_admissible(predicted: list[str], admissible: list[str], num: int) -> None:
    mapped = map_to_admissible(predicted, admissible, num, EMBEDDER)
    assert len(mapped) == len(set(mapped)) == min(num, len(set(admissible)))
    assert set(mapped) <= set(admissible)
    exact = [action for action in dict.fromkeys(predicted) if action in admissible]
    assert mapped[: len(exact)] == exact[:num]


# -- the actor


class CyclingPolicy(ScriptedPolicy):
    """Says one of `sayings`, by the seed; finds a reply likely that it says early in the list."""

    def __init__(self, *sayings: str) -> None:
        super().__init__(lambda _: "")
        self.sayings = sayings
        self.asked: list[Sampling] = []
        self.scored: list[tuple[str | TokenIds, ...]] = []

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        saying = self.sayings[len(self.asked) % len(self.sayings)]
        self.asked.append(sampling)
        self._script = lambda _: saying
        return await super().generate(messages, sampling, episode)

    async def score(self, messages: Sequence[Message], replies: Sequence[str | TokenIds]) -> list[float]:
        self.scored.append(tuple(replies))
        texts = [reply if isinstance(reply, str) else self.decode(reply) for reply in replies]
        return [math.log(0.5) * (1 + self.sayings.index(t)) if t in self.sayings else -9.0 for t in texts]


class FixedCritic:
    """A critic that thinks what it is told."""

    def __init__(self, worth: Mapping[str, float]) -> None:
        self.worth = worth
        self.asked: list[tuple[str, str]] = []

    def compute_advantages(self, task: str, observation: str, actions: Sequence[str]) -> list[float]:
        self.asked.append((task, observation))
        return [self.worth.get(action, 0.0) for action in actions]


class Door:
    """Two turns that offer `actions`; and the pool that lends it."""

    def __init__(self, actions: tuple[str, ...] | None) -> None:
        self.actions = actions

    @asynccontextmanager
    async def lease(self) -> Any:
        yield self

    async def reset(self, task: Task) -> Observation:
        self.done: list[str] = []
        return Observation("a door ?", instruction="leave", actions=self.actions)

    async def step(self, action: str) -> Observation:
        self.done.append(action)
        return Observation("a hall ?", actions=self.actions, terminated=len(self.done) == 2)


def play(
    policy: CyclingPolicy, taste: FixedCritic, actions: tuple[str, ...] | None = None, **retrospex: Any
) -> tuple[Trajectory, list[dict[str, Any]]]:
    """One episode of two turns, and the journal."""
    journal: list[dict[str, Any]] = []
    config = Config(rollout={"style": "terse", "temperature": 0.4}, retrospex=retrospex)

    def make_actor(seat: EpisodeContext) -> RescoringActor:
        return RescoringActor(override_sampling(seat), taste, EMBEDDER, journal.append)

    runner = GroupRunner(policy, Door(actions), None, config, seed=3, make_actor=make_actor)
    groups = asyncio.run(runner.play([Task("t", "door")], [["plain"]]))
    return groups[0].trajectories[0], journal


@pytest.fixture(autouse=True)
def _three_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetrospexConfig, "candidates", 3)


CRITIC_ALONE = {"first_step": 1, "decay": 1e-9, "floor": 0.0}


def test_weight_of_the_policy_by_step() -> None:
    policy, taste = CyclingPolicy("north", "south", "west"), FixedCritic({"south": 1.0})
    for keys, weights in (
        ({"decay": 0.97, "floor": 0.6}, [1.0, 0.97]),
        ({"decay": 0.5, "floor": 0.6, "first_step": 1}, [0.6, 0.6]),
    ):
        _, journal = play(policy, taste, **keys)
        assert [record["weight"] for record in journal] == weights
    episode, _ = play(policy, taste, decay=0.01, floor=0.0)
    assert [step.action for step in episode.steps] == ["north", "south"]
    episode, _ = play(policy, taste, **CRITIC_ALONE)
    assert [step.action for step in episode.steps] == ["south", "south"]
    episode, _ = play(policy, taste, decay=1.0)
    assert [step.action for step in episode.steps] == ["north", "north"]
    assert taste.asked[0] == ("leave", "a door ?")


def test_an_action_that_was_not_sampled_has_no_token_ids() -> None:
    policy = CyclingPolicy("open a door", "open the door", "door")
    episode, (first, _) = play(policy, FixedCritic({"kick door": 1.0}), ("open door", "kick door"), **CRITIC_ALONE)
    step = episode.steps[0]
    assert (step.action, step.completion.text, step.completion.token_ids) == ("kick door", "kick door", ())
    assert step.other_tokens == sum(len(saying) + 1 for saying in policy.sayings)
    assert "kick door" in policy.decode(episode.steps[1].completion.prompt_ids)
    assert first["actions"] == ["open door", "kick door"]
    assert first["sampled"] == [False, False]
    assert episode.num_tokens == 2 * step.other_tokens


def test_sampled_answers_are_scored_by_their_ids_and_others_as_texts() -> None:
    policy = CyclingPolicy("open door", "Action: kick door", "door")
    play(policy, FixedCritic({}), ("kick door", "open door", "wait"))
    assert policy.scored[0] == ((*b"open door", END_ID), "kick door", "wait")


# -- whole runs


def config_of(start: Path, split: str = "test", **retrospex: Any) -> Config:
    torch.set_num_threads(1)
    return small_config(
        model={"path": str(start)},
        env={"options": {"families": FAMILIES, "max_steps": 2, "actions": True}},
        retrospex={"epochs": 1} | retrospex,
        eval={"split": split},
    )


@pytest.fixture(scope="module")
def played(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose episodes a critic can learn from."""
    out = tmp_path_factory.mktemp("played")
    adapt(config_of(start_model, split="train"), start_model, method="naive", out=out)
    return out


def test_a_run_trains_its_critic_plays_both_ways_and_examines_both(
    start_model: Path, played: Path, tmp_path: Path
) -> None:
    config, out = config_of(start_model, data=[str(played)], first_step=1, floor=0.0, decay=0.1), tmp_path / "run"
    adapt(config, start_model, method="retrospex", out=out)
    plain, rescored = read_jsonl(out / "metrics.jsonl")
    assert (plain["phase"], rescored["phase"]) == ("plain", "rescored")
    assert rescored["changed"] > 0
    assert rescored["candidates"] == 3
    for name in ("eval", "eval-plain"):
        assert json.loads((out / name / "table.json").read_text())["rows"][0]["num_episodes"] == 4
    episodes = [trajectory_from_json(r) for r in read_jsonl(out / "eval" / "episodes.jsonl")]
    decisions = {(d["task"], d["member"], d["step"]): d for d in read_jsonl(out / "decisions.jsonl")}
    for episode in episodes:
        offered = episode.steps[0].observation.actions or ()
        for index, step in enumerate(episode.steps):
            decision = decisions[episode.task.id, episode.member, index]
            assert step.action == decision["actions"][decision["chosen"]]
            assert step.action in (step.observation.actions or offered)
    assert (out / "critic" / "critic.json").is_file()

    again = out.with_name("again")
    trained = config_of(start_model, critic=str(out / "critic"), first_step=1, floor=0.0, decay=0.1)
    adapt(trained, start_model, method="retrospex", out=again)
    assert (again / "eval" / "episodes.jsonl").read_bytes() == (out / "eval" / "episodes.jsonl").read_bytes()
    before = (out / "decisions.jsonl").read_bytes()
    adapt(config, start_model, method="retrospex", out=out)  # nothing is left to do
    assert (out / "decisions.jsonl").read_bytes() == before


def test_a_critic_that_learned_from_the_panel_is_refused(start_model: Path, played: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    adapt(config_of(start_model), start_model, method="naive", out=seen)  # the panel itself
    missing, out = tmp_path / "no model", tmp_path / "run"
    with pytest.raises(ConfigError, match=r"what Retrospex learns from: 4 of the 4 games of the panel .*test-0"):
        adapt(config_of(missing, data=[str(played), str(seen)]), missing, method="retrospex", out=out)
    critic = train_critic(config_of(start_model), [seen], tmp_path / "critic")
    assert critic.about["episodes"] == 4
    with pytest.raises(ConfigError, match="what Retrospex learns from: 4 of the 4 games of the panel"):
        adapt(config_of(missing, critic=str(tmp_path / "critic")), missing, method="retrospex", out=out)
    assert not out.exists()
    out.mkdir()  # as a start with other data leaves it that is killed before its first episode
    (tmp_path / "critic").rename(out / "critic")
    with pytest.raises(ConfigError, match=r"run/critic holds a critic with other .*fingerprint"):
        adapt(config_of(start_model, data=[str(played)]), start_model, method="retrospex", out=out)
