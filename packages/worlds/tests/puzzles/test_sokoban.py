"""Sokoban: what a move does, that the search finds the fewest pushes, and what the levels are."""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trailnotes.envs import check_env, list_env_tasks, make_env
from trailnotes.warmstart.demonstrations.episodes import play_script, replay_actions
from trailnotes_worlds.puzzles import levels
from trailnotes_worlds.puzzles.sokoban import SokobanEnv, SokobanGame

LEVEL = """
#######
#@$--.#
#--$--#
#--.--#
#######
"""


def level(text: str) -> tuple[levels.Room, levels.Position]:
    """The room and the position that `drawn` would show as `text`."""
    rows = text.split()
    symbols = "".join(rows)

    def mask(of: str) -> int:
        return sum(1 << cell for cell, symbol in enumerate(symbols) if symbol in of)

    room = levels.Room(len(rows[0]), len(rows), mask("-.$*@+"), mask(".*+"))
    position = levels.Position(mask("$*"), levels.list_cells(mask("@+"))[0])
    assert levels.render_rows(room, position) == rows
    return room, position


def after(text: str, *moves: str) -> str:
    warehouse = SokobanGame(*level(text))
    for move in moves:
        warehouse.apply_action(move)
    return warehouse.render()


def fewest_pushes(room: levels.Room, position: levels.Position) -> int | None:
    """By going forwards, move by move: 0 for a walk, 1 for a push."""
    best, waiting = {position: 0}, deque([position])
    while waiting:
        here = waiting.popleft()
        if here.boxes == room.goals:
            return best[here]
        for direction in levels.DIRECTIONS:
            there = levels.move_player(room, here, direction)
            if there is None:
                continue
            pushes = best[here] + (there.boxes != here.boxes)
            if there not in best or pushes < best[there]:
                best[there] = pushes
                (waiting.append if there.boxes != here.boxes else waiting.appendleft)(there)
    return None


def pushes_in(room: levels.Room, position: levels.Position, moves: tuple[str, ...]) -> int:
    count = 0
    for move in moves:
        there = levels.move_player(room, position, move)
        assert there, f"{move} cannot be made"
        count += there.boxes != position.boxes
        position = there
    assert position.boxes == room.goals
    return count


def test_a_box_is_pushed_and_neither_two_nor_against_a_wall() -> None:
    assert after(LEVEL, "right").split()[1] == "#-@$-.#"
    assert after(LEVEL, "up") == after(LEVEL, "left") == LEVEL.strip()
    assert after("######\n#@$$.#\n#---.#\n######", "right").split()[1] == "#@$$.#"
    assert after("#####\n#@*-#\n#####", "right").split()[1] == "#-+$#"
    assert after("#####\n#@$.#\n#####", "push right").split()[1] == "#-@*#"


@settings(max_examples=30)
@given(st.integers(0, 500), st.integers(0, 2**32))
def test_backward_and_forward_search_agree(seed: int, pick: int) -> None:
    made = levels.generate_level("medium", "train", seed)
    places = list(levels.search_backwards(made.room))
    assert all(a.left <= b.left for (_, a), (_, b) in pairwise(places))
    place, push = places[pick % len(places)]
    player = levels.list_cells(place.player)
    position = levels.Position(place.boxes, player[pick % len(player)])
    assert fewest_pushes(made.room, position) == push.left
    assert pushes_in(made.room, position, levels.expand_pushes(made.room, position, dict(places))) == push.left


def test_a_dead_end_is_never_reached() -> None:
    room, position = level("#####\n#$--#\n#-@.#\n#---#\n#####")
    assert fewest_pushes(room, position) is None
    assert levels.canonicalize_position(room, position) not in dict(levels.search_backwards(room))


@pytest.mark.parametrize("difficulty", levels.DIFFICULTIES)
@settings(max_examples=30)
@given(st.sampled_from(["train", "validation", "test"]), st.integers(0, 2000))
def test_a_level_is_what_its_difficulty_says(difficulty: str, split: str, seed: int) -> None:
    made, wanted = levels.generate_level(difficulty, split, seed), levels.DIFFICULTIES[difficulty]
    room = made.room
    assert room.goals.bit_count() == made.start.boxes.bit_count() == wanted.boxes
    assert not room.floor & levels.make_border_mask(wanted.size, wanted.size)
    assert room.floor == levels.find_reachable(room.floor, made.start.player, wanted.size)
    assert not made.start.boxes & room.goals
    assert pushes_in(room, made.start, made.solution) in wanted.pushes
    assert 2 * len(made.solution) <= wanted.max_steps
    assert levels.assign_split(levels.canonicalize_orientation(levels.render_rows(room))) == split


SPLITS = ["train", "validation", "test"]


def test_it_keeps_the_contract() -> None:
    assert check_env(SokobanEnv) == ()


@pytest.mark.parametrize("reward", ["sparse", "dense"])
@settings(max_examples=40)
@given(st.sampled_from(["easy", "medium", "hard", "expert"]), st.sampled_from(SPLITS), st.integers(0, 200))
def test_every_level_is_solved_by_its_expert(reward: str, difficulty: str, split: str, number: int) -> None:
    env = make_env("sokoban", reward=reward)
    task = list_env_tasks("sokoban", split, {"difficulty": difficulty, "num_games": 201})[number]
    played = play_script(env, task, partial(replay_actions, env.solution(task)))
    assert all(step.action in (step.observation.actions or ()) for step in played.steps)
    last, rewards = played.final_observation, [step.reward for step in played.steps]
    assert (last.terminated, last.truncated, last.success, last.score) == (True, False, True, 1.0)
    assert math.isclose(math.fsum(rewards), 1.0)
    assert reward == "dense" or all(reward == 0 for reward in rewards[:-1])
