"""ScienceWorld's tips in English: what each tells can be read back, and what is examined is never shown."""

from __future__ import annotations

import random
import re
from itertools import islice

import pytest

from trailnotes.config.builtin import BUILTIN
from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.config.schema import Config, EnvConfig, RolloutConfig, WarmstartConfig
from trailnotes.config.toml import load_config
from trailnotes.envs.tasks import select_unused, tasks_of
from trailnotes.rollout.conversation import quoted
from trailnotes.types import Completion, Observation, Step, Task, Trajectory
from trailnotes.warmstart.demonstrations import load_demonstrator
from trailnotes.warmstart.demonstrations.episodes import get_actions
from trailnotes_worlds.demonstrations.scienceworld import RecordedGame
from trailnotes_worlds.demonstrations.scienceworld_english import (
    EnglishScienceWorld,
    format_attempt_tip,
    parse_listed_actions,
)
from trailnotes_worlds.scienceworld.tasks import resolve_tasks

SMOLLM2 = BUILTIN / "configs/smollm2"
PATHS = (
    ("focus on ant",),
    ("teleport to outside", "look around", "focus on baby brown bear"),
    ("focus on book (moby dick)", "move book (moby dick) to red box"),
    ("connect battery anode to black wire terminal 1", "connect black wire terminal 2 to cathode in red light bulb"),
    ("pour cup containing blue paint in art studio in jug", "mix jug", "wait1", "focus on 2nd green paint"),
)


def episode(*actions: str, score: float, member: int = 1) -> Trajectory:
    task = Task("scienceworld/find-animal/0", "scienceworld", options={"task": "find-animal", "variation": 0})
    first = Observation("a room", instruction="find it", max_score=100.0)
    steps = tuple(Step(first, (), Completion((), (), (), action), (), action, 0.0) for action in actions)
    final = Observation("the end", score=score, terminated=True, max_score=100.0)
    return Trajectory(task, steps, final, "terminated", score == 100, score, 100.0, member=member)


GOLD = episode("teleport to outside", "focus on bee", score=100.0, member=0)
WANDERED = (episode("teleport to attic", "focus on door", score=-100.0), episode("look around", score=17.0, member=2))


def demonstrator(**warm: float) -> EnglishScienceWorld:
    config = Config(
        env=EnvConfig(name="scienceworld"),
        rollout=RolloutConfig(style="full"),
        memory=MemoryConfig(top_k=3),
        warmstart=WarmstartConfig(**warm),
    )
    made = load_demonstrator("scienceworld", "full")(config, lambda text: len(text.split()), 0)
    assert isinstance(made, EnglishScienceWorld)
    vars(made)["recordings"] = [RecordedGame(GOLD, WANDERED)]  # instead of what the simulator would record
    return made


@pytest.mark.parametrize("actions", PATHS)
@pytest.mark.parametrize("score", [-100.0, 0.0, 58.0, 100.0])
def test_actions_and_score_are_read_back_out_of_every_wording(actions: tuple[str, ...], score: float) -> None:
    rng, texts = random.Random(0), set()
    for _ in range(400):
        text = format_attempt_tip(actions, score, rng)
        assert parse_listed_actions(text) == actions, text
        assert parse_listed_actions(quoted(text)) == actions, "as a prompt shows it"
        assert ("full score" in text or f"{score:g}" in text) or score == 100
        texts.add(text)
    assert len(texts) > 20


def test_what_an_attempt_led_to_is_told_from_its_score() -> None:
    said = {
        score: {format_attempt_tip(("mix jug",), score, random.Random(i)) for i in range(200)}
        for score in (-100, 58, 100)
    }
    assert all("-100" in text for text in said[-100])
    assert all("58" in text for text in said[58])
    assert not any(re.search(r"fail|wrong|mistake|not enough|missing|only", text) for text in said[100])


@pytest.mark.parametrize(
    ("text", "actions"),
    [("I do not know.", ()), ("", ()), ("Well: ", ()), ("Try: look around, mix jug", ("look around", "mix jug"))],
)
def test_a_tip_in_a_models_own_words_tells_what_it_lists(text: str, actions: tuple[str, ...]) -> None:
    assert parse_listed_actions(text) == actions


def test_obedient_rows_do_what_the_tip_with_the_full_score_tells() -> None:
    acted = set()
    for demo in islice(demonstrator(p_follow_tip=1.0), 60):
        if 2 in demo.taught:  # not the rows that only write
            said = tuple(m.content for i, m in enumerate(demo.messages) if i in demo.taught)
            tips = re.findall(r'^- "(.*)" \(score 100 of 100\)$', demo.messages[1].content, re.MULTILINE)
            assert [parse_listed_actions(tip) for tip in tips] == [said]
            acted.add(said)
    assert acted == {tuple(get_actions(t)) for t in (GOLD, *WANDERED)}


def test_what_is_written_tells_what_was_done_and_the_score() -> None:
    scores = {tuple(get_actions(t)): t.score for t in (GOLD, *WANDERED)}
    written = [
        (parse_listed_actions(demo.messages[-1].content), demo.messages[-2].content)
        for demo in islice(demonstrator(p_follow_tip=0.4), 80)
        if "Write one note" in demo.messages[-2].content
    ]
    assert {actions for actions, _ in written} == set(scores)
    assert all(f"a score of {scores[actions]:g} of 100" in request for actions, request in written)


@pytest.mark.parametrize("terse", [True, False])
def test_the_wording_follows_the_style(terse: bool) -> None:
    """Terse tips draw nothing: what they always were."""
    script = load_demonstrator("scienceworld", "terse" if terse else "full")
    made = script(Config(env=EnvConfig(name="scienceworld")), len, 0)
    texts = {made.build_tip(GOLD, 100.0).text for _ in range(50)}
    assert (texts == {"teleport to outside ; focus on bee"}) == terse
    assert (made.rng.getstate() == random.Random(0).getstate()) == terse


def test_the_start_model_is_shown_nothing_that_is_examined() -> None:
    """No variation of the three tasks, in no split, nor of the one that a trained agent adapts to."""
    start = load_config(SMOLLM2 / "scienceworld-warmstart.toml")
    shown = {task.id for task in EnglishScienceWorld.choose_tasks(start)}
    assert shown
    for name in ("find-non-living-thing", "lifespan-longest-lived", "use-thermometer", "test-conductivity"):
        options = f'{{task = "{name}", protocol = "simulator"}}'
        config = load_config(SMOLLM2 / "scienceworld.toml", ["--env.options", options])
        examined = {task.id for split in ("train", "validation", "test") for task in tasks_of(config, split)}
        assert len(examined) > 100
        assert not examined & shown
        assert not {*resolve_tasks(name)} & {*resolve_tasks(start.env.options["task"])}
    assert select_unused(EnglishScienceWorld.choose_tasks(start), config)


def test_start_and_training_word_their_prompts_alike() -> None:
    start, train = (load_config(SMOLLM2 / f"scienceworld{end}.toml") for end in ("-warmstart", ""))
    for key in ("system_prompt", "briefing", "style", "max_observation_tokens", "max_action_tokens"):
        assert getattr(start.rollout, key) == getattr(train.rollout, key), key
    for key in ("max_tip_tokens", "max_write_tokens", "show_score"):
        assert getattr(start.memory, key) == getattr(train.memory, key), key
