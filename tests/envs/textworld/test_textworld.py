"""TextWorld: files, folders and generators; one tiny generated game is compiled."""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from trailnotes.envs import check_env
from trailnotes.envs.textworld.env import GENERATORS, TextWorldEnv
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task

TREASURE = {"generator": "treasure_hunter", "level": 1, "num_games": 2}
ODD_ACTIONS = ("", "\n", "é ☃", "x" * 100_000, "\x1b[31m", "go north\nquit", "north. quit", "restart", "print_state")


@pytest.fixture(scope="module")
def game(games: Path) -> Path:
    """The compiled game itself."""
    TextWorldEnv(cache_dir=games).reset(TextWorldEnv.tasks("train", **TREASURE)[0])
    return next(games.glob("*.z8"))


def tasks_of(path: Path, split: str = "train") -> list[Task]:
    return TextWorldEnv.tasks(split, path=path)


@pytest.mark.parametrize("actions", [False, True])
def test_a_generated_game_is_played_to_its_end(game: Path, games: Path, actions: bool) -> None:
    env = TextWorldEnv(actions=actions, cache_dir=games)
    first = env.reset(TextWorldEnv.tasks("train", **TREASURE)[0])
    assert "pick up the passkey" in (first.instruction or "")
    assert first.text.startswith("Chamber. ")
    assert (first.score, first.max_score, first.done) == (0.0, 1.0, False)
    assert ("take passkey" in (first.actions or ())) is actions
    assert env.step("take the moon").text == "You can't see any such thing."
    last = env.step("take passkey")
    assert (last.reward, last.score, last.terminated, last.success, last.truncated) == (1.0, 1.0, True, True, False)
    assert last.text == "You pick up the passkey from the ground."
    assert last.actions == (() if actions else None)
    with pytest.raises(EnvError, match="call reset"):
        env.step("look")
    env.close()
    env.close()
    assert list(games.glob("*.z8")) == [game]


def test_tracked_and_plain_play_read_the_same(game: Path) -> None:
    task = tasks_of(game)[0]
    walk = ["look", "north", "go west", "inventory", "nonsense", "examine passkey", "take all", "drop passkey"]
    texts = []
    for actions in (False, True):
        env = TextWorldEnv(actions=actions)
        seen = [env.reset(task), *(env.step(action) for action in walk)]
        texts.append([(o.text, o.reward, o.score, o.done) for o in seen])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("actions", [False, True])
def test_it_keeps_the_contract(game: Path, games: Path, actions: bool) -> None:
    del game
    check_env(
        partial(TextWorldEnv, actions=actions, cache_dir=games, **TREASURE), TextWorldEnv.tasks("train", **TREASURE)[:1]
    )


@pytest.mark.parametrize("actions", [False, True])
def test_odd_actions_neither_crash_nor_leave_the_game(game: Path, actions: bool) -> None:
    env = TextWorldEnv(actions=actions)
    env.reset(tasks_of(game)[0])
    for action in ODD_ACTIONS:
        seen = env.step(action)
        assert isinstance(seen, Observation)
        assert not seen.done
        assert seen.info == ({} if action in ("", "\n", "go north\nquit") else {"action_refused": True}), action
    assert env.step("take passkey").success


def test_the_step_limit_truncates_unless_the_last_step_wins(game: Path) -> None:
    env = TextWorldEnv(max_steps=2)
    for action, won in (("look", False), ("take passkey", True)):
        env.reset(tasks_of(game)[0])
        assert not env.step("look").done
        last = env.step(action)
        assert (last.truncated, last.terminated, last.success) == (not won, won, won)
        with pytest.raises(EnvError, match="call reset"):
            env.step("look")


def test_generated_tasks_are_disjoint_over_splits_and_never_change() -> None:
    listed = {split: TextWorldEnv.tasks(split, generator="coin_collector") for split in ("train", "validation", "test")}
    seeds = [task.seed for tasks in listed.values() for task in tasks]
    assert len(seeds) == len(set(seeds)) == len({task.id for tasks in listed.values() for task in tasks}) == 60
    words = json.dumps([[t.id, t.seed, t.split, dict(t.options)] for tasks in listed.values() for t in tasks])
    assert listed["train"][0].id == "textworld/coin_collector-level1/train-0"
    assert hashlib.sha256(words.encode()).hexdigest()[:16] == "c60ba84c592236ce"
    moved = TextWorldEnv.tasks("test", generator="coin_collector", dataset_seed=1)
    assert not {task.seed for task in moved} & set(seeds)


def test_a_folder_may_hold_splits_or_plain_games(game: Path, tmp_path: Path) -> None:
    for name in ("train/a", "train/b", "test/c"):
        target = tmp_path / f"{name}.z8"
        target.parent.mkdir(exist_ok=True)
        shutil.copy(game, target)
        shutil.copy(game.with_suffix(".json"), target.with_suffix(".json"))
    assert [task.id for task in tasks_of(tmp_path)] == ["textworld/train/a", "textworld/train/b"]
    assert [task.id for task in tasks_of(tmp_path, "test")] == ["textworld/test/c"]
    assert tasks_of(tmp_path, "validation") == []
    assert [task.id for task in tasks_of(tmp_path / "train", "test")] == ["textworld/test/a", "textworld/test/b"]
    before = TextWorldEnv.identity(tmp_path)
    assert before == TextWorldEnv.identity(str(tmp_path)) != TextWorldEnv.identity(tmp_path / "train")
    (tmp_path / "test/c.z8").write_bytes(b"another game of this name")
    assert TextWorldEnv.identity(tmp_path) != before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"generator": "treasure_hunt"}, "did you mean treasure_hunter"),
        ({"generator": "coin_collector", "levle": 3}, "'levle'; did you mean level"),
        ({"generator": "coin_collector", "level": 301}, "1 to 300"),
        ({"generator": "simple", "goal": "long"}, "detailed, brief, none"),
        ({"generator": "simple", "path": "x"}, "path"),
        ({"level": 3}, "path"),
        ({"max_step": 3}, "'max_step'; did you mean max_steps"),
        ({"path": "x.z8", "level": 3}, "'level'"),
        ({"path": "x.z8", "num_games": 3}, "'num_games'.* path"),
        ({"generator": "simple", "num_games": 0}, "num_games"),
        ({"generator": "simple", "dataset_seed": -1}, "dataset_seed"),
    ],
)
def test_bad_options_name_the_fix(options: dict[str, Any], named: str) -> None:
    for call in (lambda: TextWorldEnv.tasks("train", **options), lambda: TextWorldEnv(**options)):
        with pytest.raises(ConfigError, match=named):
            call()


def test_bad_splits_steps_and_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "lonely.z8").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="'dev'"):
        TextWorldEnv.tasks("dev")
    with pytest.raises(ConfigError, match="max_steps"):
        TextWorldEnv(max_steps=0)
    for name in ("lonely.z8", "data.json", "empty"):
        with pytest.raises(ConfigError, match=name.partition(".")[0]):
            tasks_of(tmp_path / name)


@pytest.mark.long
@pytest.mark.parametrize("generator", sorted(GENERATORS))
def test_every_generator_makes_games_of_every_split(generator: str, tmp_path: Path) -> None:
    texts = set()
    for split in ("train", "validation", "test"):
        env = TextWorldEnv(actions=True, cache_dir=tmp_path)
        seen = env.reset(TextWorldEnv.tasks(split, generator=generator)[0])
        assert seen.actions
        texts.add(seen.text)
    assert len(texts) == 3
