"""The game-playing core: text made readable, actions made harmless, games built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.envs.textworld import env as story
from trailnotes.envs.textworld.env import GameAnswer, build_cached_game, clean_answer, sanitize_action
from trailnotes.errors import EnvError

BANNER = "\n\n  ____\n | $$$$$$$|\n\nfind the way\n\n-= Cellar =-\nexits east.\n\n>          -= Cellar =-0/1"


WON = """
You take it.

Your score has just gone up by one point.


                      *** The End ***

You scored 1 out of a possible 1, in 7 turns.


Would you like to RESTART, RESTORE a saved game, QUIT or UNDO the last command?
>          -= Den =-0/7"""
LOST = "\n-= Nook =-\nEnd.\n\n *** You lost! ***\n\nYou scored 0 ...\n> -= Nook =-0/7"
SCORED = "\nYou take it.\n\nYour score has just gone up by two points.\n\n>  -= Den =-2/7"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (BANNER, GameAnswer("Cellar. exits east.", False, False, 0)),
        ("\nYou can't go that way.\n\n>    -= Cellar =-0/7", GameAnswer("You can't go that way.", False, False, 0)),
        (
            "\n-= Den =-\nA den.\n  It is\ndark.\n>  -= Den =--1/7",
            GameAnswer("Den. A den. It is dark.", False, False, -1),
        ),
        (WON, GameAnswer("You take it.", True, False, 1)),
        (LOST, GameAnswer("Nook. End.", False, True, 0)),
        (SCORED, GameAnswer("You take it.", False, False, 2)),
        ("\nHi.\n>", GameAnswer("Hi.", False, False, None)),
    ],
)
def test_answers_are_cleaned(raw: str, expected: GameAnswer) -> None:
    assert clean_answer(raw) == expected


@pytest.mark.parametrize(
    ("action", "line"),
    [
        ("go north", ("go north", False)), ("  go \n north\t", ("go north", False)), ("", ("", False)),
        ("go ünder", ("go ?nder", True)), ("\x1b[1mgo", ("[1mgo", True)), ("a" * 161, ("a" * 160, True)),
        ("a" + " " * 100_000, ("a", True)),
    ],
)  # fmt: skip
def test_actions_become_one_line(action: str, line: tuple[str, bool]) -> None:
    assert sanitize_action(action) == line


@given(st.text(max_size=700))
def test_one_line_is_printable_short_and_stable(action: str) -> None:
    line, _ = sanitize_action(action)
    assert len(line) <= story.MAX_ACTION_CHARS
    assert not line or line.isprintable()
    assert line.isascii()
    assert sanitize_action(line) == (line, False)


def build_both(path: Path) -> None:
    """Stand in for a compiler: two files and some noise."""
    print("noise")
    path.with_suffix(".json").write_text("{}")
    path.write_bytes(b"game")


def test_a_game_is_built_once_quietly_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build_cached_game({"level": 1}, build_both, tmp_path / "deep" / "games")
    assert (path.read_bytes(), path.suffix) == (b"game", ".z8")
    assert sorted(p.name for p in path.parent.iterdir()) == [path.stem + ".json", path.name]

    def never(_: Path) -> None:
        raise AssertionError("built again")

    assert build_cached_game({"level": 1}, never, path.parent) == path
    assert build_cached_game({"level": 2}, build_both, path.parent) != path
    assert capsys.readouterr().out == ""


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def refuse(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("\n ni: problem 7\nmore")

    with pytest.raises(EnvError, match="does not compile: ni: problem 7"):
        build_cached_game({}, refuse, tmp_path)
    assert list(tmp_path.iterdir()) == []
