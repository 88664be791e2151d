"""Waymarks: compiled and simulated games are the same, winnable with the rule, hopeless without, and keep it secret."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from small import small_config
from trailnotes.envs import check_env, list_env_tasks, make_env
from trailnotes.envs.base import Env
from trailnotes.envs.waymarks import env as wm
from trailnotes.envs.waymarks import spec as ws
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task
from trailnotes_lab.compare.games import collect_games, compile_all

SPLITS = ("train", "validation", "test")
ALL_FAMILIES = [f"{kind}/{name}" for kind in ws.KINDS for name in ws.FAMILY_NAMES[kind]]
OLD_FAMILIES = [f"{kind}/{name}" for kind in ws.KINDS for name in ws.FAMILY_NAMES[kind][:6]]  # all there once were
EVERY_SIZE = [(kind, size) for kind, sizes in ws.SIZES.items() for size in sizes]
KEYS_SEED, ROUTE_SEED = 7, 4  # chosen so that the start of both holds furniture, and one junction is without


def tiny_tasks() -> list[Task]:
    """One route and one keys game: all that this module compiles, besides one twin of each."""
    route = ws.make_spec("route", "amber", ("north", "east", "north", "west", "south", "south", "west"), ROUTE_SEED)
    keys = ws.make_spec("keys", "hazel", ("jade", "onyx", "ruby", "pearl"), KEYS_SEED)
    return [wm.make_task(route, "route/amber/tiny"), wm.make_task(keys, "keys/hazel/tiny")]


def play(env: Env, task: Task, actions: list[str] | tuple[str, ...]) -> list[Observation]:
    """Observations of an episode that stops when it ends."""
    seen = [env.reset(task)]
    for action in actions:
        if seen[-1].done:
            break
        seen.append(env.step(action))
    return seen


def test_splits_have_their_sizes_and_share_no_game() -> None:
    tasks = {split: wm.make_tasks(split, ALL_FAMILIES) for split in SPLITS}
    assert {split: len(listed) for split, listed in tasks.items()} == {"train": 240, "validation": 240, "test": 960}
    everything = [task for listed in tasks.values() for task in listed]
    assert len({task.id for task in everything}) == len({task.seed for task in everything}) == 1440
    specs = [wm.parse_spec(task) for task in everything]
    assert len({(s.kind, s.family, s.rooms, s.furniture, s.listing) for s in specs}) == 1440


def test_tasks_never_change() -> None:
    tasks = [task for split in SPLITS for task in wm.WaymarksEnv.tasks(split)]
    words = json.dumps([[t.id, t.env, t.seed, t.split, dict(t.options)] for t in tasks])
    assert tasks[0].id == "waymarks/route/amber/train-0"
    assert hashlib.sha256(words.encode()).hexdigest()[:16] == "09bf84119b81e956"
    assert list_env_tasks("waymarks", "test", {"actions": True}) == wm.make_tasks("test")


def test_new_families_are_never_trained_and_share_no_family_with_any_other_side() -> None:
    sides = {split: wm.make_tasks(split, 12, new_families=12, new_validation=4) for split in wm.NUM_VARIATIONS}
    families = {
        split: {task.id.split("/", 1)[1].rpartition("/")[0] for task in tasks} for split, tasks in sides.items()
    }
    assert families["train"] == families["validation"] == families["test"]
    assert [len(families[side]) for side in ("train", "new", "new-validation", "spare")] == [12, 12, 4, 20]
    assert len(families["train"] | families["new"] | families["new-validation"] | families["spare"]) == 48
    assert sides["train"] == wm.make_tasks("train", 12)  # whatever is new


def test_spare_games_share_no_rule_with_a_panel_nor_with_their_own_family() -> None:
    sides = {split: wm.make_tasks(split, 12, new_families=12, new_validation=4) for split in wm.NUM_VARIATIONS}
    rules = {split: {(t.options["kind"], *t.options["rule"]) for t in tasks} for split, tasks in sides.items()}
    games = sides.pop("spare")
    spare = rules.pop("spare")
    assert (len(games), len(spare) > 380) == (400, True)  # of 2187 and 3024 rules, 200 of either
    assert not spare & set.union(*rules.values())
    own = set(wm.list_panel_rules(ALL_FAMILIES))
    assert not {(t.options["kind"], t.options["family"], tuple(t.options["rule"])) for t in games} & own
    assert games == wm.make_tasks("spare", 12, new_families=12, new_validation=4)


@pytest.mark.parametrize("dataset_seed", range(20))
def test_families_of_a_kind_have_different_rules(dataset_seed: int) -> None:
    rules = wm.list_panel_rules(ALL_FAMILIES, dataset_seed)
    assert len(rules) == len({(kind, rule) for kind, _, rule in rules}) == len(ALL_FAMILIES)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("route", "west north north north north north north"),  # starts into the archive
        ("route", "north south south south south south south"),  # straight back
        ("route", "north"), ("route", "north " * 8), ("route", "north " * 6 + "up"),
        ("keys", "ruby ruby opal jade"), ("keys", ""), ("keys", "ruby opal jade onyx pearl"),
        ("keys", "ruby opal jade gold"), ("maze", "north"),
    ],
)  # fmt: skip
def test_impossible_rules_are_refused(kind: ws.Kind, rule: str) -> None:
    with pytest.raises(ConfigError, match=kind):
        ws.make_spec(kind, "amber", rule.split(), 0)


@pytest.mark.parametrize(
    ("split", "options", "named"),
    [
        ("dev", {}, "'dev'"), ("train", {"families": ["route/hazel"]}, "route/hazel"),
        ("train", {"families": ["maze/amber"]}, "maze/amber"), ("train", {"families": ["amber"]}, "amber"),
        *(("train", {"families": num}, f"families = {num}") for num in (3, -2, 50)), ("new", {}, "new_families"),
        ("new", {"new_families": 3}, "new_families = 3"), ("new", {"new_families": "route/amber"}, "list of names"),
        ("train", {"families": ["route/amber"], "new_families": ["route/amber"]}, "route/amber"),
        ("spare", {"families": 20, "sizes": {"route": 2}}, "sizes"),
        ("test", {"sizes": {"route/hazel": 3}}, "route/hazel"), ("test", {"sizes": {"route/birch": 1}}, "2 to 7"),
        ("test", {"sizes": {"route/birch": 8}}, "2 to 7"), ("test", {"sizes": {"keys/hazel": 0}}, "1 to 4"),
        ("test", {"sizes": {"keys/hazel": 2.0}}, "sizes"), ("test", {"sizes": ["route/birch"]}, "sizes"),
    ],
)  # fmt: skip
def test_impossible_options_are_refused(split: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        wm.make_tasks(split, **options)


SMALL = {"route/birch": 3, "keys/hazel": 2}


def test_the_default_sizes_are_the_games_there_were_before_sizes() -> None:
    """Rules, seeds and ids are held by the hash of the tasks; here the rest of what makes a game, and its cache key."""
    specs = [wm.parse_spec(task) for task in wm.make_tasks("validation", OLD_FAMILIES)]
    words = json.dumps([asdict(spec) for spec in specs])
    assert hashlib.sha256(words.encode()).hexdigest()[:16] == "3be0144937c25f16"
    texts = [ws.make_first_scene(spec).text for spec in specs]
    assert hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16] == "fecf21e5073c372c"
    sizes = {name: ws.DEFAULT_SIZE[ws.parse_family(name)[0]] for name in ALL_FAMILIES}
    assert wm.make_tasks("test", ALL_FAMILIES, sizes=sizes) == wm.make_tasks("test", ALL_FAMILIES)


def test_a_size_changes_its_family_alone() -> None:
    plain, sized = (wm.WaymarksSimulator.tasks("test", sizes=sizes) for sizes in ({}, SMALL))
    for old, new in zip(plain, sized, strict=True):
        name = f"{old.options['kind']}/{old.options['family']}"
        assert (old == new) is (name not in SMALL)
        if name in SMALL:
            assert new.id == f"{old.id}:{SMALL[name]}"
            assert len(new.options["rule"]) == wm.parse_spec(new).size == SMALL[name]
    assert {task.id for task in wm.make_tasks("test", [*SMALL], 3, SMALL)}.isdisjoint(task.id for task in sized)
    assert ws.draw_family_rule("route", "birch", 0, 3) == ("east", "south", "west"), "rules never change"
    assert ws.draw_family_rule("keys", "hazel", 0, 2) == ("opal", "beryl")


@pytest.mark.parametrize(("kind", "size"), EVERY_SIZE)
def test_games_of_every_size_are_won_with_the_rule_within_their_budget(kind: ws.Kind, size: int) -> None:
    family = {"route": "birch", "keys": "hazel"}[kind]
    env = wm.WaymarksSimulator()
    for task in wm.make_tasks("train", [f"{kind}/{family}"], sizes={f"{kind}/{family}": size}):
        spec = wm.parse_spec(task)
        check_players(env, task, spec)
        seen = play(env, task, ["look"] * 20)
        assert len(seen) == 1 + spec.max_steps == 1 + size + {"route": 2, "keys": 0}[kind]
        assert (seen[-1].truncated, seen[-1].terminated, seen[-1].success) == (True, False, False)
        assert all((box in seen[0].text) is (box in spec.boxes) for box in ws.BOXES)


def random_success(spec: ws.GameSpec) -> float:
    """Chance that uniformly drawn admissible actions win, exact: probabilities pushed through the scenes."""
    chances, won = {ws.make_first_scene(spec): 1.0}, 0.0
    for _ in range(spec.max_steps):
        following: dict[ws.Scene, float] = {}
        for scene, chance in chances.items():
            actions = ws.list_admissible(scene)
            for action in actions:
                after = ws.advance_scene(scene, action)
                share = chance / len(actions)
                won += share if after.won else 0.0
                if not (after.won or after.lost):
                    following[after] = following.get(after, 0.0) + share
        chances = following
    return won


@pytest.mark.parametrize("task", tiny_tasks(), ids=lambda task: task.options["kind"])
def test_chances_of_a_random_explorer(task: Task) -> None:
    spec = wm.parse_spec(task)
    by_hand = {
        # 1 right action of 4 at each of 7 junctions; 2 spare steps allow one detour: back (1/4) to the junction before
        # and onward again (1/4), from each junction but the first, behind which lies the archive
        "route": (1 + 6 / 4**2) / 4**7,
        # 4, 3, 2, 1 right actions of 37, 28, 19, 10: every gem in every locked box, and the archive
        "keys": 4 / 37 * 3 / 28 * 2 / 19 * 1 / 10,
    }
    assert random_success(spec) == pytest.approx(by_hand[spec.kind])
    assert round(1 / random_success(spec)) == {"route": 11916, "keys": 8202}[spec.kind]


@pytest.mark.parametrize("split", SPLITS)
def test_gold_wins_and_the_archive_tells_and_loses_in_every_simulated_game(split: str) -> None:
    env = wm.WaymarksSimulator()
    for task in wm.make_tasks(split, ALL_FAMILIES):
        check_players(env, task, wm.parse_spec(task))


@pytest.mark.parametrize("task", tiny_tasks(), ids=lambda task: task.options["kind"])
def test_gold_wins_and_the_archive_tells_and_loses_in_compiled_games(task: Task, games: Path) -> None:
    check_players(wm.WaymarksEnv(cache_dir=games), task, wm.parse_spec(task))


def check_players(env: Env, task: Task, spec: ws.GameSpec) -> None:
    note = ws.note_text(spec.rule)
    gold = play(env, task, ws.gold_actions(spec))
    assert (gold[-1].success, gold[-1].terminated, gold[-1].truncated) == (True, True, False)
    assert [o.reward for o in gold] == [0.0] * (len(gold) - 1) + [1.0]
    assert all(note not in o.text for o in gold)
    assert spec.family in (gold[0].instruction or "")
    read = play(env, task, ws.archive_actions(spec))
    assert len(read) == 2
    assert note in read[-1].text
    assert (read[-1].success, read[-1].terminated, read[-1].score, read[-1].reward) == (False, True, 0.0, 0.0)


def test_what_is_seen_word_for_word(games: Path) -> None:
    route, keys = tiny_tasks()
    env = wm.WaymarksEnv(cache_dir=games)
    seen = play(env, route, ["north", "up", "south", "north", "west"])
    assert seen[0].instruction == "find the way through the amber maze"
    assert [o.text for o in seen] == ROUTE_TEXTS
    assert seen[-1].terminated
    seen = play(env, keys, KEYS_ACTIONS)
    assert seen[0].instruction == "unlock the boxes of the hazel vault"
    assert [o.text for o in seen] == KEYS_TEXTS
    assert (seen[-1].terminated, seen[-1].truncated) == (False, True)


ROUTE_TEXTS = [
    "kitchen. exits south north east, archive west. a barrel.",
    "lounge. exits north east west.",
    "you can't go that way.",
    "kitchen. exits south north east, archive west. a barrel.",
    "lounge. exits north east west.",
    "tower. a dead end.",
]
KEYS_ACTIONS = [
    f"unlock {pair}" for pair in ("trunk with onyx", "trunk with jade", "coffer with pearl", "chest with opal")
]
GEMS, BOXES = "beryl opal jade onyx ruby agate topaz garnet pearl", "coffer crate chest trunk"
KEYS_TEXTS = [
    f"mill. you hold {GEMS}. boxes {BOXES}. archive west. a desk.", "you unlock the trunk.",
    "that's unlocked at the moment.", "you unlock the coffer.", "that doesn't seem to fit the lock.",
]  # fmt: skip


VOCABULARY = (
    *ws.DIRECTIONS, *ws.BOXES, *ws.GEMS, *ws.FURNITURE, *ws.ROOMS[:6], "archive", "unlock", "with", "go", "look",
    "examine", "x", "l", "i", "inventory", "wait", "z", "goal", "the", "a", "an", "n", "up", "in", "carved", "here",
    "exits", "boxes", "you", "hold", "and", "it", "open", "take", "northeast", "inside", "use", "help", "to", "at",
    "yes", "first", "save", "quit", "then", "again", "carrying", "nonsense", "inventorying",
)  # fmt: skip
HARD_LINES = (
    "", " ", "\n", "north\nnorth", "NORTH", " go   the  NORTH. ", "north n", "go north north", "north. east", "é",
    "☃ north", "go", "go up", "in", "northwest", "unlock", "unlock chest", "unlock chest with", "unlock with jade", "x",
    "unlock chest chest with jade jade", "unlock the chest with the jade", "unlock chest with jade with jade",
    "unlock chest with trunk", "unlock jade with chest", "unlock jade with jade", "unlock chest with north",
    "unlock north with jade", "unlock up with west", "examine north", "examine in", "examine chest trunk", "look chest",
    "unlock it with jade", "unlock all with jade", "2", "again", "g", "undo", "oops north", "north then north",
    "x" * 100_000, "north " * 30, "unlock chest with jade " * 5,
    "\x00\x1b[31mnorth", "unlock  chest,with jade", "wait wait", "goal x",
)  # fmt: skip


def side_by_side(task: Task, actions: list[str], games: Path) -> None:
    """Play the same actions in both; every observation must be equal."""
    real = wm.WaymarksEnv(actions=True, max_steps=60, cache_dir=games)
    fake = wm.WaymarksSimulator(actions=True, max_steps=60)
    assert real.reset(task) == fake.reset(task)
    for action in actions:
        here, there = real.step(action), fake.step(action)
        assert here == there, action
        if here.done:
            assert real.reset(task) == fake.reset(task)


@pytest.mark.parametrize("task", tiny_tasks(), ids=lambda task: task.options["kind"])
def test_simulated_equals_compiled_on_hard_lines(task: Task, games: Path) -> None:
    gold = list(ws.gold_actions(wm.parse_spec(task)))
    for first in ([], gold[:1], gold[:2]):
        for line in HARD_LINES:
            side_by_side(task, [*first, line, line], games)


@pytest.mark.parametrize("task", tiny_tasks(), ids=lambda task: task.options["kind"])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_simulated_equals_compiled_on_random_walks(task: Task, games: Path, data: st.DataObject) -> None:
    side_by_side(task, data.draw(st.lists(any_action(ws.gold_actions(wm.parse_spec(task))), max_size=12)), games)


def any_action(gold_actions: Sequence[str]) -> st.SearchStrategy[str]:
    """Right ones, legal ones, nearly legal ones, and any text."""
    gold = st.sampled_from(gold_actions)
    unlocking = st.builds(ws.format_unlock, st.sampled_from(ws.BOXES), st.sampled_from(ws.GEMS))
    babble = st.lists(st.sampled_from(VOCABULARY), max_size=5).map(" ".join)
    attempts = st.tuples(babble, babble).map(lambda pair: f"unlock {pair[0]} with {pair[1]}")
    looks = babble.map("examine {}".format)
    return st.one_of(gold, gold, st.sampled_from(ws.DIRECTIONS), unlocking, babble, attempts, looks, st.text())


@pytest.mark.parametrize("actions", [False, True])
def test_both_keep_the_contract(games: Path, actions: bool) -> None:
    options: dict[str, Any] = {"actions": actions, "cache_dir": games, "families": ["keys/hazel", "route/amber"]}
    assert check_env(partial(make_env, "waymarks-simulator", **options)) == ()
    assert check_env(partial(make_env, "waymarks", **options), tiny_tasks()) == ()


def test_no_step_follows_a_close() -> None:
    env = wm.WaymarksSimulator()
    env.reset(tiny_tasks()[0])
    env.close()
    with pytest.raises(EnvError, match="call reset"):
        env.step("look")


def test_compile_all_compiles_once_and_reports(games: Path) -> None:
    tasks = tiny_tasks()
    reported: list[int] = []
    paths = compile_all([*tasks, tasks[0]], reported.append, games)
    assert reported == [1, 2, 3]
    assert paths == [wm.compile_game(wm.parse_spec(task), games) for task in [*tasks, tasks[0]]]
    assert all(path.is_file() and path.with_suffix(".json").is_file() for path in paths)


def test_games_to_compile_are_named_once_for_all_settings_that_play_them(tmp_path: Path) -> None:
    env = {"name": "waymarks", "options": {"families": ["keys/granite"], "cache_dir": str(tmp_path)}}
    own = small_config(env=env, train={"split": "validation", "eval_every": 0}, eval={"split": "validation"})
    games = collect_games([own, own, small_config()])
    assert games == {tmp_path: wm.make_tasks("validation", ["keys/granite"])}
    validated = own.model_copy(update={"train": own.train.model_copy(update={"eval_every": 1, "split": "train"})})
    assert {task.split for task in collect_games([validated])[tmp_path]} == {"train", "validation"}
    few = validated.model_copy(update={"eval": validated.eval.model_copy(update={"num_tasks": 2, "split": "test"})})
    splits = Counter(task.split for task in collect_games([few])[tmp_path])
    assert splits == {"train": 5, "validation": 2, "test": 2}  # a panel's games, not all of its split
    rehearsal = few.rehearsal.model_copy(update={"split": "spare", "num_tasks": 3})
    rehearsing = few.model_copy(update={"rehearsal": rehearsal})
    assert Counter(task.split for task in collect_games([rehearsing])[tmp_path]) == {**splits, "spare": 3}
    adapting = rehearsing.model_copy(update={"algorithm": few.algorithm.model_copy(update={"name": "empo2-tips"})})
    assert Counter(task.split for task in collect_games([adapting])[tmp_path]) == splits, "it trains nothing"
