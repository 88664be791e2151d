"""Scripted searches for the coin of TextWorldExpress, with tips to act on and to write.

The initial model learns to take a visible coin, to visit unseen rooms that no tip calls empty, to go the way in a tip
with a full score, and to write down the way to the coin, or the empty rooms. Searchers know only their observations and
tips; they play games of the train split alone.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, cast

from trailnotes.config.schema import Config
from trailnotes.envs import list_env_tasks, make_env
from trailnotes.envs.tasks import select_unused
from trailnotes.errors import ConfigError
from trailnotes.storage.demonstrations import Demonstration
from trailnotes.types import Observation, Task, Tip, Trajectory
from trailnotes.warmstart.demonstrations.episodes import Script, build_demonstrations, play_script, replay_actions
from trailnotes_worlds.demonstrations.experts import ExpertDemonstrator
from trailnotes_worlds.textworld_express.env import TextWorldExpressEnv

TAKE: Final = "take coin"
MAX_SEARCH_STEPS: Final = 100  # of the search for a right tip
MAX_TRIES: Final = 200  # episodes in a row without a demonstration
_ROOM: Final = re.compile(r"You are in the ([^.]+)\.")
_WAY_ON: Final = re.compile(r"To the (\w+) you see the ([^.]+)\.")


class Searcher:
    """Script that visits unseen rooms and takes the coin."""

    def __init__(self, rng: random.Random, empty: Collection[str] = ()) -> None:
        self.rng, self.empty = rng, frozenset(empty)
        self.rooms: dict[str, Mapping[str, str]] = {}  # seen room -> direction -> the room there

    def search(self, num: int, first: Observation) -> Script:
        observation = first
        for _ in range(num):
            observation = yield self.choose_action(observation)

    def wander(self, num: int, first: Observation) -> Script:
        """Move at random for `num` steps, but take a visible coin."""
        observation = first
        for _ in range(num):
            _, ways = parse_room(observation.text)
            observation = yield TAKE if is_coin_visible(observation) else f"move {self.rng.choice([*ways])}"

    def choose_action(self, observation: Observation) -> str:
        room, ways = parse_room(observation.text)
        self.rooms[room] = ways
        if is_coin_visible(observation):
            return TAKE
        way = self._find_direction(room, {*self.rooms, *self.empty}) or self._find_direction(room, self.rooms)
        return f"move {way or self.rng.choice([*ways])}"

    def _find_direction(self, start: str, known: Collection[str]) -> str:
        # Towards the nearest room that is not in `known`, by way of seen rooms; "" without one.
        reached, waiting = {start}, deque([(start, "")])
        while waiting:
            room, first = waiting.popleft()
            ways = self.rooms[room]
            for direction in self.rng.sample([*ways], len(ways)):
                there = ways[direction]
                if there not in known:
                    return first or direction
                if there in self.rooms and there not in reached:
                    reached.add(there)
                    waiting.append((there, first or direction))
        return ""


class CoinDemonstrator(ExpertDemonstrator):
    """Endless fresh demonstrations of coin games without doors; of an `ExpertDemonstrator` for all other games."""

    def __init__(self, config: Config, count_tokens: Callable[[str], int], seed: int) -> None:
        super().__init__(config, count_tokens, seed)
        tasks = list_env_tasks("textworld-express", "train", config.env.options)
        self.coins = tasks if all(map(is_searched, tasks)) else []
        self.env = cast(
            "TextWorldExpressEnv",
            make_env("textworld-express", **{**config.env.options, "max_steps": MAX_SEARCH_STEPS, "actions": True}),
        )

    def hold_out(self, config: Config) -> None:
        if not self.coins:
            super().hold_out(config)
            return
        self.coins = select_unused(self.coins, config)
        if not self.coins:
            raise ConfigError("every training game is trained on or evaluated: name others in rehearsal.options")

    def __iter__(self) -> Iterator[Demonstration]:
        if not self.coins:
            yield from super().__iter__()
        in_vain = 0
        try:
            while in_vain < MAX_TRIES:
                made = self.demonstrate_search(self.rng.choice(self.coins))
                in_vain = 0 if made else in_vain + 1
                yield from made
        finally:
            self.env.close()
        raise ConfigError(
            f"the coin was further away than rollout.max_steps = {self.config.rollout.max_steps} in each of "
            f"{MAX_TRIES} games: raise it, or set warmstart.p_follow_tip below 1"
        )

    def demonstrate_search(self, task: Task) -> list[Demonstration]:
        """Demonstrate an episode: a row to act, and after tips a tip-free row to write."""
        warm = self.config.warmstart
        tips: tuple[Tip, ...] = ()
        if self.rng.random() < warm.p_follow_tip:
            played = self.play_with_tip(task)
            if played is None:
                return []
            trajectory, tips = played
        elif self.rng.random() < warm.p_explore:
            trajectory = self.play(task, "wander")
        else:
            tips = self.build_failed_search_tips(task) if self.rng.random() < 0.4 else ()
            trajectory = self.play(task, "search", parse_empty_rooms(tips))
        note = format_search_note(trajectory)
        return build_demonstrations(trajectory, self.rank_tips(tips), note, self.config, self.count_tokens)

    def play_with_tip(self, task: Task) -> tuple[Trajectory, tuple[Tip, ...]] | None:
        """Play the way of a right tip; return the episode and its tips, or None if the way is too long."""
        search = play_script(self.env, task, partial(Searcher(self.rng).search, MAX_SEARCH_STEPS))
        way = extract_path(search)
        if not search.success or len(way) >= self.config.rollout.max_steps:
            return None
        actions = [*(f"move {direction}" for _, direction in way), TAKE]
        others = self.build_failed_search_tips(task) if self.rng.random() < 0.4 else ()
        tips = (self.build_tip(search, search.score), *others)
        return play_script(self.env, task, partial(replay_actions, actions)), tips

    def build_failed_search_tips(self, task: Task) -> tuple[Tip, ...]:
        tries = (self.play(task, self.rng.choice(("search", "wander"))) for _ in range(self.rng.randint(1, 2)))
        return tuple(self.build_tip(trajectory, trajectory.score) for trajectory in tries if not trajectory.success)

    def play(self, task: Task, manner: str, empty: Collection[str] = ()) -> Trajectory:
        acting = getattr(Searcher(self.rng, empty), manner)
        return play_script(self.env, task, partial(acting, self.config.rollout.max_steps))

    def write_note(self, trajectory: Trajectory, score: float) -> str:
        return format_search_note(trajectory) if is_searched(trajectory.task) else super().write_note(trajectory, score)


def is_searched(task: Task) -> bool:
    """Return whether searchers can play a game: a coin game without doors."""
    return bool(task.options["game"] == "coin" and task.options["params"].get("includeDoors") == 0)


def is_coin_visible(observation: Observation) -> bool:
    return TAKE in (observation.actions or ())


def parse_room(text: str) -> tuple[str, Mapping[str, str]]:
    room = _ROOM.search(text)
    return (room[1] if room else ""), {direction.lower(): there for direction, there in _WAY_ON.findall(text)}


def extract_path(trajectory: Trajectory) -> list[tuple[str, str]]:
    """Extract the rooms before the last one, with the direction to the next, without detours."""
    left: dict[str, str] = {}
    for step in trajectory.steps:
        room, _ = parse_room(step.observation.text)
        if room in left:  # a detour
            names = [*left]
            left = {name: left[name] for name in names[: names.index(room)]}
        left[room] = step.action.removeprefix("move ")
    return [(room, direction) for room, direction in left.items() if direction != TAKE]


def format_search_note(trajectory: Trajectory) -> str:
    """Format the note about a search: the way to the coin and its room, or the empty rooms."""
    texts = [step.observation.text for step in trajectory.steps] + [trajectory.final_observation.text]
    rooms = [room for room in dict.fromkeys(parse_room(text)[0] for text in texts) if room]
    if not trajectory.success:
        return f"no coin in {' , '.join(rooms)}"
    last, _ = parse_room(trajectory.steps[-1].observation.text)
    return " , ".join([*(f"{room} {direction}" for room, direction in extract_path(trajectory)), f"coin in {last}"])


def parse_empty_rooms(tips: Sequence[Tip]) -> frozenset[str]:
    texts = (tip.text.removeprefix("no coin in ") for tip in tips if not tip.score)
    return frozenset(room for text in texts for room in text.split(" , "))
