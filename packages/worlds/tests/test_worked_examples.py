"""The worked examples of the configs qwen/WORLD: each turn as the world would show it, to the letter."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from small import count_words
from small_shop import ListCatalogue, product
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.envs import list_env_tasks, make_env
from trailnotes.envs.waymarks import env as waymarks
from trailnotes.envs.waymarks import spec as rules
from trailnotes.rollout.conversation import Conversation, build_reflection_messages, get_instruction
from trailnotes.types import Task, Tip, Trajectory
from trailnotes.warmstart.demonstrations.episodes import play_script, replay_actions
from trailnotes_worlds.webshop import env as webshop
from trailnotes_worlds.webshop.goals import Goal

_TIP = re.compile(r'^- "(.*)" \(score (\d) of (\d)\)$', re.MULTILINE)
FEEDERS = ListCatalogue((
    product("GOOSEASHJAM", title="Sorvell Bird Feeder, Easy Clean", prices=(12.99,)),
    product(
        "FINCHOAKBAY", title="Sorvell Garden Bird Feeder - Rust Proof", prices=(24.5,), tag="$24.50",
        options=(("color", ("red", "green")),), attributes=("rust proof",),
    ),
    product("STORKELMHUT", title="Tamwick Garden Seed Tray, Rust Proof", prices=(9.75,)),
    *(product(f"B0FEEDER{n:02}", title=f"feeder number {n}") for n in range(47)),
))  # fmt: skip


def feeder_task(monkeypatch: pytest.MonkeyPatch) -> Task:
    """A goal of a shop of made-up bird feeders, which is opened in place of the catalogue."""
    monkeypatch.setattr(webshop, "open_cached_catalogue", lambda _: FEEDERS)
    wish = "Find bird feeders that are rust proof with color: green, and price lower than 30.00 dollars"
    goal = Goal("FINCHOAKBAY", wish, ("rust proof",), (("color", "green"),), 30.0)
    return Task("webshop/made-up", "webshop", 0, "train", goal.to_json())


def unlisted_task(config: Config, place: int) -> Task:
    """A game of the config's kind that none of its splits has."""
    options = {**config.env.options, "num_games": place + 1, "dataset_seed": 9999}
    return list_env_tasks(config.env.name, "train", options)[place]


def poplar_task() -> Task:
    """A maze under a name that no game has."""
    assert "poplar" not in rules.FAMILY_NAMES["route"]
    return waymarks.make_task(rules.make_spec("route", "poplar", ("south", "east", "north"), 0), "route/poplar/made-up")


def render(config: Config, episode: Trajectory, tips: list[Tip], *, asks: bool) -> list[str]:
    """What the policy reads in an episode: its turns with these tips, or with the request for one at the end."""
    if asks:
        messages = build_reflection_messages(episode, config.rollout, config.memory, count_words)
    else:
        conversation = Conversation(config.rollout, config.memory, count_words)
        conversation.start(get_instruction(episode))
        for number, step in enumerate(episode.steps):
            conversation.observe(step.observation, () if number else tips)
            conversation.act(step.action)
        messages = conversation.acting
    return [message.content for message in messages if message.role == "user"]


@pytest.mark.parametrize("world", ["webshop", "textworld", "waymarks", "alfworld"])
def test_the_worked_example_has_the_form_of_a_turn(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if world == "alfworld" and not all(importlib.util.find_spec(name) for name in ("alfworld", "fast_downward")):
        pytest.skip("needs the extra alfworld")
    config = load_config(f"qwen/{world}")
    bare = config.model_copy(update={"rollout": config.rollout.model_copy(update={"example_turns": ()})})
    made_up: dict[str, Callable[[], Task]] = {
        "webshop": partial(feeder_task, monkeypatch),
        "waymarks": poplar_task,
        "textworld": partial(unlisted_task, config, 0),
        "alfworld": partial(unlisted_task, config, 3),
    }
    task = made_up[world]()
    env: Any = make_env("waymarks-simulator" if world == "waymarks" else world, **config.env.options)
    shown = list(config.rollout.example_turns)
    starts = [place for place, (text, _) in enumerate(shown) if text.startswith("Task: ")]
    for begin, end in zip(starts, [*starts[1:], len(shown)], strict=True):
        turns = shown[begin:end]
        asks = "Do not act any more" in turns[-1][0]
        actions = [answer for _, answer in turns[: -1 if asks else None]]
        episode = play_script(env, task, partial(replay_actions, actions))
        tips = [Tip("", text, "", float(a), float(b)) for text, a, b in _TIP.findall(turns[0][0])]
        assert render(bare, episode, tips, asks=asks) == [text for text, _ in turns]
        assert episode.success != asks
        assert asks or world == "webshop" or tuple(actions) == env.solution(task)
    env.close()
