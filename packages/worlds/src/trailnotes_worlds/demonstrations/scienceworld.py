"""Scripted ScienceWorld episodes of training variations: gold paths and wanderings, with tips to act on and to write.

The initial model learns the wording of actions, to look before it acts, to repeat a tip with a full score, to do
something else after one with a bad score, and to write down its actions. Leave a task out of `env.options.task` to see
later training learn it. A script is a generator that receives the newest observation and yields the next action.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterator, Sequence
from functools import partial

from trailnotes.config.schema import Config
from trailnotes.envs import Env, make_env
from trailnotes.envs.tasks import load_tasks
from trailnotes.types import Observation, Task, Trajectory
from trailnotes.warmstart.demonstrations.episodes import Script, play_script, replay_actions
from trailnotes_worlds.demonstrations.experts import ExpertDemonstrator, spread_by_family
from trailnotes_worlds.demonstrations.recorded import NUM_WANDERINGS
from trailnotes_worlds.scienceworld.client import GOLD_PATH_FINDER
from trailnotes_worlds.scienceworld.tasks import DEFAULT_TASK, scienceworld_tasks

logger = logging.getLogger(__name__)
ROOMS = (
    "kitchen", "bathroom", "living room", "bedroom", "workshop", "art studio", "hallway", "greenhouse", "outside",
    "foundry",
)  # fmt: skip
IGNORED_THINGS = {"agent", "air", "ground"}
_GO = re.compile(r"(?:go to|teleport to) (.+)")
_MOVING = re.compile(r"(?:open door to|go to|teleport to|look around)\b")
_ARTICLE = re.compile(r"^(?:an?|the|some) +")
_REST = re.compile(r", | \(|\. |\.$|\)")
_BOX = re.compile(r"\w+ box\b")
_NAMED_THING = re.compile(r"ocus on the ((?!thing|animal)[\w -]+)\.")
_ELECTRIC = re.compile(r"wire|battery|generator|solar panel|turbine")


class ScienceWorldDemonstrator(ExpertDemonstrator):
    """Endless demonstrations drawn from recorded episodes of the training variations of `env.options.task`.

    The simulator records the episodes once into the cache folder (minutes), `warmstart.variations` of each task spread
    over its training variations.
    """

    @staticmethod
    def choose_tasks(config: Config) -> list[Task]:
        names = config.env.options.get("task", DEFAULT_TASK)
        tasks = scienceworld_tasks("train", names, protocol="simulator")
        held_out = {task.id for split in ("validation", "test") for task in load_tasks(config, split)}
        return spread_by_family([task for task in tasks if task.id not in held_out], config)

    @classmethod
    def record_episodes(cls, config: Config) -> Iterator[Trajectory]:
        """Play the gold path of each variation, as member 0 if it fits `rollout.max_steps`, and wanderings."""
        options = {key: value for key, value in config.env.options.items() if key not in ("task", "protocol")}
        env = make_env("scienceworld", **{**options, "max_steps": config.rollout.max_steps})
        try:
            for task in cls.choose_tasks(config):
                if gold := _play_gold_path(env, task, options.get("simplification", "easy"), config.rollout.max_steps):
                    yield gold
                for member in range(1, 1 + NUM_WANDERINGS):
                    rng = random.Random(f"{task.id} {member}")
                    yield play_script(env, task, partial(wander, rng), member)
                logger.info("recorded %s", task.id)
        finally:
            env.close()
            GOLD_PATH_FINDER.close()


def _play_gold_path(env: Env, task: Task, simplification: str | Sequence[str], max_steps: int) -> Trajectory | None:
    path = GOLD_PATH_FINDER.find_solution(task.options["task"], task.options["variation"], simplification).actions
    for actions in shorten_path(path):
        if len(actions) <= max_steps:
            trajectory = play_script(env, task, partial(replay_actions, actions), 0)
            if trajectory.success:
                return trajectory
    return None


def shorten_path(path: Sequence[str]) -> Iterator[list[str]]:
    """Yield shorter versions of a gold path, which may fail, the shortest first, and the path itself last."""
    short = _replace_walks(path)
    renamed = [_normalize_names(action) for action in short]
    yield [action for action in renamed if not action.startswith("wait")]
    yield renamed
    yield short
    yield list(path)


def _replace_walks(path: Sequence[str]) -> list[str]:
    # Every walk through rooms becomes one teleportation; a look follows the first, or precedes the first other action.
    short: list[str] = []
    room = ""
    for action in path:
        if going := _GO.match(action):
            room = going[1]
        elif not _MOVING.match(action):
            if room:
                short.append(f"teleport to {room}")
            if "look around" not in short:
                short.append("look around")
            short.append(action)
            room = ""
    return short


def _normalize_names(action: str) -> str:
    # Gold paths repeat a word ("baby baby mouse") and add the place of a thing; listings do not.
    words = re.sub(r"\b(\w+) \1\b", r"\1", action)
    words = re.sub(r"\begg (\w+ egg)\b", r"\1", words)
    return words.removesuffix(" in inventory").replace(" in inventory to ", " to ")


def parse_things(listing: str) -> list[str]:
    """Parse the names of things in a listing, with those on and in others, without doors and surroundings."""
    inside = listing.partition("You also see:")[0].partition("\n")[2]
    names: list[str] = []
    for line in inside.splitlines():
        head, _, content = line.strip().partition(": ")
        for item in (head, *content.rstrip(". )").split(", ")):
            name = _REST.split(_ARTICLE.sub("", item.strip()).removeprefix("substance called "))[0]
            if name and name not in IGNORED_THINGS | {"nothing"} and not name.startswith(("which", "currently", "On ")):
                names.append(_ARTICLE.sub("", name))
    return list(dict.fromkeys(names))


def wander(rng: random.Random, first: Observation) -> Script:
    """Act at random: go to a place, look around, and take actions of the right form on things there."""
    task = first.instruction or ""
    named = [room for room in ROOMS if room in task]
    room = rng.choice(named) if named and rng.random() < 0.5 else rng.choice(ROOMS)
    yield f"teleport to {room}"
    seen = parse_things((yield "look around").text) or ["agent"]
    if "paint" in task:
        for _ in range(rng.randint(1, 2)):
            yield f"pour {rng.choice(seen)} in {rng.choice(seen)}"
        yield f"mix {rng.choice(seen)}"
    named_thing = _NAMED_THING.search(task)
    thing = named_thing[1] if named_thing and rng.random() < 0.7 else rng.choice(seen)
    yield f"focus on {thing}"
    if "circuit" in task or "conductive" in task:
        parts = [name for name in seen if _ELECTRIC.search(name)] or list(seen)
        for _ in range(rng.randint(2, 5)):
            one, other = _name_terminal(rng.choice(parts), rng), _name_terminal(rng.choice([thing, *parts]), rng)
            yield f"connect {one} to {other}"
    if boxes := sorted(set(_BOX.findall(task))):
        if named and rng.random() < 0.5:
            yield f"pick up {thing}"
            yield f"teleport to {named[-1]}"
        yield f"move {thing} to {rng.choice(boxes)}"


def _name_terminal(part: str, rng: random.Random) -> str:
    if "wire" in part:
        return f"{part} terminal {rng.choice((1, 2))}"
    pole = rng.choice(("anode", "cathode"))
    return f"{part} {pole}" if _ELECTRIC.search(part) else f"{pole} in {part}"
