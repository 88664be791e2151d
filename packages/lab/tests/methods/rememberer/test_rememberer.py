"""REMEMBERER as a method: what becomes a experience, what is advised, what the actor sees, and that it learns."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import caves
from small import small_config
from trailnotes.config.schema import Config
from trailnotes.errors import BudgetError, ConfigError
from trailnotes.memory import make_config_embedder
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout.advice import ValuedAction
from trailnotes.rollout.episode import EpisodeContext
from trailnotes.runs.adapt import adapt
from trailnotes.types import NO_OP, Completion, Message, Observation, Sampling, Step, Task, Trajectory
from trailnotes_lab.methods.rememberer import AdvisedActor, choose_advice, extract_experiences
from trailnotes_lab.methods.rememberer.table import (
    ActionValue,
    Experience,
    ExperienceRecord,
    ExperienceTable,
    RemembererConfig,
)

TASK = Task("t", "caves:Caves")
NONE: tuple[ValuedAction, ...] = ()


def cave_config(**keys: Any) -> Config:
    return small_config(
        env={"name": "caves:Caves", "options": {}},
        rollout={"max_steps": 6, "max_context_tokens": 4000, "show_actions": True, "max_observation_tokens": 400},
        eval={"num_tasks": 0, "split": "test"},
        rememberer={"epochs": 3, "temperature": 0.0} | keys,
    )


def test_an_agents_own_prompts_are_left_alone() -> None:
    config = small_config(env={"name": "gateway"}, algorithm={"name": "rememberer"})
    with pytest.raises(ConfigError, match="rememberer asks by a prompt of its own"):
        config.validate_method()


def run(out: Path, monkeypatch, policy: ScriptedPolicy | None = None, **keys: Any) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    monkeypatch.setattr("trailnotes.runs.load_policy.load_policy", lambda *_: policy or caves.adviser())
    adapt(cave_config(**keys), "adviser", out=out, method="rememberer")
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def rows(out: Path) -> list[list[Any]]:
    with closing(sqlite3.connect(out / "experience.db")) as connection:
        tables = ("experience", "experience_values")
        return [connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in tables]


# -- experiences


def episode(*steps: tuple[str, str, float], actions: tuple[str, ...] = ()) -> Trajectory:
    """(observation, action, reward) each."""
    seen, made = 0.0, []
    for index, (text, action, reward) in enumerate(steps):
        observation = Observation(text, seen, actions=actions or None, instruction=None if index else "the goal")
        made.append(Step(observation, (), Completion((), (), (), action), (), action, reward))
        seen = reward
    return Trajectory(TASK, tuple(made), Observation("end", seen, terminated=True), "terminated", False, 0.0)


def test_a_transition_knows_what_led_to_it() -> None:
    first, second = extract_experiences(episode(("hall", "go", 0.5), ("room", "take", 1.0), actions=("go", "take")))
    assert first == Experience("the goal", "hall", "go", 0.5, (), ("go", "take"), 0.0, 0.0)
    assert second == Experience("the goal", "room", "take", 1.0, ("go",), ("go", "take"), 0.5, 0.5)


def test_an_unreadable_answer_is_no_experience() -> None:
    steps = ("hall", NO_OP, 0.0), ("hall", "go", 0.5), ("room", NO_OP, 0.25), ("room", "go", 1.0)
    read = extract_experiences(episode(*steps))
    assert [(t.observation, t.action, t.reward) for t in read] == [("hall", "go", 0.75), ("room", "go", 1.0)]
    assert read[1].history == ("go",)
    with open_experience(cave_config()) as table, table.transaction():
        table.learn(read)
        assert table.find("the goal", "hall").values["go"].value == 1.75
    assert extract_experiences(episode(("hall", NO_OP, -1.0))) == []


# -- advice


def record(admissible: tuple[str, ...] = (), **values: float) -> ExperienceRecord:
    known = {a: ActionValue(a, 0.0, q, 1) for a, q in values.items()}
    return ExperienceRecord(1, "goal", "seen", admissible=admissible, values=known)


def advice(of: ExperienceRecord, seed: int = 0) -> tuple[tuple[ValuedAction, ...], tuple[ValuedAction, ...]]:
    return choose_advice(of, random.Random(seed))


def test_the_best_action_is_encouraged_and_the_worthless_discouraged_worst_first() -> None:
    assert advice(record(a=0.5, b=1.0, c=0.0)) == ((ValuedAction("b", 1.0),), (ValuedAction("c", 0.0),))
    bad = (ValuedAction("b", -100.0), ValuedAction("d", -5.0), ValuedAction("a", -1.0), ValuedAction("c", 0.0))
    assert advice(record(a=-1.0, b=-100.0, c=0.0, d=-5.0)) == (NONE, bad)


def test_an_untried_action_is_encouraged_where_none_is_good() -> None:
    of = record(("a", "b", "c"), a=0.0)
    drawn = {advice(of, seed)[0][0].action for seed in range(30)}
    assert drawn == {"b", "c"}
    assert advice(of, 7) == advice(of, 7)
    assert all(0 <= advice(of, seed)[0][0].value < 0.5 for seed in range(30))
    assert advice(record(("a",), a=0.0))[0] == NONE  # all are bad
    assert advice(record((), a=0.0))[0] == NONE


# -- the actor


class RecordingPolicy(ScriptedPolicy):
    """Keeps what it is asked; answers always the same."""

    def __init__(self, *answers: str, **options: Any) -> None:
        self.answers = list(answers)
        super().__init__(lambda messages: self.answers.pop(0) if len(self.answers) > 1 else self.answers[0], **options)
        self.asked: list[tuple[str, Sampling]] = []

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        self.asked.append((messages[-1].content, sampling))
        return await super().generate(messages, sampling, episode)


def open_experience(config: Config) -> ExperienceTable:
    return ExperienceTable(None, make_config_embedder(config), config.section(RemembererConfig))


def decide(policy: RecordingPolicy, taught: ExperienceTable, config: Config, *seen: Observation) -> list[Any]:
    async def episode() -> list[Any]:
        actor = AdvisedActor(EpisodeContext(policy, TASK, "on_policy_tips", 0, 5, "e", config), taught)
        actor.start(seen[0])
        return [await actor.act(observation) for observation in seen]

    return asyncio.run(episode())


def hall(text: str = "a hall", **fields: Any) -> Observation:
    return Observation(text, instruction="find it", **fields)


def table_of(config: Config, *texts: str, action: str = "go", reward: float = 1.0) -> ExperienceTable:
    made = open_experience(config)
    with made.transaction():
        for text in texts:
            made.learn([Experience("find it", text, action, reward, ("x", "y"), ("go", "wait"))])
    return made


def test_the_most_valued_action_is_taken() -> None:
    config = cave_config()
    policy = RecordingPolicy("wait -> 0.1\ntake cup -> 0.9\ngo -> 0.5", "no idea", "go -> 1")
    seen = (hall(), hall(reward=0.5), hall())
    decisions = decide(policy, open_experience(config), config, *seen)
    assert [decision.action for decision in decisions] == ["take cup", NO_OP, "go"]
    assert [decision.plain_prompt_ids for decision in decisions] == [d.completion.prompt_ids for d in decisions]
    assert "did : take cup\n" in policy.asked[2][0]  # an answer that could not be read is no history


def test_the_most_similar_example_stands_nearest_to_the_question() -> None:
    config = cave_config()
    policy = RecordingPolicy("go -> 1")
    decide(policy, table_of(config, "a hall with a door", "a lake", "a hall"), config, hall())
    prompt = policy.asked[0][0]
    assert prompt.index("a hall with a door") < prompt.index("\na hall\n")
    assert "a lake" not in prompt
    assert prompt.endswith("a hall\ndo :")


def test_an_example_that_does_not_fit_gives_way_to_one_that_does() -> None:
    config = cave_config(max_write_tokens=20)
    long, short = "a hall " + "very long " * 40, "a hut"
    taught = table_of(config, long, short)
    policy = RecordingPolicy("go -> 1", context_length=300)
    decide(policy, taught, config, hall("a hall very long"))
    assert "a hut" in policy.asked[0][0]
    assert "very long very" not in policy.asked[0][0]
    assert decide(RecordingPolicy("go -> 1", context_length=30), taught, config, hall()) == [None]


# -- the whole method


def test_epochs_learn_and_the_panel_does_not(tmp_path, monkeypatch) -> None:
    lines = run(tmp_path, monkeypatch, epochs=4)
    assert [line["phase"] for line in lines] == ["epoch-0", "epoch-1", "epoch-2", "epoch-3", "panel"]
    assert lines[0]["table/records"] == lines[0]["known"] == 0
    assert lines[1]["known"] > 0.1  # the first room of each gallery, at least
    assert lines[-1]["rollout/success"] > lines[1]["rollout/success"]
    updates = [line["table/updates"] for line in lines]
    assert updates == sorted(updates)
    steps = sum(line["rollout/env_steps"] for line in lines[:-1])
    assert updates[-1] == steps == sum(row[4] for row in rows(tmp_path)[1])
    assert json.loads((tmp_path / "eval" / "table.json").read_text())["rows"][0]["memory"] is True


def test_resume_after_budget_stops_and_a_crash(tmp_path, monkeypatch) -> None:
    class Limited(RecordingPolicy):
        allowed = 10**9

        async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
            if len(self.asked) >= self.allowed:
                raise BudgetError("enough")
            self.asked.append((messages[-1].content, sampling))
            return await ScriptedPolicy.generate(self, messages, sampling, episode)

    def limited(allowed: int = 10**9) -> Limited:
        policy = Limited("")
        policy._script, policy.allowed = caves.adviser()._script, allowed
        return policy

    whole = limited()
    expected = run(tmp_path / "whole", monkeypatch, whole)
    for allowed in (20, 70, 40):
        with pytest.raises(BudgetError):
            run(tmp_path / "parts", monkeypatch, limited(allowed))
    learn = ExperienceTable.learn
    monkeypatch.setattr(ExperienceTable, "learn", lambda self, episode: (learn(self, episode), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "parts", monkeypatch, limited())
    monkeypatch.setattr(ExperienceTable, "learn", learn)
    last = limited()
    lines = run(tmp_path / "parts", monkeypatch, last)

    assert len(last.asked) < len(whole.asked)
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert [{**line, "seconds": 0} for line in lines] == [{**line, "seconds": 0} for line in expected]
    again = limited()
    run(tmp_path / "parts", monkeypatch, again)
    assert again.asked == []
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
